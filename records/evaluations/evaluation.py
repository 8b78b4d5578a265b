"""The folder of an evaluation by `gymnast eval`: a run, as `Run` reads it, with the settings in `evaluation.json`.

An episode is written as soon as it is over, so an interrupted evaluation keeps what it has played.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...envs.episode import Episode, EpisodeSpec
from ...envs.runtime.line_files import parsed
from ..files.episode_log import append_episodes, episode_of
from ..files.evaluated_episodes import evaluated_head
from ..files.run_files import EVALUATION_FILE, line_file, line_files, read_lines, replace_lines

logger = logging.getLogger(__name__)


class Evaluation:
    """The episodes of an evaluation, in memory and in their file."""

    def __init__(self, folder: Path, episodes: Iterable[Episode] = ()) -> None:
        self.path = line_file(folder, "evaluations")
        self.metrics_path = line_file(folder, "metrics")
        self.episodes = [*episodes]

    @classmethod
    def begin(cls, folder: Path, settings: Mapping[str, Any]) -> Evaluation:
        """Make a new folder.

        Raises:
            FileExistsError: it holds a run.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if line_files(folder):
            raise FileExistsError(f"{folder} holds a run; name another folder")
        with (folder / EVALUATION_FILE).open("x") as file:
            file.write(json.dumps(settings, ensure_ascii=False) + "\n")
        evaluation = cls(folder)
        evaluation.path.touch()  # a page may follow it from now on
        return evaluation

    @classmethod
    def resume(cls, folder: Path, settings: Mapping[str, Any]) -> Evaluation:
        """Read a folder, to add to it the episodes that it lacks; failed ones are dropped, and played again.

        Raises:
            ValueError: the folder holds an evaluation with other settings, or none.
        """
        path = folder / EVALUATION_FILE
        if not path.is_file():
            raise ValueError(f"{folder} does not hold an evaluation: `gymnast eval` writes them")
        found = json.loads(path.read_text())
        differ = [
            f"{name} was {found.get(name)!r} and is {value!r}"
            for name, value in json.loads(json.dumps(settings)).items()
            if found.get(name) != value
        ]
        if differ:
            raise ValueError(f"{folder} holds another evaluation: {'; '.join(differ)}. Name another folder")
        evaluation = cls(folder)
        lines = read_lines(evaluation.path)
        known = parsed(
            evaluation.path, lines, lambda line: (line, episode_of(line, evaluation.path)[1]), logger.warning
        )
        kept = [(line, episode) for line, episode in known if not episode.stop.is_failure]
        replace_lines(evaluation.path, [line for line, _ in kept])
        evaluation.metrics_path.unlink(missing_ok=True)
        evaluation.episodes = [episode for _, episode in kept]
        return evaluation

    def add(self, episode: Episode, tokens: Mapping[int, str] | None = None) -> None:
        """Keep an episode, and append it to the file, with these texts of its tokens."""
        self.episodes.append(episode)
        append_episodes(self.path, [evaluated_head(tokens=tokens)], [episode])

    def missing(self, specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
        """Return the specs without an episode."""
        known = {(episode.spec.group, episode.spec.member) for episode in self.episodes}
        return [spec for spec in specs if (spec.group, spec.member) not in known]

    def finish(self, summary: Mapping[str, Any], seconds: float) -> None:
        """Write the figures of a `summary_of` as the metrics of a trainer's evaluation."""
        known = {name: value for name, value in summary.items() if name.startswith(("pass@", "reward"))}
        metrics = {**known, "episodes/failed": summary["failed"], "runtime": seconds}
        line = {"step": 0} | {f"eval_{name}": value for name, value in metrics.items()}
        replace_lines(self.metrics_path, [json.dumps(line) + "\n"])
