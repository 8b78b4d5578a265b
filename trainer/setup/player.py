"""The player of a model: it renders messages, samples answers, and plays them in an environment."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...envs.core import ConfigurationError
from ...envs.engine.compaction import Compact, EveryTurn, check_compact
from ...envs.engine.rollout_engine import RolloutEngine
from ...envs.registry import EnvironmentLike, EnvironmentSource
from ...envs.rewards import Rewards
from ..chat.by_environment import GivenFormat, GivenFormats, chat_formats
from ..chat.chat_format import ChatFormat
from ..generation.contract import Generator
from ..models.images import ImageEncoder
from ..options.value_checks import unknown_names
from ..rollout.compaction import check_room
from ..rollout.episode_player import EpisodePlayer
from ..rollout.schedule import Rows
from ..rollout.settings import PlaySettings
from ..rollout.token_policy import TokenPolicy, begin_trace
from .startup_checks import check_data_sets


def make_player(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    environment: EnvironmentLike,
    settings: PlaySettings,
    *,
    make_generator: Callable[[int, int], Generator],
    rewards: Rewards,
    data_sets: tuple[Rows | None, Rows | Mapping[str, Rows] | None],
    tool_format: GivenFormats = None,
    chat_templates: Mapping[str, str] | None = None,
    compact: Compact | None = None,
    step: Callable[[], int] = lambda: 0,
    images: ImageEncoder | None = None,
) -> EpisodePlayer:
    """Return the player with these settings; `step` is as in `EpisodePlayer`, others as in `AgentTrainer`.

    `images` encodes the pictures of a model that takes them. The data sets (for training and evaluation) are checked
    before a generator is made, which takes long. `make_generator` takes the id of the token that fills rows, and the
    tokens of the context. Raise a ConfigurationError if the model or its chat template cannot do as the settings ask,
    and a ValueError if a row is wrong.
    """
    source = EnvironmentSource.of(environment)
    formats = chat_formats(
        source.names, tool_format, chat_templates, partial(_make_chat, model, tokenizer, images, settings)
    )
    chat = formats[source.names[0]]
    check_compact(compact)
    if compact is not None and not isinstance(compact, EveryTurn):
        check_room(settings.budgets)
    check_data_sets(
        *data_sets,
        source=source,
        rewards=rewards,
        begin=lambda spec, *first: begin_trace(
            formats[source.choose(spec.task.row)], settings.budgets, settings.overlong_prompts, spec, *first
        ),
        limits=settings.limits,
    )
    policy = TokenPolicy(
        chat,
        make_generator(padding_id(tokenizer, chat), settings.budgets.max_model_len),
        sampling=settings.sampling if images is None else replace(settings.sampling, forbidden=images.token_ids),
        budgets=settings.budgets,
        overlong_prompts=settings.overlong_prompts,
        chats={name: chat for name, chat in formats.items() if name is not None},
    )
    engine = RolloutEngine(
        source,
        policy,
        rewards=rewards,
        limits=settings.limits,
        max_concurrency=settings.max_concurrency,
        on_failure=settings.on_failure,
        compact=compact,
    )
    return EpisodePlayer(model, engine, policy, seed=settings.seed, step=step)


def context_length(model: PreTrainedModel, given: int | None) -> int:
    """Return the tokens of the context: `given`, or the model's own number.

    Raise a ConfigurationError if neither is known, or more is given than the model has.
    """
    length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if given is None:
        if length is None:
            raise ConfigurationError("the model's config does not tell its context length; set max_model_len")
        return length
    if length is not None and given > length:
        raise ConfigurationError(f"max_model_len={given} is more than the model's context of {length} tokens")
    return given


def padding_id(tokenizer: PreTrainedTokenizerBase, chat: ChatFormat) -> int:
    """Return the token that fills rows: the tokenizer's, or an end token."""
    pad_id = tokenizer.pad_token_id
    return pad_id if isinstance(pad_id, int) else chat.end_id


def _make_chat(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    images: ImageEncoder | None,
    settings: PlaySettings,
    tool_format: GivenFormat,
    chat_template: str | None,
) -> ChatFormat:
    if chat_template is not None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = chat_template
    chat = ChatFormat(
        tokenizer,
        tool_format=tool_format,
        end_token_ids=end_token_ids(model.generation_config),
        template_kwargs=settings.chat_template_kwargs,
        today=settings.today,
        images=images,
    )
    _check_template_kwargs(tokenizer, settings.chat_template_kwargs or {})
    return chat


def _check_template_kwargs(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any]) -> None:
    """Raise a TypeError if the chat template does not mention an argument: Jinja ignores those it does not know."""
    known = {*re.findall(r"\w+", str(tokenizer.chat_template)), *signature(tokenizer.apply_chat_template).parameters}
    if unknown := given.keys() - known:
        raise unknown_names("chat_template_kwargs: the chat template", sorted(unknown), known)


def end_token_ids(config: GenerationConfig | None) -> list[int]:
    """Return every end-of-turn id of a model's generation config."""
    ids = None if config is None else config.eos_token_id
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
