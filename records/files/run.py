"""Run: the folder of a training or an evaluation, which may still grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ...envs.episode import Episode
from ...envs.runtime.line_files import BrokenLine
from ..metrics.evaluation_logs import EvaluationLog
from .episode_log import episode_of
from .episodes import EpisodeRow, add_learning, row_of
from .run_files import EVALUATION_FILE, find_runs, line_files
from .tail import Place, Replaced, Tail

WANTED = "the output_dir of a training, or the results of gymnast eval"

NO_RECORDS = "A training writes them into its output_dir, unless it has record_run=False"


class Run:
    """The episodes and metrics of a training, or of an evaluation; `read` adds what was written since.

    A run without training steps is an evaluation: `gymnast eval` leaves one, and `evaluate()` of a trainer.

    Args:
        folder: Where the run wrote its files, such as `metrics.jsonl` and `episodes.jsonl`.

    Raises:
        FileNotFoundError: there is no such folder, or it has no such file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.is_file():
            raise FileNotFoundError(f"{str(folder)!r} is a file; give its folder, {WANTED}")
        if not self.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {str(folder)!r}; give {WANTED}")
        if not line_files(folder):
            below = ", ".join(str(path) for path in islice(find_runs(self.folder), 3))
            raise FileNotFoundError(
                f"{str(folder)!r} has no metrics.jsonl and no episodes.jsonl. "
                + (f"It holds runs, such as {below}: name one of them" if below else NO_RECORDS)
            )
        self._forget()
        self.read()

    def _forget(self) -> None:
        self._tails: dict[Path, Tail] = {}
        self.episodes: list[EpisodeRow] = []
        self.metrics: list[dict[str, Any]] = []  # lines of training steps
        self.evaluations: dict[str, list[tuple[int, EvaluationLog]]] = {}  # by title, each with its step
        self.settings: dict[str, Any] = {}  # of the training, as `learning.jsonl` has them
        self.tokens: dict[str, str] = {}  # the text of each token id
        self.broken: list[BrokenLine] = []  # lines that were skipped
        self.incomplete: set[tuple[int, str]] = set()  # steps and groups that lack an episode of `learning.jsonl`
        self.changes = 0  # grows whenever something was read
        self._rows: dict[tuple[int, str, int], EpisodeRow] = {}  # of the training

    def read(self) -> None:
        """Read the new lines; all lines if a file is another one than before."""
        before = self.changes
        try:
            self._read()
        except Replaced:
            self._forget()
            self.changes = before + 1
            self._read()

    def _read(self) -> None:
        add = {
            "episodes": self._add_episode,
            "evaluations": self._add_evaluated,
            "learning": self._learn,
            "metrics": self._add_metrics,
        }
        files = line_files(self.folder)
        tails = [self._tails.setdefault(path, Tail(path)) for _, path in files]
        # An episode is written before the lines about its learning. So the sizes are taken in the other order.
        sizes = [tail.look() for tail in reversed(tails)][::-1]
        for (kind, _), tail, size in zip(files, tails, sizes, strict=True):
            for place, line in tail.lines(size):
                self.changes += 1
                try:
                    add[kind](place, _object(line))
                except (ValueError, KeyError, TypeError) as error:
                    self.broken.append(BrokenLine.of(place.path, place.number, error))

    def _add_metrics(self, place: Place, line: dict[str, Any]) -> None:
        finite = {name: value for name, value in line.items() if value is not None}  # the others are null
        if ("reward" in line or "loss" in line) and "train_runtime" not in line:  # not every step plays a round
            self.metrics.append(finite)
        elif (evaluation := EvaluationLog.of(finite)) is not None:
            self.evaluations.setdefault(evaluation.title, []).append((line["step"], evaluation))

    def _add_episode(self, place: Place, line: dict[str, Any]) -> None:
        row = row_of(place, line)
        self.episodes.append(row)
        self._rows[row.step, row.group, row.member] = row

    def _add_evaluated(self, place: Place, line: dict[str, Any]) -> None:
        self.tokens |= line.get("tokens", {})
        self.episodes.append(row_of(place, line))

    def _learn(self, place: Place, line: Mapping[str, Any]) -> None:
        if "settings" in line:
            self.settings |= line["settings"]
        elif "tokens" in line:
            self.tokens |= line["tokens"]
        elif (row := self._rows.get((line["step"] + 1, line["group"], line["member"]))) is not None:
            add_learning(row, place, line)
        else:  # the line of the episode is broken, or lost
            self.incomplete.add((line["step"] + 1, line["group"]))

    def details(self, first: int, count: int) -> bytes:
        """Return `[line of episodes.jsonl, [its lines of learning.jsonl]]` of some episodes in order, as JSON."""
        parts = []
        for row in self.episodes[first : first + count]:
            learning = b",".join(place.read().strip() for place in row.learning)
            parts.append(b"[" + row.place.read().strip() + b",[" + learning + b"]]")
        return b"[" + b",".join(parts) + b"]"

    def episode(self, row: EpisodeRow) -> Episode:
        """Return the whole episode of a row."""
        return episode_of(row.place.read(), row.place.path)[1]

    @property
    def is_evaluation(self) -> bool:
        """Whether nothing was trained."""
        is_one = self.episodes or self.evaluations or (self.folder / EVALUATION_FILE).exists()
        return bool(is_one) and not (self.metrics or self._rows or self.settings)

    @property
    def asked(self) -> dict[str, Any]:
        """The settings that `gymnast eval` was given; empty for another run."""
        path = self.folder / EVALUATION_FILE
        return from_json(path.read_bytes()) if path.exists() else {}

    def played(self) -> list[EpisodeRow]:
        """Return the episodes that the run is about: those of the training's rounds, or all of an evaluation."""
        return [*self.episodes] if self.is_evaluation else [row for row in self.episodes if row.evaluation is None]

    def evaluated(self) -> list[Episode]:
        """Return the whole episodes of the latest evaluation, of each data set; empty if none is recorded."""
        rows = [row for row in self.episodes if row.evaluation is not None]
        last = {row.evaluation: row.step for row in sorted(rows, key=lambda row: row.step)}
        return [self.episode(row) for row in rows if row.step == last[row.evaluation]]

    def steps(self) -> Iterator[tuple[int, list[EpisodeRow]]]:
        """Yield the recorded steps in order, each with its episodes of `played`."""
        of_step: dict[int, list[EpisodeRow]] = {}
        for row in self.played():
            of_step.setdefault(row.step, []).append(row)
        yield from sorted(of_step.items())

    def latest(self) -> list[EpisodeRow]:
        """Return the episodes of the last recorded step."""
        return max(self.steps(), default=(0, []), key=lambda pair: pair[0])[1]


def _object(line: bytes) -> dict[str, Any]:
    """Return the object of a line; a ValueError if it is something else, or has no step."""
    value = from_json(line)
    if not isinstance(value, dict) or not isinstance(value.get("step"), int):
        raise ValueError("no object with a step")
    return value
