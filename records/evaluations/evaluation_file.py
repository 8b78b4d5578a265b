"""The file of an evaluation: its settings in the first line, then one line for each episode.

An episode is written as soon as it is over, so an interrupted evaluation keeps what it has played.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...envs.episode import Episode, EpisodeSpec
from ...envs.runtime.line_files import append_lines, parsed

KIND = "gymnast evaluation"

logger = logging.getLogger(__name__)


class EvaluationFile:
    """The episodes of an evaluation, in memory and in their file."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        self._episodes: dict[tuple[str, int], Episode] = {}  # by group and member; a later one replaces an earlier

    @classmethod
    def begin(cls, path: Path, settings: Mapping[str, Any]) -> EvaluationFile:
        """Make a new file.

        Raises:
            FileExistsError: it exists.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(json.dumps({"kind": KIND, **settings}, ensure_ascii=False) + "\n")
        return cls(path, settings)

    @classmethod
    def resume(cls, path: Path, settings: Mapping[str, Any]) -> EvaluationFile:
        """Read a file, to add to it the episodes that it lacks.

        Raises:
            ValueError: the file holds an evaluation with other settings, or something else.
        """
        found = cls.read(path)
        differ = [
            f"{name} was {found.settings.get(name)!r} and is {value!r}"
            for name, value in json.loads(json.dumps(settings)).items()
            if found.settings.get(name) != value
        ]
        if differ:
            raise ValueError(f"{path} holds another evaluation: {'; '.join(differ)}. Name another file")
        written = path.read_bytes()
        path.write_bytes(written[: written.rfind(b"\n") + 1])  # a killed process may have left half a line
        return found

    @classmethod
    def read(cls, path: str | Path, warn: Callable[[str], object] = logger.warning) -> EvaluationFile:
        """Read a file. Half a last line is left out; another broken line is skipped, and `warn` is told of it.

        Raises:
            OSError: it cannot be read.
            ValueError: it holds something else.
        """
        path = Path(path)
        with path.open(errors="replace") as file:  # half a line may end in half a character
            lines = [line for line in file if line.endswith("\n")]
        try:
            settings = json.loads(lines[0]) if lines else {}
        except ValueError:
            settings = {}
        if not isinstance(settings, dict) or settings.pop("kind", None) != KIND:
            raise ValueError(f"{path} does not hold an evaluation: `gymnast eval` writes them")
        evaluation = cls(path, settings)
        for episode in parsed(path, lines[1:], Episode.from_json, warn, first=2):
            evaluation._keep(episode)
        return evaluation

    def add(self, episode: Episode) -> None:
        """Keep an episode, and append it to the file."""
        self._keep(episode)
        append_lines(self.path, [episode.to_json()])

    def _keep(self, episode: Episode) -> None:
        self._episodes[episode.spec.group, episode.spec.member] = episode

    def missing(self, specs: Iterable[EpisodeSpec]) -> list[EpisodeSpec]:
        """Return the specs without an episode, or with a failed one, which is played again."""
        kept = {key for key, episode in self._episodes.items() if not episode.stop.is_failure}
        return [spec for spec in specs if (spec.group, spec.member) not in kept]

    @property
    def episodes(self) -> Sequence[Episode]:
        """All episodes, by task and member."""
        return [*self._episodes.values()]
