"""PlaySettings: all that a model needs to play, token budgets included, beside its tokenizer and an environment."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...envs.engine.play_episode import EpisodeLimits
from ..chat.chat_template import TEMPLATE_DATE
from ..generation.sampling import Sampling

OverlongPrompts = Literal["fail", "drop", "raise"]
"""The consequence of a prompt longer than the context: its episode fails or is dropped, or the run stops."""


@dataclass(kw_only=True, slots=True, frozen=True)
class TokenBudgets:
    """How many tokens there may be; each limit has its own `StopReason`."""

    max_completion_length: int  # all tokens after the prompt: StopReason.MAX_TOKENS
    max_model_len: int  # prompt and completion: StopReason.CONTEXT_OVERFLOW
    max_turn_tokens: int | None = None  # one answer: StopReason.TURN_TRUNCATED
    max_observation_tokens: int | None = None  # of one observation; its texts are cut, the template's own tokens stay

    def __post_init__(self) -> None:
        for name in ("max_completion_length", "max_model_len", "max_turn_tokens", "max_observation_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(kw_only=True, slots=True, frozen=True)
class PlaySettings:
    """How episodes are played, in training and without one; a configuration builds it with `play_settings`."""

    budgets: TokenBudgets
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()
    overlong_prompts: OverlongPrompts = "fail"
    max_concurrency: int = 256
    on_failure: str = "drop"
    seed: int = 42  # decides the samples of `EpisodePlayer.play`
    chat_template_kwargs: Mapping[str, Any] | None = None
    today: datetime.date = TEMPLATE_DATE  # in chat templates: always the same, so that a run does not depend on its day
