"""Environments and tools that others made, as gymnast's own. A package is imported when its adapter is used."""

from .gymnasium import GymnasiumEnv
from .mcp import MCPTools
from .mcp_connection import MCPServerError, MCPToolError
from .openenv import OpenEnvEnvironment, OpenEnvServerError
from .openenv_server import openenv_app
from .reasoning_gym import ReasoningGymEnv
from .smolagents_episode import SmolagentsEpisode
from .smolagents_model import smolagents_model
from .smolagents_tools import from_smolagents
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
    "SmolagentsEpisode",
    "TextGameEnv",
    "from_smolagents",
    "openenv_app",
    "smolagents_model",
    "to_trl",
    "trl_rows",
]
