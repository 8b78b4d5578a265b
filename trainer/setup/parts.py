"""Parts: the pieces of a trainer, made from its arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from ...envs.engine.compaction import Compact
from ...envs.registry import EnvironmentLike
from ...envs.rewards import Rewards
from ..chat.by_environment import GivenFormats
from ..generation.contract import Generator
from ..learning.scoring import Scorer
from ..learning.settings import LearningSettings
from ..models.adapters import adapter_config
from ..models.contexts import file_bars
from ..models.distributed import Processes
from ..models.images import ImageEncoder, blank, freeze_vision
from ..models.output_head import OutputHead
from ..models.precision import computes_bfloat16
from ..models.reference import ADAPTER, Reference, ReferenceSync
from ..models.reward_model import RewardLike, as_reward_functions
from ..models.update_memory import tokens_of_update
from ..options.config import AgentConfig
from ..options.derived import groups_per_process, learning_settings, parts_of_round, play_settings
from ..options.sharding import has_master_weights
from ..options.value_checks import unknown_names
from ..rollout.episode_player import EpisodePlayer
from ..rollout.schedule import Rows, Schedule
from ..rollout.stream import RowStream, Stream, is_stream
from .generator_choice import (
    check_generator,
    check_images,
    check_model_can_be_sharded,
    check_sharding,
    make_generator,
)
from .loading import load_model, warn_of_low_rate
from .player import context_length, make_player
from .processing import Processing, load_processing
from .startup_checks import ROWS_LOOKED_AT, check_before_loading, check_best_metric, check_stream, first_rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The pieces of a trainer that need no process group, and makers of those that do."""

    config: AgentConfig
    environment: EnvironmentLike
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    images: ImageEncoder | None  # of a model that takes images
    player: EpisodePlayer
    settings: LearningSettings
    train_dataset: Rows | RowStream | None
    schedule: Schedule  # of these rows; without rows if there are none

    def scorer(self, processes: Processes) -> Scorer:
        """Make the scorer, still without reference and output head: see `read_weights`."""
        return Scorer(
            model=self.model,
            settings=self.settings,
            reference=None,
            gather=processes.gather_tensor,
            passes=processes.most if processes.in_lockstep else int,
            images=self.images,
            picture=self.images.tokens(blank(32, 32)) if self.images is not None and processes.count > 1 else None,
        )

    def read_weights(self, scorer: Scorer, processes: Processes) -> ReferenceSync | None:
        """Give the scorer all that depends on the weights; return the updates of the reference.

        That is the output head, the reference if the loss needs one, and the default of `max_tokens_per_batch`. The
        model must be on its device, and sharded if it will be. Raise a ValueError if an adapter is to be updated.
        """
        config, model, head = self.config, self.model, OutputHead.of(self.model)
        reference = Reference(model, head, in_place=processes.in_lockstep) if config.beta else None
        scorer.reference, scorer.head = reference, head
        if config.bf16 and not computes_bfloat16(model.device.type):
            logger.warning(
                "bf16=True: this processor lacks instructions for bfloat16, so float32 is up to 8 times as fast"
            )
        if config.max_tokens_per_batch is None:
            autocast, checkpointing = config.bf16 or config.fp16, config.gradient_checkpointing
            tokens = tokens_of_update(model, autocast=bool(autocast), checkpointing=bool(checkpointing))
            logger.info("max_tokens_per_batch is not given: updates take at most %d tokens at a time", tokens)
            scorer.settings = scorer.settings.changed(max_tokens_per_batch=tokens)
        if not config.sync_ref_model:
            return None
        assert reference is not None
        if reference.is_adapter:
            raise ValueError(
                f"sync_ref_model=True would move the adapter {ADAPTER!r}, which may have another shape than the one in "
                f"training; without an adapter of this name the reference is a copy of the one in training"
            )
        suffix = processes.suffix if processes.share_weights else ""
        alpha, every = config.ref_model_mixup_alpha, config.ref_model_sync_steps
        return ReferenceSync(reference=reference, alpha=alpha, every=every, suffix=suffix)


def checked(
    trainer: type,
    config_class: type[AgentConfig],
    environment: EnvironmentLike | None,
    args: AgentConfig | None,
    unknown: Mapping[str, Any],
    known: Collection[str],
    callbacks: Any,
) -> tuple[EnvironmentLike, AgentConfig]:
    """Return the environment and the configuration, or the default one; raise a TypeError if an argument is wrong."""
    if unknown:
        raise unknown_names(trainer.__name__, unknown, known, config=config_class)
    if environment is None:
        raise TypeError(f"{trainer.__name__} needs environment=..., a class with @tool methods")
    args = args if args is not None else config_class(output_dir="runs/agent")
    if not isinstance(args, config_class):
        swapped = ": the environment stands before args" if isinstance(environment, AgentConfig) else ""
        raise TypeError(f"args must be a {config_class.__name__}, got {type(args).__name__}{swapped}")
    for callback in () if callbacks is None or isinstance(callbacks, TrainerCallback) else callbacks:
        if not issubclass(callback if isinstance(callback, type) else type(callback), TrainerCallback):
            raise TypeError(f"callbacks must be TrainerCallbacks, as in transformers.Trainer, got {callback!r}")
    return environment, args


def make_parts(
    model: str | PreTrainedModel,
    environment: EnvironmentLike,
    args: AgentConfig,
    given: tuple[Rows | RowStream | None, Rows | Mapping[str, Rows] | None],
    *,
    rewards: tuple[RewardLike | Sequence[RewardLike], Any],
    formats: tuple[GivenFormats, Mapping[str, str] | None],
    processing_class: Processing | None,
    generator: Generator | None,
    peft_config: Any,
    compact: Compact | None,
    has_optimizer: bool,
    step: Callable[[], int],
) -> Parts:
    """Check the arguments of a trainer, and make its parts: what is cheap to check comes first.

    Arguments and errors are as in `AgentTrainer`: the data sets `given` for training and evaluation, `rewards` with
    their tokenizers, and `formats` with chat templates. `step` returns the number of optimiser steps that the weights
    have seen.
    """
    data_sets = first_rows(args, given[0], ROWS_LOOKED_AT), given[1]
    check_before_loading(environment, *data_sets, *formats)
    check_best_metric(args, data_sets[1])
    check_generator(args, generator)
    check_sharding(args, generator)
    peft_config = adapter_config(peft_config)
    with file_bars(shown=not args.disable_tqdm):
        reward_funcs = as_reward_functions(*rewards, args.device)
        added = Rewards(reward_funcs, args.reward_weights, timeout=args.reward_timeout)
        model, tokenizer, images = _load(model, args, peft_config, processing_class)
    if not has_optimizer:
        warn_of_low_rate(model, args)
    player = make_player(
        model,
        tokenizer,
        environment,
        play_settings(args, max_model_len=context_length(model, args.max_model_len)),
        make_generator=partial(make_generator, model, args, generator, images),
        rewards=added,
        data_sets=data_sets,
        tool_format=formats[0],
        chat_templates=formats[1],
        compact=compact,
        step=step,
        images=images,
    )
    return Parts(
        config=args,
        environment=environment,
        model=model,
        tokenizer=tokenizer,
        images=images,
        player=player,
        settings=learning_settings(args),
        train_dataset=given[0],
        schedule=schedule_of(args, () if given[0] is None else given[0]),
    )


def _load(
    name: str | PreTrainedModel, args: AgentConfig, peft_config: Any, processing_class: Processing | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, ImageEncoder | None]:
    """Return the model, its tokenizer, and its encoder of images if it takes them."""
    model = load_model(
        name,
        args.model_init_kwargs,
        peft_config,
        gradient_checkpointing=args.gradient_checkpointing,
        has_master_weights=has_master_weights(args),
    )
    check_model_can_be_sharded(args, model)
    tokenizer, images = load_processing(
        model, processing_class, args.model_init_kwargs, max_image_pixels=args.max_image_pixels
    )
    check_images(args, images)
    if args.freeze_vision:
        freeze_vision(model)
    return model, tokenizer, images


def schedule_of(args: AgentConfig, rows: Rows | RowStream) -> Schedule:
    """Return the schedule of this process; raise a ValueError as `check_stream` does."""
    check_stream(args, rows)
    groups = groups_per_process(args) * args.world_size
    kept = groups * (2 + max(args.max_refills, args.max_staleness))  # refills and overlap look ahead
    return Schedule(
        rows=Stream(rows, kept=kept) if is_stream(rows) else cast(Rows, rows),
        num_generations=args.num_generations,
        groups_per_process=groups_per_process(args),
        num_processes=args.world_size,
        process_index=args.process_index,
        steps_per_generation=parts_of_round(args),
        num_iterations=args.num_iterations,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        seed=args.seed,
        data_seed=args.data_seed if args.data_seed is not None else args.seed,
        shuffle=args.shuffle_dataset is not False and not is_stream(rows),
        max_steps=args.max_steps,
    )
