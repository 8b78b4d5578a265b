"""RunFolder: the metrics of a training run as files, readable without any service."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic_core import to_json
from transformers import TrainerCallback

from ...envs.episode import Episode
from ...envs.runtime.line_files import append_lines
from ...records.files.episode_log import TokenTexts
from ...records.files.evaluated_episodes import EvaluatedEpisodes
from ...records.files.run_files import how_to_look, line_file, line_files, lines_until, move_aside, replace_lines
from ...records.metrics.evaluation_logs import EvaluationLog
from .metrics import SUMS

BESIDE = "evaluation"
"""The folder, in that of an earlier run, of an evaluation that no training follows."""


class RunFolder(TrainerCallback):
    """Writes `metrics.jsonl`, `reward.png` (the curve), `summary.json`, and the episodes of evaluations.

    `metrics.jsonl` has one line a log, with null for NaN and infinity. `evaluations.jsonl` has the episodes of those
    evaluations whose training steps `log_episodes_steps` names.

    Args:
        path: The folder; made if it does not exist. When a new training begins, the files of an earlier one are moved
            aside, such as to `metrics.1.jsonl`. A resumed training continues them. An evaluation before a training
            belongs to the training; while none has begun, it leaves an earlier run alone, and is a run of its own in
            the folder `evaluation`.
        says_how_to_look: Whether the end of a training writes to standard error which commands show the run.
    """

    def __init__(self, path: str | Path, *, says_how_to_look: bool = False) -> None:
        self.path = Path(path)
        self.says_how_to_look = says_how_to_look
        self.path.mkdir(parents=True, exist_ok=True)
        self.totals: dict[str, float] = defaultdict(float)  # of everything that is counted, over the whole run
        self._has_begun = self._trains = False
        self._has_earlier_run = bool(line_files(path))
        self._write_to(self.path)

    def _write_to(self, folder: Path) -> None:
        self.metrics_path = line_file(folder, "metrics")
        self._evaluated = EvaluatedEpisodes(folder)
        self._texts: TokenTexts | None = None  # each file has its own

    def _leave_earlier_run(self) -> None:
        """Write an evaluation beside an earlier run, as no training has begun."""
        beside = self.path / BESIDE
        if self._has_earlier_run and not self._has_begun and self.metrics_path.parent != beside:
            beside.mkdir(exist_ok=True)
            self._write_to(beside)
            move_aside(self.metrics_path, self._evaluated.path)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.totals.clear()
        if not state.is_world_process_zero:
            return
        self._has_begun = self._trains = True
        before = (self.metrics_path, self._evaluated.path)  # an evaluation before this training
        self._write_to(self.path)
        if state.global_step == 0:
            self._begin(before)
        self._has_earlier_run = True
        kept = lines_until(state.global_step, self.metrics_path)
        if state.global_step < state.max_steps:  # a `train()` that ended early has a summary of its own part only
            kept = [line for line in kept if "train_runtime" not in json.loads(line)]
        for line in kept:
            self._count(json.loads(line))
        replace_lines(self.metrics_path, kept)
        self._evaluated.resume(state.global_step)

    def _begin(self, before: Sequence[Path]) -> None:
        """Move the files of an earlier run aside; an evaluation before this training stays, or comes from beside."""
        if self._has_earlier_run:
            move_aside(self.metrics_path, self._evaluated.path, self.path / "reward.png", self.path / "summary.json")
        for path in before:
            if path.parent != self.path and path.exists():
                path.rename(self.path / path.name)

    def _count(self, logs: dict[str, Any]) -> None:
        for name in SUMS & set(logs):
            self.totals[name] += logs[name]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs is None or not state.is_world_process_zero:
            return
        self._leave_earlier_run()
        self._count(logs)
        line = to_json({"step": state.global_step, **logs}, inf_nan_mode="null").decode()
        append_lines(self.metrics_path, [line])

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Any = None,
        episodes: Sequence[Episode] = (),
        data_sets: int = 1,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        evaluation = EvaluationLog.of(metrics or {})
        if evaluation is not None and episodes and state.is_world_process_zero:
            self._texts = self._texts or TokenTexts(lambda token: str(processing_class.decode([token])))
            self._evaluated.add(
                evaluation.title,
                state.global_step,
                episodes,
                every=args.log_episodes_steps,
                max_steps=state.max_steps if self._trains else 0,
                data_sets=data_sets,
                texts=self._texts,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._trains = False
        self.plot()
        if self.says_how_to_look:
            sys.stderr.write(f"{how_to_look(self.path)}\n")

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    def plot(self) -> None:
        """Draw `reward.png` from `metrics.jsonl`: the mean reward of each step, its running mean, and evaluations."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        lines = [*map(json.loads, lines_until(math.inf, self.metrics_path))]
        points = [(line["step"], line["reward"]) for line in lines if line.get("reward") is not None]
        if not points:
            return
        steps, rewards = zip(*points, strict=True)
        figure = Figure(figsize=(7, 4), layout="constrained")  # not pyplot, whose figures are global
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.plot(steps, rewards, color="0.75", linewidth=1, label="mean of a step")
        running = [fmean(rewards[max(0, end - 10) : end]) for end in range(1, len(rewards) + 1)]
        axes.plot(steps, running, color="tab:blue", linewidth=2, label="mean of 10 steps")
        for number, (title, evaluated) in enumerate(_evaluations(lines).items(), 1):
            axes.plot(*zip(*evaluated, strict=True), color=f"C{number}", marker="o", linestyle="--", label=title)
        axes.set(xlabel="step", ylabel="reward", title=self.path.name)
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
        figure.savefig(self.path / "reward.png", dpi=120)


def with_records(
    callbacks: TrainerCallback | Sequence[TrainerCallback] | None, folder: str | None
) -> list[TrainerCallback]:
    """Return the callbacks as a list, with a `RunFolder` of this folder first, unless one is among them."""
    given = [callbacks] if isinstance(callbacks, TrainerCallback) else [*(callbacks or ())]
    if folder is None or any(isinstance(callback, RunFolder) for callback in given):
        return given
    return [RunFolder(folder, says_how_to_look=True), *given]


def _evaluations(lines: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and rewards of the evaluations of each data set, by title."""
    points: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        evaluation = EvaluationLog.of(line)
        if evaluation is not None and evaluation.metrics.get("reward") is not None:
            points.setdefault(evaluation.title, []).append((line["step"], evaluation.metrics["reward"]))
    return points
