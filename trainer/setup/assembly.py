"""The parts of a trainer, put together from its configuration."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...envs.core import ConfigurationError
from ...envs.engine.rollout_engine import RolloutEngine
from ...envs.episode import Episode, EpisodeSpec
from ...envs.registry import EnvironmentLike, EnvironmentSource
from ...envs.rewards import RewardFunction, Rewards
from ..chat.by_environment import GivenFormat, GivenFormats, chat_formats
from ..chat.chat_format import ChatFormat
from ..generation.contract import Generator
from ..learning.credit import check_returns
from ..learning.groups import has_spread
from ..learning.scoring import Scorer
from ..models.distributed import Processes
from ..models.reference import ADAPTER, Reference, ReferenceSync
from ..options.checks import unknown_names
from ..options.config import AgentConfig
from ..options.fields import options_of
from ..rollout.compaction import Compact, check_compact
from ..rollout.episode_player import EpisodePlayer
from ..rollout.overlap.group_log import GroupLog
from ..rollout.overlap.overlapped_rounds import OverlappedRounds
from ..rollout.overlap.turn_gate import TurnGate
from ..rollout.overlong import OverlongPenalty
from ..rollout.round_player import RoundPlayer, RoundSource
from ..rollout.schedule import Rows, Schedule
from ..rollout.token_policy import TokenPolicy, begin_trace
from .generator_choice import check_generator, make_generator
from .startup_checks import check_data_sets


def make_player(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    environment: EnvironmentLike,
    args: AgentConfig,
    *,
    reward_funcs: Sequence[RewardFunction],
    tool_format: GivenFormats,
    chat_templates: Mapping[str, str] | None,
    generator: Generator | None,
    compact: Compact | None,
    data_sets: tuple[Rows | None, Rows | Mapping[str, Rows] | None],
    step: Callable[[], int],
) -> EpisodePlayer:
    """The player of this configuration; arguments are as in `AgentTrainer`, and `step` as in `EpisodePlayer`.

    The data sets (for training and evaluation) are checked before a generator is made, which takes long.

    Raises:
        ConfigurationError: the model, its chat template or its generator cannot do as the configuration asks.
    """
    check_generator(args, generator)
    rewards = Rewards(reward_funcs, args.reward_weights, timeout=args.reward_timeout)
    source = EnvironmentSource.of(environment)
    formats = chat_formats(source.names, tool_format, chat_templates, partial(_make_chat, model, tokenizer, args))
    chat = formats[source.names[0]]
    own = {name: each for name, each in formats.items() if name is not None}
    budgets = args.budgets(max_model_len=_context_length(model, args.max_model_len))
    check_compact(compact, budgets)
    check_data_sets(
        *data_sets,
        source=source,
        rewards=rewards,
        begin=lambda spec, *first: begin_trace(
            formats[source.choose(spec.task.row)], budgets, args.overlong_prompts, spec, *first
        ),
        limits=args.limits,
    )
    if generator is None:
        pad_id = padding_id(tokenizer, chat)
        generator = make_generator(model, args, pad_id=pad_id, max_model_len=budgets.max_model_len)
    policy = TokenPolicy(
        chat,
        TurnGate(generator) if args.max_staleness else generator,
        sampling=args.sampling,
        budgets=budgets,
        overlong_prompts=args.overlong_prompts,
        compact=compact,
        chats=own,
    )
    engine = RolloutEngine(
        source,
        policy,
        rewards=rewards,
        limits=args.limits,
        max_concurrency=args.max_concurrency,
        on_failure=args.on_failure,
    )
    return EpisodePlayer(model, engine, policy, seed=args.seed, step=step)


def _make_chat(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: AgentConfig,
    tool_format: GivenFormat,
    chat_template: str | None,
) -> ChatFormat:
    if chat_template is not None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = chat_template
    chat = ChatFormat(
        tokenizer,
        tool_format=tool_format,
        end_token_ids=_end_token_ids(model),
        template_kwargs=args.chat_template_kwargs,
        today=args.template_date,
    )
    _check_template_kwargs(tokenizer, args.chat_template_kwargs or {})
    return chat


def make_schedule(num_tasks: int, args: AgentConfig, processes: Processes) -> Schedule:
    """The schedule of this process."""
    return Schedule(
        num_tasks=num_tasks,
        num_generations=args.num_generations,
        groups_per_process=args.groups_per_process,
        num_processes=processes.count,
        process_index=processes.index,
        steps_per_generation=args.parts_of_round,
        num_iterations=args.num_iterations,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        seed=args.seed,
        data_seed=args.data_seed if args.data_seed is not None else args.seed,
        shuffle=args.shuffle_dataset,
    )


def make_round_source(
    player: EpisodePlayer,
    schedule: Schedule,
    args: AgentConfig,
    processes: Processes,
    *,
    progress: Callable[[], tuple[int, int]],
) -> RoundSource:
    """The source of the rounds of this schedule; `progress` is as in `OverlappedRounds`."""
    settings = args.learning_settings
    common: dict[str, Any] = {
        "schedule": schedule,
        "has_spread": partial(has_spread, credit=settings.credit, discount=settings.discount),
        "treatments": args.treatments,
        "penalty": options_of(args, OverlongPenalty),
    }

    def check(episodes: list[Episode]) -> None:
        check_returns(episodes, settings.advantage_estimator, settings.credit, settings.discount)

    def run(specs: list[EpisodeSpec]) -> list[Episode]:
        episodes = player.run(specs)
        check(episodes)
        return episodes

    if not args.max_staleness:
        run_together = lambda specs: processes.all_or_none(lambda: run(specs))  # noqa: E731
        return RoundPlayer(run=run_together, sum_counts=processes.sum_counts, max_refills=args.max_refills, **common)
    return OverlappedRounds(
        player=player,
        max_staleness=args.max_staleness,
        check=check,
        together=processes.all_or_none,
        waiting=processes.waiting,
        progress=progress,
        log=GroupLog(args.output_dir or ".", processes.suffix),
        suffix=processes.suffix,
        **common,
    )


def make_reference_sync(reference: Reference | None, args: AgentConfig, processes: Processes) -> ReferenceSync | None:
    """The synchronisation of the reference with the policy; None without `sync_ref_model`.

    Raises:
        ValueError: the reference is an adapter, which has no copied weights.
    """
    if not args.sync_ref_model:
        return None
    assert reference is not None
    if reference.is_adapter:
        raise ValueError(
            f"sync_ref_model=True would move the adapter {ADAPTER!r}, which may have another shape than the one in "
            f"training; without an adapter of this name the reference is a copy of the one in training"
        )
    suffix = processes.suffix if processes.share_weights else ""
    return ReferenceSync(reference, alpha=args.ref_model_mixup_alpha, every=args.ref_model_sync_steps, suffix=suffix)


def make_scorer(model: PreTrainedModel, args: AgentConfig, processes: Processes, *, pad_id: int) -> Scorer:
    """The scorer of this configuration, still without reference and output head."""
    return Scorer(
        model=model,
        settings=args.learning_settings,
        reference=None,
        gather=processes.gather_tensor,
        pad_id=pad_id,
        passes=processes.most if processes.in_lockstep else int,
    )


def padding_id(tokenizer: PreTrainedTokenizerBase, chat: ChatFormat) -> int:
    """The token that fills rows: the tokenizer's, or an end token."""
    pad_id = tokenizer.pad_token_id
    return pad_id if isinstance(pad_id, int) else chat.end_id


def _check_template_kwargs(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any]) -> None:
    """Check that the chat template mentions each argument: Jinja ignores those that it does not know.

    Raises:
        TypeError: it does not.
    """
    known = {*re.findall(r"\w+", str(tokenizer.chat_template)), *signature(tokenizer.apply_chat_template).parameters}
    if unknown := given.keys() - known:
        raise unknown_names("chat_template_kwargs: the chat template", sorted(unknown), known)


def _end_token_ids(model: PreTrainedModel) -> list[int]:
    """Every end-of-turn id of the model's generation config."""
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _context_length(model: PreTrainedModel, given: int | None) -> int:
    """Tokens of the context: `given`, or the model's own number.

    Raises:
        ConfigurationError: neither is known, or more is given than the model has.
    """
    length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if given is None:
        if length is None:
            raise ConfigurationError("the model's config does not tell its context length; set max_model_len")
        return length
    if length is not None and given > length:
        raise ConfigurationError(f"max_model_len={given} is more than the model's context of {length} tokens")
    return given
