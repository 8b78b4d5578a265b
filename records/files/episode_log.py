"""`episodes.jsonl`: `EpisodeLog` writes it, `read_episodes` reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...envs.episode import Episode
from ...envs.runtime.line_files import append_lines, parsed
from .run_files import keep_lines_until, line_file, move_aside

logger = logging.getLogger(__name__)


class EpisodeLog:
    """Writes `episodes.jsonl`, and keeps `learning.jsonl` at the same steps.

    Args:
        folder: The folder of the files.
        every: Steps; 0 = write nothing.
        suffix: Distinguishes the files of several processes.
    """

    def __init__(self, folder: str | Path, *, every: int, suffix: str = "") -> None:
        self.path = line_file(folder, "episodes", suffix)
        self.learning_path = line_file(folder, "learning", suffix)
        self._every = every
        self._last: int | None = None  # the step that this training wrote last

    def begin(self, step: int) -> None:
        """Prepare the files for a training that begins, or is resumed, at this step.

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
    with Path(path).open(errors="replace") as file:  # half a line may end in half a character
        yield from parsed(Path(path), file, episode_of, logger.warning)


def episode_of(line: str | bytes) -> tuple[int, Episode]:
    """Return the step and the episode of a line; a ValueError, KeyError or TypeError if it is no such line."""
    record = json.loads(line)
    return record["step"], Episode.from_json(json.dumps(record["episode"]))
