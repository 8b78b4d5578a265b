"""Learning from episodes: exact tokens, advantages, losses, trainers; start reading at `trainer.py`."""

from ..envs.extras import needs_extra

with needs_extra("train", "gymnast.trainer"):
    import accelerate  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

from ..envs.engine.compaction import EveryTurn, last_images
from .chat.chat_format import ChatFormat, recognise_tool_format
from .chat.prompted_tools import PromptedFormat
from .chat.recognition import Recognition
from .generation.contract import Generation, GenerationRequest, Generator
from .generation.sampling import Sampling
from .generation.transformers_generator import TransformersGenerator
from .learning import losses
from .learning.advantages import ESTIMATORS, Estimator
from .learning.corrections import CORRECTIONS, Correction, Mismatch
from .learning.losses import LOSSES, Loss
from .learning.settings import LearningSettings
from .loop.nonfinite import NonFiniteError
from .models.named_weights import whole_weights
from .options.algorithms import GRPOConfig, RLOOConfig
from .rollout.compaction import strip_thoughts
from .rollout.failures import RolloutError
from .rollout.settings import TokenBudgets
from .rollout.token_policy import TokenPolicy
from .run_log.progress import RichProgress
from .run_log.run_folder import RunFolder
from .testing import conformance
from .tool_calls.families import FORMATS
from .tool_calls.formats import Conventions, KnownFormat, TextFormat, ToolFormat
from .tool_calls.spans import tagged
from .trainer import AgentTrainer, GRPOTrainer, RLOOTrainer

__all__ = [
    "CORRECTIONS",
    "ESTIMATORS",
    "FORMATS",
    "LOSSES",
    "AgentTrainer",
    "ChatFormat",
    "Conventions",
    "Correction",
    "Estimator",
    "EveryTurn",
    "GRPOConfig",
    "GRPOTrainer",
    "Generation",
    "GenerationRequest",
    "Generator",
    "KnownFormat",
    "LearningSettings",
    "Loss",
    "Mismatch",
    "NonFiniteError",
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
    "conformance",
    "last_images",
    "losses",
    "recognise_tool_format",
    "strip_thoughts",
    "tagged",
    "whole_weights",
]
