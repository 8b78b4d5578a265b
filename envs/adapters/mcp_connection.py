"""The connection of `MCPTools` to a server: it starts, is asked, dies and ends."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..core import BrokenEnvironmentError, ConfigurationError
from ..runtime.user_calls import call_function

if TYPE_CHECKING:
    import anyio
    import mcp
    from mcp.types import CallToolResult

ALIVE_SECONDS = 5.0  # for a server to list its tools; a dead one fails at once
WITHOUT_SESSIONS = "2026-07-28"  # the first version of the protocol that has none
CLOSE_SECONDS = 10.0  # for the client's polite end; the client itself gives a process about 6 s

Result = TypeVar("Result")


class MCPServerError(BrokenEnvironmentError):
    """An MCP server did not start, died, or broke the protocol: the episode fails and has no reward."""


class MCPToolError(ValueError):
    """A tool of an MCP server reported an error. The model sees it, and the episode goes on."""


class MCPConnection:
    """A client and its server. One task opens and closes them, since the client's scopes belong to a task."""

    def __init__(self, server: Any, start_timeout: float) -> None:
        self.users = 0
        self.is_dead = False
        self.common_server: Any = None  # the server, once it has started, if episodes see one another's changes there
        self.loop = asyncio.get_running_loop()
        self._client: mcp.Client | None = None
        self._scope: anyio.CancelScope | None = None
        self._tools: asyncio.Future[Sequence[mcp.Tool]] = self.loop.create_future()
        self._stop = asyncio.Event()
        self._task = self.loop.create_task(self._own(server, start_timeout))

    async def started(self) -> Sequence[mcp.Tool]:
        """Wait for the tools of the server."""
        return await asyncio.shield(self._tools)

    async def call(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        """Call a tool; return its result as the content of a message."""
        return await self._on_own_loop(self._call(name, arguments))

    async def close(self) -> None:
        """End the session and a server that was started for it."""
        if not self.loop.is_closed():
            await self._on_own_loop(self._close())

    async def _on_own_loop(self, call: Coroutine[Any, Any, Result]) -> Result:
        # A synchronous `close` or `step` of the environment may run in another event loop.
        if asyncio.get_running_loop() is self.loop:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))

    async def _own(self, server: Any, start_timeout: float) -> None:
        import anyio
        from mcp import Client, StdioServerParameters

        late = MCPServerError(f"the MCP server did not list its tools within {start_timeout:g} s")
        error: Exception | None = None
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + start_timeout) as self._scope:
                made = await _made(server)
                async with Client(made) as self._client:
                    if isinstance(made, str):
                        is_common = self._client.protocol_version >= WITHOUT_SESSIONS
                    else:
                        is_common = made is server and not isinstance(made, StdioServerParameters)
                    self.common_server = made if is_common else None
                    tools = await _all_tools(self._client)
                    self._scope.deadline = math.inf
                    self._tools.set_result(tools)
                    await self._stop.wait()
        except Exception as raised:  # after the start: the end of a server that had died
            error = raised
        self.is_dead = True
        if not self._tools.done():
            self._tools.set_exception(late if error is None else _start_error(error, server))
            self._tools.exception()  # its users may have been cancelled

    async def _close(self) -> None:
        self._stop.set()
        if not self._tools.done():  # no user waits for it any more
            self._cancel()
        done, _ = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if not done:
            self._cancel()
            await asyncio.wait({self._task})

    def _cancel(self) -> None:
        # The client ends its process in spite of anyio's cancellation, but not of asyncio's.
        if self._scope is None:
            self._task.cancel()  # it has not begun
        else:
            self._scope.cancel()

    async def _call(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        import mcp

        assert self._client is not None
        try:
            result = await self._client.call_tool(name, arguments)
        except mcp.MCPError as error:
            if await self._is_alive():
                raise MCPToolError(error.message) from error
            raise MCPServerError(f"the MCP server died while {name!r} was called: {error.message}") from error
        except Exception as error:  # of the transport, or about a result that is not as the protocol says
            raise MCPServerError(f"the MCP server failed when {name!r} was called: {_text_of(error)}") from error
        content = _content(result)
        if result.is_error:
            raise MCPToolError(content if isinstance(content, str) else json.dumps(content))
        return content

    async def _is_alive(self) -> bool:
        """Ask the server, since the code of a closed connection is also free for the servers' own errors."""
        assert self._client is not None
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await self._client.list_tools(cache_mode="refresh")
        except TimeoutError:  # it is busy, perhaps with the call of another episode
            return True
        except Exception:
            self.is_dead = True
        return not self.is_dead


async def _made(server: Any) -> Any:
    """Return the server, which a function may have to make."""
    from mcp.server import MCPServer, Server

    if isinstance(server, MCPServer | Server) or not callable(server):
        return server
    return await call_function(server)


async def _all_tools(client: mcp.Client) -> list[mcp.Tool]:
    tools: list[mcp.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools


def _start_error(error: Exception, server: Any) -> Exception:
    first: BaseException = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, FileNotFoundError | PermissionError | ConfigurationError | TypeError):
        wrong: Exception = ConfigurationError(f"the MCP server cannot be started: {_text_of(first)}")
    else:
        place = f" at {server}" if isinstance(server, str) else ""
        wrong = MCPServerError(f"the MCP server{place} did not start: {_text_of(first)}")
    wrong.__cause__ = error
    return wrong


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _content(result: CallToolResult) -> str | list[dict[str, Any]]:
    """Return the blocks of a result as a message's content: text, or parts if there are pictures or sounds."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(block: Any) -> dict[str, Any]:
    if block.type in ("image", "audio"):
        return {"type": block.type, "base64": block.data}
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type == "resource_link":
        return {"type": "text", "text": str(block.uri)}
    resource = block.resource
    text = getattr(resource, "text", None)  # a resource holds either text or bytes
    return {"type": "text", "text": f"<{resource.mime_type or 'bytes'} at {resource.uri}>" if text is None else text}
