"""`evaluations.jsonl`: the episodes of an evaluation that stands alone, or of those of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...envs.episode import Episode
from .episode_log import MOST_BYTES, ROUNDS, TokenTexts, append_episodes, recorded_bytes
from .run_files import keep_lines_until, line_file

TITLE = "evaluation"
"""The title of the only data set that is evaluated; see `EvaluationLog.title`."""


def evaluated_head(*, step: int = 0, title: str = TITLE, tokens: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return the fields, besides the episode, of the line of an episode played after this number of optimiser steps.

    `tokens` are texts of token ids that no earlier line has.
    """
    return {"step": step, "title": title} | ({"tokens": tokens} if tokens else {})


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
            evaluations = ROUNDS + 1  # step 0 has one, too
            room = min(MOST_BYTES // evaluations // data_sets, MOST_BYTES - recorded_bytes(self.path))
        last = self._last.get(title)
        if not every or (max_steps and last is not None and step // every <= last // every):
            return
        self._last[title] = step
        heads = (evaluated_head(step=step, title=title, tokens=texts.new([one])) for one in episodes)
        append_episodes(self.path, heads, episodes, room)
