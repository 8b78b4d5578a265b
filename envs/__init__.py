"""Environments that speak chat messages, and the engine that plays them; start reading at `core.py`."""

from .calculator import Calculator
from .code_env import CodeEnv, DefaultEnv
from .core import (
    BrokenEnvironmentError,
    ConfigurationError,
    Environment,
    MalformedCall,
    Message,
    OverlongPromptError,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolSchema,
)
from .episode import Episode, EpisodeSpec, Failure, TokenTrace, ToolCallRecord, Turn
from .play import EpisodeLimits, play_episode
from .policy import Act, Conversation, Policy, ScriptedPolicy, tool_call, tool_calls
from .registry import EnvironmentSource, register_environments
from .rewards import Rewards, matches
from .rollout import EpisodeFailedError, RolloutEngine, episode_specs, group_specs
from .tool_env import ToolEnv, final_answer
from .tools import Tool, tool

__all__ = [
    "Act",
    "BrokenEnvironmentError",
    "Calculator",
    "CodeEnv",
    "ConfigurationError",
    "Conversation",
    "DefaultEnv",
    "Environment",
    "EnvironmentSource",
    "Episode",
    "EpisodeFailedError",
    "EpisodeLimits",
    "EpisodeSpec",
    "Failure",
    "MalformedCall",
    "Message",
    "OverlongPromptError",
    "Policy",
    "Rewards",
    "RolloutEngine",
    "ScriptedPolicy",
    "StepResult",
    "StopReason",
    "Task",
    "TokenTrace",
    "Tool",
    "ToolCall",
    "ToolCallRecord",
    "ToolEnv",
    "ToolSchema",
    "Turn",
    "episode_specs",
    "final_answer",
    "group_specs",
    "matches",
    "play_episode",
    "tool",
    "tool_call",
    "tool_calls",
]

register_environments()
