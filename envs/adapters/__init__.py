"""Environments and tools that others made, as gymnast's own. A package is imported when its adapter is used."""

from .mcp import MCPTools
from .mcp_connection import MCPServerError, MCPToolError

__all__ = [
    "MCPServerError",
    "MCPToolError",
    "MCPTools",
]
