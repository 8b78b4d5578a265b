"""Tools that end the episode because the environment names them, not by a mark of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from ..core import ConfigurationError
from .tool import Tool, unknown_tool


def check_final_tools(names: Any, known: Collection[str] | None, owner: str) -> None:
    """Check the names of tools that end the episode; `known` are all tools, None if they are not known yet.

    Raises:
        TypeError: it is not a collection of names.
        ConfigurationError: no tool has one of the names.
    """
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"final_tools must be a list of names of tools, got {type(names).__name__}: {names!r}")
    unknown = [] if known is None else [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"final_tools names {unknown_tool(unknown[0], known or ())} of {owner}. A tool that reset_task adds is "
            f"marked with tool(final=True)(function)"
        )


def with_final(tools: Mapping[str, Tool], names: Collection[str]) -> dict[str, Tool]:
    """The tools, of which those with these names are final."""
    return {
        name: dataclasses.replace(each, final=True, parallel=False) if name in names and not each.final else each
        for name, each in tools.items()
    }
