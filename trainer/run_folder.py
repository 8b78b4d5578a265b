"""RunFolder: what a training run leaves behind, readable without any service."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .metrics import SUMS


class RunFolder(TrainerCallback):
    """Writes `metrics.jsonl` (one line a log), `reward.png` (the curve, where matplotlib is installed), `summary.json`.

    Args:
        path: The folder; made if it does not exist. Lines of an earlier run in it are removed when training begins
            anew, and kept when it is resumed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.totals: dict[str, float] = defaultdict(float)  # of everything that is counted, over the whole run

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and state.global_step == 0:
            self.metrics_path.unlink(missing_ok=True)

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
        for name in SUMS & set(logs):
            self.totals[name] += logs[name]
        with self.metrics_path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and find_spec("matplotlib") is not None:
            self.plot()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    def plot(self) -> None:
        """Draw `reward.png` from `metrics.jsonl`: the mean reward of each step, and its running mean."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        lines = [json.loads(line) for line in self.metrics_path.read_text().splitlines()]
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


def _running_mean(values: tuple[float, ...], width: int) -> list[float]:
    windows = [values[max(0, index + 1 - width) : index + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]
