"""Learning from episodes: exact tokens, advantages, losses, trainers; start reading at `trainer.py`."""

from .chat import ChatFormat, recognise_tool_format
from .config import GRPOConfig, RLOOConfig
from .families import FORMATS
from .generation import Generation, GenerationRequest, Generator, Sampling, TransformersGenerator
from .groups import RolloutError
from .losses import LOSSES
from .progress import RichProgress
from .prompt_tools import PromptedFormat
from .recognition import Recognition
from .run_folder import RunFolder
from .token_policy import TokenBudgets, TokenPolicy
from .tool_formats import Conventions, KnownFormat, TextFormat, ToolFormat, tagged
from .trainer import AgentTrainer, GRPOTrainer, RLOOTrainer

__all__ = [
    "FORMATS",
    "LOSSES",
    "AgentTrainer",
    "ChatFormat",
    "Conventions",
    "GRPOConfig",
    "GRPOTrainer",
    "Generation",
    "GenerationRequest",
    "Generator",
    "KnownFormat",
    "PromptedFormat",
    "RLOOConfig",
    "RLOOTrainer",
    "Recognition",
    "RichProgress",
    "RolloutError",
    "RunFolder",
    "Sampling",
    "TextFormat",
    "TokenBudgets",
    "TokenPolicy",
    "ToolFormat",
    "TransformersGenerator",
    "recognise_tool_format",
    "tagged",
]
