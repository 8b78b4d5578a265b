"""Begins an episode without playing it, and looks for rows whose tools do not fit: for checks before a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium

from ..core import Message, OverlongPromptError, ToolSchema
from ..episode import EpisodeSpec, Failure
from ..registry import ENVIRONMENT_COLUMN
from ..tool_env.tool_env import ToolEnv
from ..tools.chosen_tools import tools_of_row
from .play_episode import EpisodeLimits, play_episode


async def begin_episode(
    spec: EpisodeSpec,
    environment: gymnasium.Env[Any, Any],
    look: Callable[[Sequence[Message], Sequence[ToolSchema]], Any],
    limits: EpisodeLimits,
) -> Failure | None:
    """Reset the environment as the engine does, look at it, and close it; return the failure, if it cannot begin.

    `look` is called with the first messages and the tools. An exception that it raises is a failure, too; only a
    ConfigurationError is raised again.
    """

    class Looks:
        def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Any:
            look(messages, tools)
            raise OverlongPromptError  # ends the episode before a turn, and is no failure

    return (await play_episode(spec, lambda spec: environment, Looks(), limits)).failure


def first_misfit(environment: Any, rows: Iterable[Any], name: str | None = None) -> int | None:
    """Return the place of the first row whose `tools` do not fit; None if all fit, or for no `ToolEnv`.

    The environment has been reset, so that the tools of a server are known. Its `reset_task` may choose further tools
    for a row, so a row that does not fit may still be playable: only its own reset decides. With a `name`, only rows
    that choose the environment of this name are looked at.
    """
    if not isinstance(environment, ToolEnv):
        return None
    tools, owner = environment._all_tools(), type(environment).__name__
    known: set[str] = set()  # JSON texts that fit: rows often repeat them
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or name not in (None, row.get(ENVIRONMENT_COLUMN)):
            continue
        column = row.get("tools")
        if column is None or (isinstance(column, str) and column in known):
            continue
        try:
            tools_of_row(column, tools, owner)
        except ValueError:
            return place
        if isinstance(column, str):
            known.add(column)
    return None
