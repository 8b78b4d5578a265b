"""GRPOConfig and RLOOConfig: the defaults and the own options of each algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..learning.losses import LOSSES
from .config import AgentConfig
from .fields import OneOf, Weight, documented, option
from .rules import RULES


@documented
@dataclass
class GRPOConfig(AgentConfig):
    """Options of `GRPOTrainer`: those below, and the others of `transformers.TrainingArguments`."""

    default_estimator = "grpo"
    default_kl_in = "loss"
    rules = RULES

    use_bias_correction_kl: bool = option(
        True, "Whether the divergence at a token is multiplied by the token's ratio, with kl_in='loss'."
    )


@documented
@dataclass
class RLOOConfig(AgentConfig):
    """Options of `RLOOTrainer`: those below, and the others of `transformers.TrainingArguments`."""

    default_estimator = "rloo"
    default_kl_in = "reward"
    rules = RULES

    beta: Weight = option(0.05, AgentConfig.__dataclass_fields__["beta"].metadata["help"])
    loss_type: Annotated[str, OneOf(LOSSES)] = option(
        "rloo", AgentConfig.__dataclass_fields__["loss_type"].metadata["help"]
    )
