"""The files of a training run, readable without any service: `RunFolder`, `EpisodeLog` and `read_episodes`."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from transformers import TrainerCallback

from ...envs.episode import Episode
from ...envs.line_files import append_lines, parsed
from ...records.metrics.evaluation_logs import EvaluationLog
from .metrics import SUMS

logger = logging.getLogger(__name__)


class EpisodeLog:
    """`episodes.jsonl`: a line for each episode, `{"step": ..., "episode": ...}`; `read_episodes` reads it.

    It also keeps `learning.jsonl` (see `LearningLog`) at the same steps.

    Args:
        folder: The folder of the file.
        every: Steps; 0 = write nothing.
        suffix: Distinguishes the files of several processes.
    """

    def __init__(self, folder: str | Path, *, every: int, suffix: str = "") -> None:
        self.path = Path(folder, f"episodes{suffix}.jsonl")
        self.learning_path = Path(folder, f"learning{suffix}.jsonl")
        self._every = every
        self._last: int | None = None  # the step that this training wrote last

    def begin(self, step: int) -> None:
        """Called when a training begins, or is resumed, at this step.

        A new training moves the files of an earlier one aside (`episodes.1.jsonl`); a resumed one drops the lines from
        this step on, since it plays these steps again.
        """
        self._last = None
        if self._every and self.path.exists():
            if step == 0:
                move_aside(self.path, self.learning_path)
                return
            keep_lines_until(step - 1, self.learning_path)
            kept = keep_lines_until(step - 1, self.path)
            self._last = json.loads(kept[-1])["step"] if kept else None

    def add(self, step: int, episodes: Sequence[Episode]) -> bool:
        """Append the episodes of a step, if it is the first, or a multiple of `every` was reached since the last one.

        No round may be played at the multiple itself. Returns whether they were written.
        """
        if not self._every or (self._last is not None and step // self._every <= self._last // self._every):
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._last = step
        append_lines(self.path, (f'{{"step": {step}, "episode": {episode.to_json()}}}' for episode in episodes))
        return True


def read_episodes(path: str | Path) -> Iterator[tuple[int, Episode]]:
    """Yield the step and the episode of each line of an `episodes.jsonl`.

    A half-written last line is left out. Another broken line is skipped, and a warning names the first one.
    """

    def parse(line: str) -> tuple[int, Episode]:
        record = json.loads(line)
        return record["step"], Episode.from_json(json.dumps(record["episode"]))

    with Path(path).open(errors="replace") as file:  # half a line may end in half a character
        yield from parsed(Path(path), file, parse, logger.warning)


class RunFolder(TrainerCallback):
    """Writes `metrics.jsonl`, `reward.png` (the curve, where matplotlib is installed) and `summary.json`.

    `metrics.jsonl` has one line a log, with null for NaN and infinity.

    Args:
        path: The folder; made if it does not exist. When a new training begins, the files of an earlier one are moved
            aside (`metrics.1.jsonl`, `reward.1.png`, `summary.1.json`). A resumed training continues `metrics.jsonl`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.totals: dict[str, float] = defaultdict(float)  # of everything that is counted, over the whole run
        self._lines_before = len(read_lines(self.metrics_path))  # those of an earlier run

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.totals.clear()
        if not state.is_world_process_zero:
            return
        # The lines since this object was made (an evaluation before training) belong to this run.
        lines = read_lines(self.metrics_path)
        earlier, own = lines[: self._lines_before], lines[self._lines_before :]
        if earlier and state.global_step == 0:
            replace_lines(move_aside(self.metrics_path, self.path / "reward.png", self.path / "summary.json"), earlier)
            earlier = []
        kept = lines_until(state.global_step, earlier, self.metrics_path)
        if state.global_step < state.max_steps:  # a `train()` that ended early has a summary of its own part only
            kept = [line for line in kept if "train_runtime" not in json.loads(line)]
        for line in kept:
            self._count(json.loads(line))
        replace_lines(self.metrics_path, kept + own)

    def _count(self, logs: dict[str, Any]) -> None:
        for name in SUMS & set(logs):
            self.totals[name] += logs[name]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs is None or not state.is_world_process_zero:
            return
        self._count(logs)
        line = to_json({"step": state.global_step, **logs}, inf_nan_mode="null").decode()
        append_lines(self.metrics_path, [line])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._lines_before = len(read_lines(self.metrics_path))
        if find_spec("matplotlib") is not None:
            self.plot()
        else:
            warnings.warn("reward.png needs matplotlib: pip install 'gymnast[examples]'", stacklevel=2)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    def plot(self) -> None:
        """Draw `reward.png` from `metrics.jsonl`: the mean reward of each step, its running mean, and evaluations."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        lines = [*map(json.loads, lines_until(math.inf, read_lines(self.metrics_path), self.metrics_path))]
        points = [(line["step"], line["reward"]) for line in lines if line.get("reward") is not None]
        if not points:
            return
        steps, rewards = zip(*points, strict=True)
        figure = Figure(figsize=(7, 4), layout="constrained")  # not pyplot, whose figures are global
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.plot(steps, rewards, color="0.75", linewidth=1, label="mean of a step")
        axes.plot(steps, _running_mean(rewards, 10), color="tab:blue", linewidth=2, label="mean of 10 steps")
        for number, (title, evaluated) in enumerate(_evaluations(lines).items(), 1):
            axes.plot(*zip(*evaluated, strict=True), color=f"C{number}", marker="o", linestyle="--", label=title)
        axes.set(xlabel="step", ylabel="reward", title=self.path.name)
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
        figure.savefig(self.path / "reward.png", dpi=120)


def move_aside(*paths: Path) -> Path:
    """Give the files of an earlier run the next free names, such as `metrics.1.jsonl`; return the first of these."""
    number = 1
    while any(_numbered(path, number).exists() for path in paths):
        number += 1
    for path in paths:
        if path.exists():
            path.rename(_numbered(path, number))
    return _numbered(paths[0], number)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def replace_lines(path: Path, lines: Sequence[str]) -> None:
    """Write these lines in place of a file. A process that is killed meanwhile leaves the old file or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(lines))
    new.replace(path)


def read_lines(path: Path) -> list[str]:
    """The lines of a file; `str.splitlines` would split at more characters, such as U+2028 in an answer."""
    if not path.exists():
        return []
    with path.open(errors="replace") as file:  # half a line may end in half a character
        return list(file)


def lines_until(step: float, lines: Sequence[str], path: Path) -> list[str]:
    """Drop the lines of later steps and half a last line, and broken ones, of which a warning names the first one.

    `path` is the file of the lines.
    """
    found = parsed(path, lines, lambda line: (line, json.loads(line)["step"] <= step), logger.warning)
    return [line for line, is_kept in found if is_kept]


def keep_lines_until(step: float, path: Path) -> list[str]:
    """Apply `lines_until` to a file, and return the lines that stay."""
    kept = lines_until(step, read_lines(path), path)
    replace_lines(path, kept)
    return kept


def _evaluations(lines: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """The steps and rewards of the evaluations of each data set, by title."""
    points: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        evaluation = EvaluationLog.of(line)
        if evaluation is not None and evaluation.metrics.get("reward") is not None:
            points.setdefault(evaluation.title, []).append((line["step"], evaluation.metrics["reward"]))
    return points


def _running_mean(values: tuple[float, ...], width: int) -> list[float]:
    windows = [values[max(0, index + 1 - width) : index + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]
