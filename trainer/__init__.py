"""Learning from episodes: exact tokens, advantages, losses, trainers; start reading at `trainer.py`."""

from .chat import ChatFormat
from .config import GRPOConfig, RLOOConfig
from .generation import Generation, GenerationRequest, Generator, Sampling, TransformersGenerator
from .groups import RolloutError
from .losses import LOSSES
from .progress import RichProgress
from .run_folder import RunFolder
from .token_policy import TokenBudgets, TokenPolicy
from .tool_formats import FORMATS, ToolFormat
from .trainer import AgentTrainer, GRPOTrainer, RLOOTrainer

__all__ = [
    "FORMATS",
    "LOSSES",
    "AgentTrainer",
    "ChatFormat",
    "GRPOConfig",
    "GRPOTrainer",
    "Generation",
    "GenerationRequest",
    "Generator",
    "RLOOConfig",
    "RLOOTrainer",
    "RichProgress",
    "RolloutError",
    "RunFolder",
    "Sampling",
    "TokenBudgets",
    "TokenPolicy",
    "ToolFormat",
    "TransformersGenerator",
]
