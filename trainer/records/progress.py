"""What the console shows: `RichProgress`, or transformers' own displays with the most important metrics only."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

PLAIN_SECONDS = 10.0  # without a terminal, one line in this time


class RichProgress(TrainerCallback):
    """Shows step, reward, success, tool calls, failures so far, tokens a second and the time left.

    On a terminal the display is live; elsewhere (a log file) it is a line every ten seconds.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._task = self.bar.add_task("training", total=None)
        self._live: Live | None = None
        self._last_log = self._last_line = time.monotonic()
        self._failures = 0.0  # so far

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self.bar.update(self._task, total=state.max_steps, completed=state.global_step)
        self._last_log = time.monotonic()
        self._failures = 0.0
        if self.console.is_terminal:
            self._live = Live(self.bar, console=self.console, refresh_per_second=4)
            self._live.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.bar.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or logs is None or "reward" not in logs:
            return
        now = time.monotonic()
        self._failures += logs.get("episodes/failed", 0.0)
        values = _shown(logs, seconds=now - self._last_log, failures=self._failures)
        self._last_log = now
        if self._live is not None:
            table = Table.grid(padding=(0, 2))
            table.add_row(*(f"[dim]{name}[/] {value}" for name, value in values.items()))
            outer = Table.grid()
            outer.add_row(self.bar)
            outer.add_row(table)
            self._live.update(outer)
        elif now - self._last_line >= PLAIN_SECONDS or state.global_step in (1, state.max_steps):
            self._last_line = now
            shown = "  ".join(f"{name} {value}" for name, value in values.items())
            self.console.print(f"step {state.global_step}/{state.max_steps}  {shown}  left {self._left()}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the live display; needed only where training was cut by an exception."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left(self) -> str:
        seconds = self.bar.tasks[0].time_remaining
        return "?" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def rich_displays(trainer: Trainer) -> list[RichProgress]:
    """The trainer's live displays. Where it has one, those of transformers are removed; else they are made brief."""
    displays = [each for each in trainer.callback_handler.callbacks if isinstance(each, RichProgress)]
    if displays:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
    plain = {type(each) for each in trainer.callback_handler.callbacks} & set(_BRIEF)
    for kind in plain:
        trainer.remove_callback(kind)
        trainer.add_callback(_BRIEF[kind])
    return displays


SHOWN = frozenset(
    {
        *("loss", "grad_norm", "learning_rate", "epoch", "train_loss", "train_runtime", "runtime"),
        *("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "turns/mean"),
        *("completions/mean_length", "completions/clipped_ratio"),
        *("tools/call_frequency", "tools/failure_frequency", "time/rollout", "time/update"),
    }
)
"""Metrics that transformers' displays show, also with `eval_` before them; all are in the logs."""


def brief(logs: dict[str, Any] | None) -> dict[str, Any]:
    """The metrics in `SHOWN`, those of the environment, and each ending and trouble that there was."""
    shown = {}
    for name, value in (logs or {}).items():
        plain = name.removeprefix("eval_")
        happened = plain.startswith("stop/") or plain in ("episodes/failed", "groups/dropped", "rounds/skipped")
        if plain in SHOWN or plain.startswith("environment") or (happened and value):
            shown[name] = value
    return shown


class BriefPrinter(PrinterCallback):
    """transformers' printer, with the metrics of `brief`."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        super().on_log(args, state, control, logs=brief(logs), **kwargs)


class BriefProgress(ProgressCallback):
    """transformers' progress bar, with the metrics of `brief`."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        super().on_log(args, state, control, logs=brief(logs), **kwargs)


_BRIEF: dict[type[TrainerCallback], type[TrainerCallback]] = {
    PrinterCallback: BriefPrinter,
    ProgressCallback: BriefProgress,
}


def _shown(logs: dict[str, Any], *, seconds: float, failures: float) -> dict[str, str]:
    values = {"reward": f"{logs['reward']:.3f}"}
    if "environment/success" in logs:
        values["success"] = f"{logs['environment/success']:.1%}"
    values["tool calls"] = f"{logs.get('tools/call_frequency', 0.0):.2f}/episode"
    values["failures"] = f"{failures:.0f}"
    values["tokens/s"] = f"{logs.get('tokens/sampled', 0.0) / max(seconds, 1e-9):,.0f}"
    return values
