"""Rows that choose tools which their environment may not have: found before any row is played."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..registry import EnvironmentSource
from ..tools.row_tools import first_misfit
from ..tools.tool_env import ToolEnv
from .opening_and_closing import close_environment, open_environment
from .rollout_engine import group_specs

Rows = Sequence[Mapping[str, Any]]


async def misfits(
    source: EnvironmentSource, rows: Rows, columns: Iterable[Mapping[str, Any]] | None = None
) -> list[int]:
    """The first row of each `ToolEnv` whose `tools` do not fit the environment's own tools, by its place.

    `reset_task` may choose further tools for a row, so only the row's own reset decides whether it can be played. An
    environment is reset for this if one of its rows chooses tools.

    Args:
        source: Makes the environments.
        rows: All rows.
        columns: The columns `tools` and `environment` of all rows, if these can be read faster than the rows.
    """
    choosing: dict[str | None, list[tuple[int, Mapping[str, Any]]]] = {}
    for place, row in enumerate(rows if columns is None else columns):
        if isinstance(row, Mapping) and row.get("tools") is not None:
            with contextlib.suppress(ValueError):  # it chooses no environment, which is found when it is drawn
                choosing.setdefault(source.choose(row), []).append((place, row))
    found = []
    for chosen in choosing.values():
        places, several = zip(*chosen, strict=True)
        misfit = await _first_misfit(source, rows[places[0]], several)
        if misfit is not None:
            found.append(places[misfit])
    return found


async def _first_misfit(source: EnvironmentSource, row: Mapping[str, Any], several: Rows) -> int | None:
    """The place among these rows; the environment is reset with one of them, without its choice of tools."""
    plain = {column: value for column, value in row.items() if column != "tools"}
    [spec] = group_specs("tools", plain, group_size=1, seed=0)
    environment = await open_environment(source.create, spec)
    try:
        core = environment.unwrapped
        if not isinstance(core, ToolEnv):
            return None
        try:
            await core.areset(seed=spec.task.seed, options={"task": spec.task.row})
        except Exception:  # the row is wrong in another way, which its own reset tells
            return 0
        return first_misfit(core, several)
    finally:
        await close_environment(environment)
