"""A model that plays without being trained: for evaluations and checks on the command line."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ...envs.registry import EnvironmentLike
from ..models.file_bars import file_bars
from ..options.config import GRPOConfig
from ..rollout.episode_player import EpisodePlayer
from ..rollout.schedule import Rows
from .assembly import make_player

CONTEXT = 32_768  # tokens, where the model's config does not say how many it takes


def local_player(model: str, environment: EnvironmentLike, rows: Rows, **options: Any) -> EpisodePlayer:
    """A player with a model that is loaded here: on the GPU in bfloat16, or on the CPU in float32.

    Args:
        model: A name of the Hub, or a folder.
        environment: The environment of the episodes.
        rows: Tasks; the first of each environment is tried, as before a training.
        options: Options of `GRPOConfig`. By default an episode may fill the model's context.

    Raises:
        ConfigurationError: the model cannot play, for instance as its chat template has no place for tools.
        OSError: there is no such model.
    """
    on_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if on_gpu else torch.float32
    with file_bars(shown=sys.stderr.isatty()):
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    loaded = loaded.to("cuda" if on_gpu else "cpu").eval()
    context = getattr(loaded.config.get_text_config(), "max_position_embeddings", CONTEXT)
    options = {"max_completion_length": context, "max_model_len": context, "report_to": "none", **options}
    with tempfile.TemporaryDirectory() as folder:  # transformers wants one, for a training that does not come
        args = GRPOConfig(folder, use_cpu=not on_gpu, **options)
    return make_player(
        loaded,
        AutoTokenizer.from_pretrained(model),
        environment,
        args,
        reward_funcs=(),
        tool_format=None,
        chat_templates=None,
        generator=None,
        compact=None,
        data_sets=(rows, None),
        step=lambda: 0,
    )
