"""An MCP server for the tests; run as a program, it is a process that speaks over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from mcp import MCPError, StdioServerParameters
from mcp.server import MCPServer, Server
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CONNECTION_CLOSED, CallToolResult, ImageContent, ListToolsResult, TextContent, ToolAnnotations
from mcp.types import Tool as McpTool

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"


def make_server() -> MCPServer[Any]:
    """A server that counts; each server has a counter of its own."""
    server = MCPServer("counter", log_level="CRITICAL")
    count = 0

    @server.tool()
    def add(by: int, note: str = "") -> int:
        """Add to the counter, and return its value."""
        nonlocal count
        count += by
        return count

    @server.tool()
    def refuse(city: str) -> str:
        """Refuse a city."""
        raise ToolError(f"there is no city {city}")

    @server.tool(name="draw.picture")
    def draw() -> list[TextContent | ImageContent]:
        """Draw."""
        return [TextContent(type="text", text="a dot"), ImageContent(type="image", data=DOT, mime_type="image/png")]

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def process_id() -> int:
        """The id of the server's process."""
        return os.getpid()

    @server.tool()
    async def wait() -> str:
        """Wait for ever."""
        import anyio

        await anyio.sleep_forever()
        return "never"

    @server.tool()
    def die() -> str:
        """End the process without an answer."""
        os._exit(3)

    return server


def make_strict_server() -> Server[Any]:
    """A server that takes no unknown arguments, refuses every call, and lists its tools only once."""
    listed = False

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        nonlocal listed
        if listed:
            await asyncio.Event().wait()
        listed = True
        schema = {"type": "object", "properties": {"by": {}}, "patternProperties": {"^x-": {}}, "minProperties": 1}
        tools = [McpTool(name=name, input_schema=schema | {"additionalProperties": False}) for name in ("a.b", "a_b")]
        return ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        raise MCPError(CONNECTION_CLOSED, "there is no connection to the shop")

    return Server("strict", on_list_tools=list_tools, on_call_tool=call_tool)


@contextlib.contextmanager
def served_over_http() -> Iterator[str]:
    """The URL of one server, which ends with the context, with its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(make_server().streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)


PROCESS = StdioServerParameters(command=sys.executable, args=["-I", __file__])

if __name__ == "__main__":
    make_server().run()
