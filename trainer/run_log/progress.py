"""The console: `RichProgress`, or transformers' own displays with the most important metrics only."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from ...records.metrics.evaluation_logs import EvaluationLog

PLAIN_SECONDS = 10.0  # without a terminal, one line in this time
LOOK_SECONDS = 0.5  # between two looks at the episodes in flight


class _PlainWarnings(logging.Handler):
    """Shows warnings as `WARNING: ...` where a program has not set up logging; Python would show the message alone."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and logging.getLogger(PACKAGE).handlers == [self]:
            sys.stderr.write(f"{record.levelname}: {self.format(record)}\n")  # a live display may have replaced it


PACKAGE = __name__.partition(".")[0]
logging.getLogger(PACKAGE).addHandler(_PlainWarnings(logging.WARNING))


class _BarWithText(Progress):
    text = Text()
    describe: Callable[[], str] = staticmethod(lambda: "")  # what happens now
    _now = Text()
    _looked = -LOOK_SECONDS

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._now = Text(self.describe(), style="cyan")
        yield from filter(None, (self._now, self.text))


class RichProgress(TrainerCallback):
    """Shows step, reward, success, endings, tool calls, failures so far and the latest one, tokens a second, time left.

    On a terminal the display is live and says where the episodes in flight are, also in an evaluation, whose outcome
    it keeps. Elsewhere (a log file) it is a line every ten seconds, and one for each evaluation.
    """

    latest_failure = ""  # the trainer sets it after each round

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._left = TimeRemainingColumn()
        self.bar = _BarWithText(*columns, TextColumn("left"), self._left, console=self.console)
        self._task = self.bar.add_task("training", total=None)
        self._last_log = self._last_line = time.monotonic()
        self._failures = 0.0  # so far
        self._training = Text()
        self._evaluations: dict[str, Text] = {}  # the latest of each data set

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.bar.update(self._task, total=state.max_steps, completed=state.global_step)
        self._last_log = time.monotonic()
        self._failures, self.latest_failure = 0.0, ""
        self._training, self._evaluations = Text(), {}
        if self.console.is_terminal:
            self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.bar.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or logs is None or "reward" not in logs:
            return
        now = time.monotonic()
        self._failures += logs.get("episodes/failed", 0.0)
        values = _shown(logs, seconds=now - self._last_log, failures=self._failures)
        self._last_log = now
        failure = f"latest failure: {self.latest_failure}" if self.latest_failure else ""
        if self.console.is_terminal:
            self._training = _dim_names(values)
            self._training.append(f"\n{failure}" if failure else "", style="red")
            self._show()
        elif now - self._last_line >= PLAIN_SECONDS or state.global_step in (1, state.max_steps):
            self._last_line = now
            left = self._left.render(self.bar.tasks[0]).plain
            shown = "  ".join([*(f"{name} {value}" for name, value in values.items()), f"left {left}", failure])
            self._print(f"step {state.global_step}/{state.max_steps}  {shown.rstrip()}")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        evaluation = EvaluationLog.of(metrics or {})
        if not state.is_world_process_zero or evaluation is None:
            return
        shown = {name: f"{value:.3g}" for name, value in evaluation.metrics.items() if name in ("reward", "pass@1")}
        heading = {f"{evaluation.title} at step": str(state.global_step)}
        line = _dim_names({**heading, **shown, **_endings(evaluation.metrics)})
        self._evaluations[evaluation.title] = line
        if self.console.is_terminal:
            self._show()
        else:
            self._print(line.plain)

    def _show(self) -> None:
        self.bar.text = Text("\n").join(filter(None, (self._training, *self._evaluations.values())))

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """End the live display; needed only where training was cut by an exception."""
        if self.bar.live.is_started:
            self.bar.stop()


def rich_displays(trainer: Trainer, describe: Callable[[], str]) -> list[RichProgress]:
    """Return the trainer's live displays, which show what `describe` returns.

    Where it has one, those of transformers are removed; else they are made brief.
    """
    callbacks = trainer.callback_handler.callbacks
    displays = [callback for callback in callbacks if isinstance(callback, RichProgress)]
    for display in displays:
        display.bar.describe = describe
    for kind, short in _BRIEF.items():
        if any(type(callback) is kind for callback in callbacks):
            trainer.remove_callback(kind)
            if not displays:
                trainer.add_callback(short)
    return displays


_SHOWN = """
    loss grad_norm learning_rate epoch train_loss train_runtime runtime reward reward_std frac_reward_zero_std kl
    entropy turns/mean completions/mean_length completions/clipped_ratio tools/call_frequency tools/failure_frequency
    time/rollout time/update"""
SHOWN = frozenset(_SHOWN.split())
"""Metrics that transformers' displays show, also those of evaluations; all are in the logs."""

_TROUBLE = "episodes/failed episodes/retried groups/dropped rounds/skipped prompts/overlong steps/nonfinite"
TROUBLE = frozenset(_TROUBLE.split())
"""Counts that are shown where they are not 0."""


def brief(logs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the metrics in `SHOWN`, those of the environment, and each ending and trouble that there was."""
    shown, evaluation = {}, EvaluationLog.of(logs or {})
    for name, value in (logs or {}).items():
        plain = name if evaluation is None else name.removeprefix(evaluation.prefix)
        happened = value and (plain.startswith(("stop/", "alarms/")) or plain in TROUBLE)
        if happened or plain in SHOWN or plain.startswith("environment"):
            shown[name] = value
    return shown


class _Brief:
    """A display of transformers, with the metrics of `brief`."""

    def on_log(self, *args: Any, logs: Any = None, **kwargs: Any) -> None:
        super().on_log(*args, logs=brief(logs), **kwargs)  # type: ignore[misc]


class BriefPrinter(_Brief, PrinterCallback): ...


class BriefProgress(_Brief, ProgressCallback): ...


_BRIEF: dict[Any, Any] = {PrinterCallback: BriefPrinter, ProgressCallback: BriefProgress}


def _shown(logs: dict[str, Any], *, seconds: float, failures: float) -> dict[str, str]:
    success = {"success": f"{logs['environment/success']:.1%}"} if "environment/success" in logs else {}
    return {
        "reward": f"{logs['reward']:.3f}",
        **success,
        **_endings(logs),
        "tool calls": f"{logs.get('tools/call_frequency', 0.0):.2f}/episode",
        "failures": f"{failures:.0f}",
        **_alarms(logs),
        "tokens/s": f"{logs.get('tokens/sampled', 0.0) / max(seconds, 1e-9):,.0f}",
    }


def _endings(logs: Mapping[str, Any]) -> dict[str, str]:
    """Return the most frequent stop reasons of the episodes, with their shares."""
    shares = {name.removeprefix("stop/"): value for name, value in logs.items() if name.startswith("stop/") and value}
    frequent = sorted(shares.items(), key=lambda item: -item[1])[:3]
    return {"ends": ", ".join(f"{name} {share:.0%}" for name, share in frequent)} if frequent else {}


def _alarms(logs: dict[str, Any]) -> dict[str, str]:
    """Return the names of the alarms that are raised."""
    names = [name.removeprefix("alarms/") for name, value in logs.items() if name.startswith("alarms/") and value]
    return {"alarms": ", ".join(sorted(names))} if names else {}


def _dim_names(values: dict[str, str]) -> Text:
    return Text("  ").join(Text.assemble((name, "dim"), " ", value) for name, value in values.items())
