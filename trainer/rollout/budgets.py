"""TokenBudgets: how many tokens an episode, an answer and an observation may have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, frozen=True)
class TokenBudgets:
    """How many tokens there may be; each limit has its own `StopReason`."""

    max_completion_length: int  # all tokens after the prompt: StopReason.MAX_TOKENS
    max_model_len: int  # prompt and completion: StopReason.CONTEXT_OVERFLOW
    max_turn_tokens: int | None = None  # one answer: StopReason.TURN_TRUNCATED
    max_observation_tokens: int | None = (
        None  # one observation, whose texts are cut to it; the template's own tokens stay
    )

    def __post_init__(self) -> None:
        for name in ("max_completion_length", "max_model_len", "max_turn_tokens", "max_observation_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
