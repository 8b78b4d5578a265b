"""MCPTools: the tools of an MCP server as tools of a `ToolEnv`, by the official client."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...sandbox.cancellation import finish
from ..core import ConfigurationError
from ..extras import needs_extra
from ..tools.sources import ToolSource
from ..tools.tool import Tool
from .json_schema import described_tool, name_for_model
from .mcp_connection import MCPConnection

if TYPE_CHECKING:
    import mcp
    from mcp.server import MCPServer, Server

    ServerLike = str | mcp.StdioServerParameters | MCPServer[Any] | Server[Any]


logger = logging.getLogger("gymnast.envs")


class MCPTools(ToolSource):
    """The tools of an MCP server, for the `tools` of a `ToolEnv`.

        from mcp import StdioServerParameters

        files = MCPTools(StdioServerParameters(command="my-server", args=["--root", "data"]))
        environment = ToolEnv([files, final_answer])

    Each episode has a server of its own, unless it is at a URL: it is started by `reset` and ended with the episode. A
    tool's own error is told to the model. If the server itself dies, the episode fails with `MCPServerError`.
    """

    def __init__(
        self,
        server: ServerLike | Callable[[], Any],
        include: Sequence[str] | None = None,
        *,
        share: bool = False,
        prefix: str = "",
        start_timeout: float = 30.0,
    ) -> None:
        """Name a server; it is started by the first episode.

        Args:
            server: `StdioServerParameters` of a process, the URL of a server, or a server object in this process. Or a
                function (it may be `async`) that returns one of these: it is called for each server that is started.
                A URL or an object is the same server for all episodes. What one episode changes there, others may see:
                the protocol has no sessions since its version 2026-07-28.
            include: Names of the tools to offer; None for all of them.
            share: Episodes that are open at the same time share one server. It ends with the last of them, and the
                next episode starts a new one.
            prefix: Goes before the tools' names, for instance if two servers have tools of the same name.
            start_timeout: Seconds until the server must have listed its tools.

        The time limit of a call is the environment's `tool_timeout`.

        Raises:
            MissingExtraError: the package `mcp` is not installed.
            TypeError: `include` is a str.
            ValueError: `start_timeout` is not positive, or a text is no URL.
        """
        with needs_extra("mcp", "MCPTools"):
            import mcp  # noqa: F401  (here: it takes a second, which would block the event loop in `open`)
        if isinstance(include, str):
            raise TypeError(f"include must be a list of names of tools, got a str: {include!r}")
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            raise ValueError(
                f"a server that is given as text is a URL such as http://localhost:8000/mcp, got {server!r}; a command "
                f"is mcp.StdioServerParameters(command=..., args=[...])"
            )
        if start_timeout <= 0:
            raise ValueError(f"start_timeout must be positive, got {start_timeout}")
        self._server = server
        self._include = include
        self._share = share
        self._prefix = prefix
        self._start_timeout = start_timeout
        self._shared: dict[asyncio.AbstractEventLoop, MCPConnection] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sequence[Tool]]:
        """Start the server, or join the shared one, and yield its tools.

        Raises:
            ConfigurationError: its command is not there, or `include` or the tools' names are wrong.
            MCPServerError: it did not start.
        """
        connection = self._connection()
        connection.users += 1
        try:
            described = self._chosen(await connection.started())
            tools = []
            for name, tool in _names(described, self._prefix).items():
                call, description = functools.partial(connection.call, tool.name), tool.description or tool.title
                tools.append(described_tool(name, description or tool.name, tool.input_schema, call))
            is_common = connection.common_server is not None and not self._share
            if is_common and (changing := [tool.name for tool in described if not _only_reads(tool)]):
                _warn_of_shared_state(connection.common_server, tuple(changing))
            yield tools
        finally:
            connection.users -= 1
            if not connection.users:
                if self._shared.get(connection.loop) is connection:
                    del self._shared[connection.loop]
                await finish(connection.close())

    def _connection(self) -> MCPConnection:
        if not self._share:
            return MCPConnection(self._server, self._start_timeout)
        loop = asyncio.get_running_loop()
        known = self._shared.get(loop)
        if known is None or known.is_dead:
            known = self._shared[loop] = MCPConnection(self._server, self._start_timeout)
        return known

    def _chosen(self, tools: Sequence[mcp.Tool]) -> Sequence[mcp.Tool]:
        if self._include is None:
            return tools
        by_name = {tool.name: tool for tool in tools}
        missing = [name for name in self._include if name not in by_name]
        if missing:
            raise ConfigurationError(f"the MCP server has no tool {missing[0]!r}; its tools are {sorted(by_name)}")
        return [by_name[name] for name in self._include]


def _only_reads(tool: mcp.Tool) -> bool:
    return bool(tool.annotations and tool.annotations.read_only_hint)


@functools.lru_cache(maxsize=128)  # so that each server is warned of once
def _warn_of_shared_state(server: Any, changing: tuple[str, ...]) -> None:
    logger.warning(
        "the MCP server %s cannot tell episodes apart, so what %s may change is shared by all episodes: give each a "
        "server of its own, by StdioServerParameters or a function that makes it, or let the tools take the id of an "
        "episode; a tool that only reads says so by its readOnlyHint. This is logged once.",
        "at a URL" if isinstance(server, str) else "in this process",
        ", ".join(changing),
    )


def _names(tools: Sequence[mcp.Tool], prefix: str) -> dict[str, mcp.Tool]:
    """Return the tools by their names for the model."""
    taken: dict[str, mcp.Tool] = {}
    for tool in tools:
        name = name_for_model(prefix + tool.name)
        if name in taken:
            raise ConfigurationError(
                f"the MCP server's tools {taken[name].name!r} and {tool.name!r} would both be named {name!r} for the "
                f"model: offer only one of them, with include=[...]"
            )
        taken[name] = tool
    return taken
