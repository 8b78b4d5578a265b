"""The parts of a trainer, put together from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from ...envs.episode import Episode, EpisodeSpec
from ..learning.scoring import Scorer
from ..models.distributed import Processes
from ..models.reference import ADAPTER, Reference, ReferenceSync
from ..options.config import AgentConfig
from ..options.derived import groups_per_process, learning_settings, overlong_penalty, parts_of_round
from ..rollout.episode_player import EpisodePlayer
from ..rollout.overlap.group_log import GroupLog
from ..rollout.overlap.overlapped_rounds import OverlappedRounds
from ..rollout.round_player import RoundPlayer, RoundSource
from ..rollout.schedule import Schedule


def make_schedule(num_tasks: int, args: AgentConfig, processes: Processes) -> Schedule:
    """The schedule of this process."""
    return Schedule(
        num_tasks=num_tasks,
        num_generations=args.num_generations,
        groups_per_process=groups_per_process(args),
        num_processes=processes.count,
        process_index=processes.index,
        steps_per_generation=parts_of_round(args),
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
    settings = learning_settings(args)
    common: dict[str, Any] = {
        "schedule": schedule,
        "has_spread": settings.comparison.has_spread,
        "treatments": settings.truncated,
        "penalty": overlong_penalty(args),
    }

    def run(specs: list[EpisodeSpec]) -> list[Episode]:
        episodes = player.run(specs)
        settings.comparison.check(episodes)
        return episodes

    if not args.max_staleness:
        run_together = lambda specs: processes.all_or_none(lambda: run(specs))  # noqa: E731
        return RoundPlayer(run=run_together, sum_counts=processes.sum_counts, max_refills=args.max_refills, **common)
    return OverlappedRounds(
        player=player,
        max_staleness=args.max_staleness,
        check=settings.comparison.check,
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
        settings=learning_settings(args),
        reference=None,
        gather=processes.gather_tensor,
        pad_id=pad_id,
        passes=processes.most if processes.in_lockstep else int,
    )
