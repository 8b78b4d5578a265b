"""The exact tokens of each turn of an episode."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from ...envs.episode import Episode


class TurnTokens(NamedTuple):
    """The model's input and answer in one turn."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


def turn_tokens(episode: Episode) -> list[TurnTokens | None]:
    """Return the tokens of each turn; None for turns without tokens, such as those of a server's model."""
    found: list[TurnTokens | None] = []
    sampled = [iter([place for place, mask in enumerate(trace.mask) if mask]) for trace in episode.traces]
    for turn in episode.turns:
        if not episode.traces or not turn.num_tokens:
            found.append(None)
            continue
        trace = episode.traces[turn.sample]
        places = list(islice(sampled[turn.sample], turn.num_tokens))
        found.append(
            TurnTokens(
                trace.prompt_ids + trace.completion_ids[: places[0]],
                [trace.completion_ids[place] for place in places],
                [trace.logprobs[place] for place in places],
            )
        )
    return found
