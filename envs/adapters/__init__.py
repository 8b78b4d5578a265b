"""Environments and tools that others made, as gymnast's own. A package is imported when its adapter is used."""

from .gymnasium import GymnasiumEnv
from .mcp import MCPTools
from .mcp_connection import MCPServerError, MCPToolError
from .openenv import OpenEnvEnvironment, OpenEnvServerError
from .openenv_server import openenv_app
from .reasoning_gym import ReasoningGymEnv
from .text_games import TextGameEnv
from .trl import to_trl, trl_rows

__all__ = [
    "GymnasiumEnv",
    "MCPServerError",
    "MCPToolError",
    "MCPTools",
    "OpenEnvEnvironment",
    "OpenEnvServerError",
    "ReasoningGymEnv",
    "TextGameEnv",
    "openenv_app",
    "to_trl",
    "trl_rows",
]
