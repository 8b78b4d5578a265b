"""From a configuration to the values that other rooms take: how to play, how to learn, how large a round is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from ...envs.core import StopReason
from ...envs.engine.play_episode import EpisodeLimits
from ..generation.sampling import Sampling
from ..learning.advantages import ESTIMATORS
from ..learning.comparison import Comparison
from ..learning.corrections import CORRECTIONS
from ..learning.groups import TREATMENTS, Treatment, Treatments
from ..learning.losses import LOSSES
from ..learning.settings import LearningSettings
from ..rollout.settings import PlaySettings, TokenBudgets
from .config import AgentConfig


def parts_of_round(args: AgentConfig) -> int:
    """Return the number of batches that a round is cut into."""
    if args.generation_batch_size is not None:
        return args.generation_batch_size // (args.per_device_train_batch_size * args.world_size)
    return args.steps_per_generation or args.gradient_accumulation_steps


def groups_per_process(args: AgentConfig) -> int:
    """Return the number of groups that each process plays in a round."""
    return args.per_device_train_batch_size * parts_of_round(args) // args.num_generations


def _of_same_name(args: AgentConfig, kind: type[Any]) -> dict[str, Any]:
    """Return the options that have the names of fields of a dataclass."""
    return {field.name: getattr(args, field.name) for field in fields(kind) if hasattr(args, field.name)}


def sampling_of(args: AgentConfig) -> Sampling:
    """Return the distribution that training samples from."""
    return Sampling(**_of_same_name(args, Sampling))


def play_settings(args: AgentConfig, *, max_model_len: int) -> PlaySettings:
    """Return the options that playing needs, with a known context length; they check their own ranges."""
    return PlaySettings(
        budgets=TokenBudgets(**_of_same_name(args, TokenBudgets) | {"max_model_len": max_model_len}),
        sampling=sampling_of(args),
        limits=EpisodeLimits(**_of_same_name(args, EpisodeLimits)),
        today=_template_date(args),
        **_of_same_name(args, PlaySettings),
    )


def learning_settings(args: AgentConfig) -> LearningSettings:
    """Return the options that scoring and the loss read."""
    sampling, estimator = sampling_of(args), args.advantage_estimator or args.default_estimator
    correction = _correction(args, sampling)
    least, largest = CORRECTIONS[correction].bounds
    return LearningSettings(
        **_of_same_name(args, LearningSettings)
        | {
            "rows_at_once": args.per_device_train_batch_size,
            "is_on_policy": args.num_iterations == 1 and args.gradient_accumulation_steps % parts_of_round(args) == 0,
            "samples_all_tokens": sampling.is_full_distribution,
            "truncated": parse_treatments(args.truncated),
            "comparison": Comparison(
                advantage_estimator=estimator,
                scale_rewards=args.scale_rewards or ESTIMATORS[estimator].scale,
                normalize_advantages=args.normalize_advantages or ESTIMATORS[estimator].whitens,
                credit=args.credit,
                discount=args.discount,
            ),
            "epsilon_low": args.epsilon,
            "epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
            "kl_in": args.kl_in or args.default_kl_in,
            "correction": correction,
            "correction_bounds": (
                least if args.correction_min is None else args.correction_min,
                largest if args.correction_max is None else args.correction_max,
            ),
            "own": _own_options(args),
        }
    )


def parse_treatments(given: Any) -> Treatments:
    """Return the treatment of each kind of truncated episode, from the option `truncated`."""
    if given is None:
        return TREATMENTS
    given = dict.fromkeys(TREATMENTS, given) if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        raise TypeError(
            f"truncated must be 'teach', 'mask', 'leave', or a dict such as {{'max_turns': 'mask'}}, got {given!r}"
        )
    reasons = [reason.value for reason in TREATMENTS]
    chosen = dict(TREATMENTS)
    for reason, treatment in given.items():
        if reason not in reasons:
            raise ValueError(f"truncated has no stop reason {reason!r}; known are {', '.join(reasons)}")
        if treatment not in get_args(Treatment):
            raise ValueError(
                f"truncated[{str(reason)!r}] must be one of {', '.join(get_args(Treatment))}, got {treatment!r}"
            )
        chosen[StopReason(reason)] = treatment
    return chosen


def _template_date(args: AgentConfig) -> datetime.date:
    try:
        return datetime.date.fromisoformat(args.chat_template_date)
    except (TypeError, ValueError):
        given = args.chat_template_date
        raise ValueError(f"chat_template_date must be a date such as 2025-01-01, got {given!r}") from None


def _correction(args: AgentConfig, sampling: Sampling) -> str:
    if args.correction is not None:
        return args.correction
    differs = args.generator.startswith("vllm") or args.max_staleness > 0
    if not differs or not sampling.is_full_distribution:
        return "none"
    return "sequence_tis" if LOSSES[args.loss_type].is_of_sequence else "tis"


def _own_options(args: AgentConfig) -> dict[str, Any]:
    """Return the options that a user's subclass adds, by name."""
    package = __name__.partition(".")[0]
    ours = next(base for base in type(args).__mro__ if base.__module__.partition(".")[0] == package)
    known = {field.name for field in fields(ours)}
    return {field.name: getattr(args, field.name) for field in fields(args) if field.name not in known}
