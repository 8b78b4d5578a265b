"""`episodes.jsonl`: `EpisodeLog` writes it, `read_episodes` reads it; `TokenTexts` gives the texts of its tokens."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ...envs.episode import Episode
from ...envs.images import Image
from ...envs.runtime.line_files import append_lines, parsed
from .run_files import IMAGES, keep_lines_until, line_file, move_aside

ROUNDS = 16
"""Rounds of a training that are written by default."""

MOST_BYTES = 64_000_000
"""Size of `episodes.jsonl` with pictures by default, of all processes. `learning.jsonl` has about the size without."""

logger = logging.getLogger(__name__)


class EpisodeLog:
    """Writes `episodes.jsonl`, and keeps `learning.jsonl` at the same steps.

    Args:
        folder: The folder of the files.
        every: Steps; 0 = write nothing; None = at most `ROUNDS` rounds of the training, spread evenly. Each round has
            its share of `MOST_BYTES`, and loses its last groups if it needs more.
        suffix: Distinguishes the files of several processes.
        processes: Number of these processes.
    """

    def __init__(self, folder: str | Path, *, every: int | None, suffix: str = "", processes: int = 1) -> None:
        self.path = line_file(folder, "episodes", suffix)
        self.learning_path = line_file(folder, "learning", suffix)
        self._every = every or 0
        self._is_bounded = every is None
        self._processes = processes
        self._share = MOST_BYTES // ROUNDS // processes  # bytes of a round of this process
        self._last: int | None = None  # the step that this training wrote last

    def begin(self, step: int, max_steps: int) -> None:
        """Prepare the files for a training of `max_steps` steps that begins, or is resumed, at this step.

        A new training moves the files of an earlier one aside (`episodes.1.jsonl`); a resumed one drops the lines from
        this step on, since it plays these steps again.
        """
        self._last = None
        if self._is_bounded:
            self._every = -(-max_steps // ROUNDS)
        if self._every and self.path.exists():
            if step == 0:
                move_aside(self.path, self.learning_path)
                return
            keep_lines_until(step - 1, self.learning_path)
            kept = keep_lines_until(step - 1, self.path)
            self._last = json.loads(kept[-1])["step"] if kept else None

    def add(self, step: int, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Append the episodes of a step, if it is the first, or a multiple of `every` was reached since the last one.

        No round may be played at the multiple itself. Returns the episodes that were written.
        """
        if not self._every or (self._last is not None and step // self._every <= self._last // self._every):
            return ()
        self._last = step
        return append_episodes(self.path, ({"step": step} for _ in episodes), episodes, self._room(step))

    def _room(self, step: int) -> float:
        """Return the bytes that this step may write: its share, and that which earlier rounds have left."""
        if not self._is_bounded:
            return math.inf
        return (step // self._every + 1) * self._share - recorded_bytes(self.path, self._processes)


def recorded_bytes(path: Path, processes: int = 1) -> int:
    """Return the size of a file of episodes, and of the share of the run's pictures that one of the processes has."""
    pictures = (path.parent / IMAGES).glob("*")
    size = path.stat().st_size if path.exists() else 0
    return size + sum(picture.stat().st_size for picture in pictures) // processes


def append_episodes(
    path: Path, heads: Iterable[Mapping[str, Any]], episodes: Iterable[Episode], room: float = math.inf
) -> list[Episode]:
    """Append the lines of the first groups that have at most this many bytes together, with pictures the run lacks.

    Each head has the other fields of an episode's line. Returns the episodes that were written.
    """
    folder = path.parent / IMAGES
    written, lines, pictures = list[Episode](), list[str](), set[Image]()
    for _, group in groupby(zip(heads, episodes, strict=True), lambda pair: pair[1].spec.group):
        members, found = [*group], dict[str, Image]()
        texts = [f'{json.dumps(head)[:-1]}, "episode": {episode.to_json(found)}}}' for head, episode in members]
        new = {image for image in found.values() if not (folder / image.file_name).exists()} - pictures
        room -= sum(len(text.encode()) + 1 for text in texts) + sum(len(image.data) for image in new)
        if room < 0:
            break
        written += [episode for _, episode in members]
        lines += texts
        pictures |= new
    path.parent.mkdir(parents=True, exist_ok=True)
    for image in pictures:  # before the lines that name them
        image.save(folder)
    append_lines(path, lines)
    return written


def read_episodes(path: str | Path) -> Iterator[tuple[int, Episode]]:
    """Yield the step and the episode of each line of an `episodes.jsonl` or `evaluations.jsonl`.

    A half-written last line is left out. Another broken line is skipped, and a warning names the first one.
    """
    with Path(path).open(errors="replace") as file:  # half a line may end in half a character
        yield from parsed(Path(path), file, partial(episode_of, path=Path(path)), logger.warning)


def episode_of(line: str | bytes, path: Path) -> tuple[int, Episode]:
    """Return the step and the episode of a line of this file.

    Raises:
        ValueError, KeyError, TypeError: it is no such line, or a picture that it names is missing.
    """
    record = json.loads(line)
    return record["step"], Episode.from_json(json.dumps(record["episode"]), images=path.parent / IMAGES)


class TokenTexts:
    """Gives the text of each token id of recorded episodes once, so that a reader needs no tokenizer."""

    def __init__(self, decode: Callable[[int], str]) -> None:
        self._decode = decode
        self._known: set[int] = set()

    def new(self, episodes: Iterable[Episode]) -> dict[int, str]:
        """Return the texts of the ids in these episodes that were not given before."""
        ids = {token for episode in episodes for trace in episode.traces for token in trace.ids} - self._known
        self._known |= ids
        return {token: self._decode(token) for token in sorted(ids)}
