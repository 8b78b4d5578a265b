"""PlaySettings: everything that a model needs to play, beside itself, its tokenizer and an environment."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...envs.engine.play_episode import EpisodeLimits
from ..chat.chat_template import TEMPLATE_DATE
from ..generation.sampling import Sampling
from .budgets import TokenBudgets
from .token_policy import OverlongPrompts


@dataclass(kw_only=True, slots=True, frozen=True)
class PlaySettings:
    """How episodes are played, in training and without one; a configuration builds it with `play_settings`."""

    budgets: TokenBudgets
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()
    overlong_prompts: OverlongPrompts = "fail"
    max_concurrency: int = 256
    on_failure: str = "drop"
    seed: int = 42
    """Decides the samples of `EpisodePlayer.play`."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    today: datetime.date = TEMPLATE_DATE
    """Today's date in chat templates: always the same, so that a run does not depend on its day."""
