"""The file of an evaluation: its settings in the first line, then one line for each episode.

An episode is written as soon as it is over, so an interrupted evaluation keeps what it has played.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from ...envs.episode import Episode, EpisodeSpec
from ...envs.line_files import append_lines, parsed
from ..terminal.exits import CommandError

KIND = "gymnast evaluation"


class Results:
    """Episodes of an evaluation, in memory and in its file."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        self._episodes: dict[tuple[str, int], Episode] = {}  # by group and member; a later one replaces an earlier

    @classmethod
    def begin(cls, path: Path, settings: Mapping[str, Any]) -> Results:
        """Make a new file.

        Raises:
            CommandError: it exists.
        """
        if path.exists():
            raise CommandError(f"{path} exists: --resume plays what is missing in it, --output names another file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"kind": KIND, **settings}, ensure_ascii=False) + "\n")
        return cls(path, settings)

    @classmethod
    def resume(cls, path: Path, settings: Mapping[str, Any]) -> Results:
        """Read a file, to add to it the episodes that it lacks.

        Raises:
            CommandError: the file holds an evaluation with other settings, or something else.
        """
        found = cls.read(path)
        differ = [
            f"{name} was {found.settings.get(name)!r} and is {value!r}"
            for name, value in json.loads(json.dumps(settings)).items()
            if found.settings.get(name) != value
        ]
        if differ:
            raise CommandError(f"{path} holds another evaluation: {'; '.join(differ)}. Name another --output")
        written = path.read_bytes()
        path.write_bytes(written[: written.rfind(b"\n") + 1])  # a killed process may have left half a line
        return found

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file. Half a last line is left out; another broken line is skipped, and named on standard error.

        Raises:
            CommandError: it cannot be read, or holds something else.
        """
        try:
            with path.open(errors="replace") as file:  # half a line may end in half a character
                lines = [line for line in file if line.endswith("\n")]
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}") from error
        try:
            settings = json.loads(lines[0]) if lines else {}
        except ValueError:
            settings = {}
        if not isinstance(settings, dict) or settings.pop("kind", None) != KIND:
            raise CommandError(f"{path} does not hold an evaluation: `gymnast eval` writes them")
        results = cls(path, settings)
        for episode in parsed(path, lines[1:], Episode.from_json, partial(typer.echo, err=True), first=2):
            results._keep(episode)
        return results

    def add(self, episode: Episode) -> None:
        """Keep an episode, and append it to the file."""
        self._keep(episode)
        append_lines(self.path, [episode.to_json()])

    def _keep(self, episode: Episode) -> None:
        self._episodes[episode.spec.group, episode.spec.member] = episode

    def missing(self, specs: Iterable[EpisodeSpec]) -> list[EpisodeSpec]:
        """The specs without an episode, or with a failed one, which is played again."""
        kept = {key for key, episode in self._episodes.items() if not episode.stop.is_failure}
        return [spec for spec in specs if (spec.group, spec.member) not in kept]

    @property
    def episodes(self) -> Sequence[Episode]:
        """All episodes, by task and member."""
        return [*self._episodes.values()]
