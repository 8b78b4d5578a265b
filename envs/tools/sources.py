"""Tools that exist only while something is open, such as the tools of a server."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from .tool import Tool


@dataclass(kw_only=True, slots=True, frozen=True)
class OpenTools:
    """The tools of an open source, and how to close it."""

    tools: Sequence[Tool]
    close: Callable[[], Awaitable[None]]  # called exactly once, perhaps in another task and another event loop


class ToolSource(abc.ABC):
    """Something that has tools while it is open. Put it among the `tools` of a `ToolEnv`.

    The environment opens it at each reset, and closes it when the environment is closed or reset again. All copies of
    the environment share the source itself.
    """

    @abc.abstractmethod
    async def open(self) -> OpenTools:
        """Open it for one episode. If this raises or is cancelled, nothing stays open."""


class OpenSources:
    """The sources of one environment."""

    def __init__(self, sources: Iterable[ToolSource] = ()) -> None:
        self._sources = tuple(sources)
        self._opened = AsyncExitStack()
        self.tools: list[Tool] = []  # of the open sources, in the order of the sources

    def __bool__(self) -> bool:
        return bool(self._sources)

    async def open(self) -> None:
        """Open all sources for an episode, and close those of the episode before."""
        await self.close()
        for source in self._sources:
            opened = await source.open()
            self._opened.push_async_callback(opened.close)
            self.tools += opened.tools

    async def close(self) -> None:
        """Close the open sources, the last one first. An error or a cancellation does not keep the others open."""
        self.tools = []
        await self._opened.aclose()


ToolLike = Callable[..., Any] | Tool | ToolSource
"""What the `tools` of a `ToolEnv` may be."""
