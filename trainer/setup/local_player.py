"""A model that plays without being trained: for evaluations and checks on the command line."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoConfig

from ...envs.engine.play_episode import EpisodeLimits
from ...envs.registry import EnvironmentLike
from ...envs.rewards import Rewards
from ..generation.transformers_generator import TransformersGenerator
from ..models.contexts import file_bars
from ..rollout.episode_player import EpisodePlayer
from ..rollout.schedule import Rows
from ..rollout.settings import PlaySettings, TokenBudgets
from .loading import auto_class
from .model_name import check_model_name
from .player import make_player
from .processing import load_processing

CONTEXT = 32_768
"""Tokens of the context, if the model's config does not say how many the model takes."""


def local_player(
    model: str,
    environment: EnvironmentLike,
    rows: Rows,
    *,
    limits: EpisodeLimits,
    max_turn_tokens: int | None = None,
    max_concurrency: int = 1,
    tool_format: str | None = None,
) -> EpisodePlayer:
    """Load a model, on the GPU in bfloat16 or on the CPU in float32, and return its player.

    An episode may fill the model's context. The first of the rows of each environment is tried, as before a training.
    Raise an OSError if there is no such model, and a ConfigurationError if it cannot play.
    """
    check_model_name(model, {})
    on_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if on_gpu else torch.float32
    with file_bars(shown=sys.stderr.isatty()):
        loaded: Any = auto_class(AutoConfig.from_pretrained(model)).from_pretrained(model, dtype=dtype)
    loaded = loaded.to("cuda" if on_gpu else "cpu").eval()
    context = getattr(loaded.config.get_text_config(), "max_position_embeddings", CONTEXT)
    budgets = TokenBudgets(max_completion_length=context, max_model_len=context, max_turn_tokens=max_turn_tokens)
    tokenizer, images = load_processing(loaded, None)
    return make_player(
        loaded,
        tokenizer,
        environment,
        PlaySettings(budgets=budgets, limits=limits, max_concurrency=max_concurrency),
        make_generator=lambda pad_id, _: TransformersGenerator(loaded, pad_id=pad_id, images=images),
        rewards=Rewards(),
        data_sets=(rows, None),
        tool_format=tool_format,
        images=images,
    )
