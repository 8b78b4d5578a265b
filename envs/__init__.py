"""Environments that speak chat messages, and the engine that plays them; start reading at `core.py`.

The way of an episode:

1. `RolloutEngine.run` (engine/rollout_engine.py) starts one task for each `EpisodeSpec`.
2. `play_episode` (engine/play_episode.py) makes the environment and resets it. In each turn the `Policy` answers and
   `Environment.astep` replies.
3. `ToolEnv.astep` (tool_env/tool_env.py) runs the answer's tool calls by `call_tools` (tools/execution.py).
4. `Environment.agrade` judges the episode, and `Rewards.add` (rewards.py) adds the rewards of reward functions.
"""

from .cassettes.cassette import UnrecordedCallError
from .code.code_env import CodeEnv, DefaultEnv
from .core import (
    BrokenEnvironmentError,
    ConfigurationError,
    Environment,
    LimitReachedError,
    MalformedCall,
    Message,
    OverlongPromptError,
    StepResult,
    StopReason,
    ToolCall,
    ToolSchema,
)
from .engine.episode_model import EpisodeModel
from .engine.failures import EpisodeFailedError, failure_counts, failure_summary
from .engine.play_episode import EpisodeLimits, play_episode
from .engine.rollout_engine import RolloutEngine, episode_specs, group_specs
from .episode import Episode, EpisodeSpec, Failure, Task, ToolCallRecord, Turn
from .examples.calculator import Calculator
from .images import Image
from .policies.openai_policy import OpenAIPolicy
from .policy import Act, Conversation, Policy, ScriptedPolicy, tool_call, tool_calls
from .registry import EnvironmentSource, register_environments
from .rewards import Rewards, matches, per_episode
from .tasks.harbor import UnfitTaskError, harbor_tasks
from .tasks.task_env import TaskEnv
from .tokens import Tokens, TokenTrace
from .tool_env.tool_env import ToolEnv
from .tools.mark import final_answer, tool
from .tools.tool import Tool

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
    "EpisodeModel",
    "EpisodeSpec",
    "Failure",
    "Image",
    "LimitReachedError",
    "MalformedCall",
    "Message",
    "OpenAIPolicy",
    "OverlongPromptError",
    "Policy",
    "Rewards",
    "RolloutEngine",
    "ScriptedPolicy",
    "StepResult",
    "StopReason",
    "Task",
    "TaskEnv",
    "TokenTrace",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolCallRecord",
    "ToolEnv",
    "ToolSchema",
    "Turn",
    "UnfitTaskError",
    "UnrecordedCallError",
    "episode_specs",
    "failure_counts",
    "failure_summary",
    "final_answer",
    "group_specs",
    "harbor_tasks",
    "matches",
    "per_episode",
    "play_episode",
    "tool",
    "tool_call",
    "tool_calls",
]

register_environments()
