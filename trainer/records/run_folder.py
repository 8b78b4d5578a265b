"""What a training run leaves behind, readable without any service: `RunFolder` and `EpisodeLog`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...envs.episode import Episode
from .metrics import SUMS


class EpisodeLog:
    """`episodes.jsonl`: a line for each episode, `{"step": ..., "episode": ...}`; `Episode.from_json` reads the latter.

    Args:
        folder: Where it is.
        suffix: Tells the files of several processes apart.
    """

    def __init__(self, folder: str | Path, suffix: str = "") -> None:
        self.path = Path(folder, f"episodes{suffix}.jsonl")
        self._begun = False
        self._last = 0  # the step that was written last

    def begin(self) -> None:
        """A training begins, or is resumed.

        A new training moves the file of an earlier one aside (`episodes.1.jsonl`); a resumed one replaces the lines
        from its first step on, since it plays these steps again.
        """
        self._begun = False

    def is_due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` was reached since the last written step; the first step is always due.

        Rounds are not played at each step, so the multiple itself may be a step at which none is.
        """
        return not self._begun or step // every > self._last // every

    def write(self, step: int, episodes: Sequence[Episode]) -> None:
        """Append the episodes of a step."""
        if not self._begun:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if step == 0:
                move_aside(self.path)
            else:
                _keep_lines(self.path, before=step)
            self._begun = True
        self._last = step
        with self.path.open("a") as file:
            for episode in episodes:
                file.write(f'{{"step": {step}, "episode": {episode.to_json()}}}\n')


class RunFolder(TrainerCallback):
    """Writes `metrics.jsonl` (one line a log), `reward.png` (the curve, where matplotlib is installed), `summary.json`.

    Args:
        path: The folder; made if it does not exist. When a new training begins, the `metrics.jsonl` of an earlier one
            is moved aside (`metrics.1.jsonl`). A resumed training continues it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.totals: dict[str, float] = defaultdict(float)  # of everything that is counted, over the whole run
        self._size_before = self.metrics_path.stat().st_size if self.metrics_path.exists() else 0

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.totals.clear()
        if not state.is_world_process_zero or not self.metrics_path.exists():
            return
        # What has been logged since this object was made (an evaluation before training) belongs to this run.
        text = self.metrics_path.read_bytes()
        earlier, own = text[: self._size_before].decode(), text[self._size_before :].decode()
        if earlier and state.global_step == 0:
            aside = move_aside(self.metrics_path)
            aside.write_text(earlier)
            earlier = ""
        kept = [line for line in earlier.splitlines() if json.loads(line)["step"] <= state.global_step]
        for line in kept:
            self._count(json.loads(line))
        self.metrics_path.write_text("".join(f"{line}\n" for line in kept) + own)

    def _count(self, logs: dict[str, Any]) -> None:
        for name in SUMS & set(logs):
            self.totals[name] += logs[name]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or not state.is_world_process_zero:
            return
        self._count(logs)
        with self.metrics_path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._size_before = self.metrics_path.stat().st_size if self.metrics_path.exists() else 0
        if find_spec("matplotlib") is not None:
            self.plot()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    def plot(self) -> None:
        """Draw `reward.png` from `metrics.jsonl`: the mean reward of each step, and its running mean."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        text = self.metrics_path.read_text() if self.metrics_path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        points = [(line["step"], line["reward"]) for line in lines if "reward" in line]
        if not points:
            return
        steps, rewards = zip(*points, strict=True)
        figure = Figure(figsize=(7, 4), layout="constrained")  # not pyplot, whose figures are global
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.plot(steps, rewards, color="0.75", linewidth=1, label="mean of a step")
        axes.plot(steps, _running_mean(rewards, 10), color="tab:blue", linewidth=2, label="mean of 10 steps")
        axes.set(xlabel="step", ylabel="reward", title=self.path.name)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        figure.savefig(self.path / "reward.png", dpi=120)


def move_aside(path: Path) -> Path:
    """Give a file of an earlier run the next free name, such as `metrics.1.jsonl`, and return that."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    if path.exists():
        path.rename(aside)
    return aside


def _keep_lines(path: Path, *, before: int) -> None:
    """Drop the lines of this step and later ones, and what a killed process left half-written."""
    if not path.exists():
        return
    kept = []
    with path.open() as lines:
        for line in lines:
            try:
                if json.loads(line)["step"] < before:
                    kept.append(line)
            except json.JSONDecodeError:
                continue
    path.write_text("".join(kept))


def _running_mean(values: tuple[float, ...], width: int) -> list[float]:
    windows = [values[max(0, index + 1 - width) : index + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]
