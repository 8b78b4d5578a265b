"""Begins an episode without playing it, for checks before a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from ..core import Message, ToolSchema
from ..episode import EpisodeSpec, Failure
from .play_episode import EpisodeLimits, play_episode


class _Begun(Exception):
    """Ends the episode of a check."""


async def begin_episode(
    spec: EpisodeSpec,
    environment: gymnasium.Env[Any, Any],
    look: Callable[[Sequence[Message], Sequence[ToolSchema]], Any],
    limits: EpisodeLimits,
) -> Failure | None:
    """Reset the environment as the engine does, look at it, and close it; the failure, if it cannot begin.

    `look` is called with the first messages and the tools. An exception that it raises is a failure, too.

    Raises:
        ConfigurationError: a mistake that every other episode would meet again.
    """

    class Looks:
        def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Any:
            look(messages, tools)
            raise _Begun

    failure = (await play_episode(spec, lambda spec: environment, Looks(), limits)).failure
    return None if failure is None or failure.type == _Begun.__name__ else failure
