"""The exact tokens of each turn of an episode."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from ...envs.episode import Episode
from ...envs.tokens import TokenTrace


class TurnTokens(NamedTuple):
    """The model's input and answer in one turn."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


def turn_tokens(episode: Episode) -> list[TurnTokens | None]:
    """The tokens of each turn; None for turns without tokens, such as those of a server's model."""
    found: list[TurnTokens | None] = []
    traces = iter(episode.traces)
    trace: TokenTrace | None = next(traces, None)
    start = 0  # in the completion of the trace
    for turn in episode.turns:
        while trace is not None and turn.num_tokens and sum(trace.mask[start:]) < turn.num_tokens:
            trace, start = next(traces, None), 0  # the history was rewritten
        if trace is None or not turn.num_tokens:
            found.append(None)
            continue
        sampled = (place for place in range(start, len(trace.mask)) if trace.mask[place])
        places = list(islice(sampled, turn.num_tokens))
        found.append(
            TurnTokens(
                trace.prompt_ids + trace.completion_ids[: places[0]],
                [trace.completion_ids[place] for place in places],
                [trace.logprobs[place] for place in places],
            )
        )
        start = places[-1] + 1
    return found
