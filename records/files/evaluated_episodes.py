"""`evaluations.jsonl`: the episodes of an evaluation that stands alone, or of those of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...envs.episode import Episode
from ...envs.runtime.line_files import append_lines
from .episode_log import MOST_BYTES, ROUNDS, TokenTexts, whole_groups
from .run_files import keep_lines_until, line_file

TITLE = "evaluation"
"""The title of the only data set that is evaluated; see `EvaluationLog.title`."""


def evaluated_line(
    episode: Episode, *, step: int = 0, title: str = TITLE, tokens: Mapping[int, str] | None = None
) -> str:
    """Return the line of an episode that was played after this number of optimiser steps.

    `tokens` are texts of token ids that no earlier line has.
    """
    head = {"step": step, "title": title} | ({"tokens": tokens} if tokens else {})
    return f'{json.dumps(head)[:-1]}, "episode": {episode.to_json()}}}'


class EvaluatedEpisodes:
    """Writes the episodes of a training's evaluations."""

    def __init__(self, folder: str | Path) -> None:
        self.path = line_file(folder, "evaluations")
        self._last: dict[str, int] = {}  # the step of the latest evaluation that was written, by title

    def resume(self, step: int) -> None:
        """Drop the evaluations after this step, which are played again."""
        kept = map(json.loads, keep_lines_until(step, self.path) if self.path.exists() else ())
        self._last = {line["title"]: line["step"] for line in kept}

    def add(
        self,
        title: str,
        step: int,
        episodes: Sequence[Episode],
        *,
        every: int | None,
        max_steps: int,
        data_sets: int,
        texts: TokenTexts,
    ) -> None:
        """Append the episodes of an evaluation, if the rounds of its step are recorded; see `EpisodeLog`.

        Args:
            title: The data set's; each has its share of the file.
            step: Finished optimiser steps.
            episodes: In the order of their groups.
            every: Steps; 0 = write nothing; None = as `EpisodeLog` spreads `ROUNDS` over a training of `max_steps`.
            max_steps: 0 outside a training, where each evaluation is written.
            data_sets: How many are evaluated.
            texts: Of the tokens.
        """
        room = math.inf
        if every is None:
            every = -(-max_steps // ROUNDS) or 1
            size = self.path.stat().st_size if self.path.exists() else 0
            room = min(MOST_BYTES // (ROUNDS + 1) // data_sets, MOST_BYTES - size)  # step 0 has one, too
        last = self._last.get(title)
        if not every or (max_steps and last is not None and step // every <= last // every):
            return
        self._last[title] = step
        lines = (evaluated_line(one, step=step, title=title, tokens=texts.new([one])) for one in episodes)
        written = whole_groups(zip(episodes, lines, strict=True), room)
        append_lines(self.path, [line for _, line in written])
