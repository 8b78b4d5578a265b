"""From a configuration to the values that other rooms take: how to play, how to learn, how large a round is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from ...envs.core import StopReason
from ...envs.engine.play_episode import EpisodeLimits
from ..generation.sampling import Sampling
from ..learning.advantages import ALGORITHMS, ESTIMATORS
from ..learning.comparison import Comparison
from ..learning.corrections import CORRECTIONS
from ..learning.groups import TREATMENTS, Treatment, Treatments
from ..learning.losses import LOSSES
from ..learning.settings import LearningSettings
from ..rollout.overlong import OverlongPenalty
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


def sampling_of(args: AgentConfig) -> Sampling:
    """Return the distribution that training samples from."""
    return Sampling(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p)


def play_settings(args: AgentConfig, *, max_model_len: int) -> PlaySettings:
    """Return the options that playing needs, with a known context length.

    Raises:
        ValueError: the date for chat templates is not a date, or a budget or limit is not positive.
    """
    return PlaySettings(
        budgets=TokenBudgets(
            max_completion_length=args.max_completion_length,
            max_model_len=max_model_len,
            max_turn_tokens=args.max_turn_tokens,
            max_observation_tokens=args.max_observation_tokens,
        ),
        sampling=sampling_of(args),
        limits=EpisodeLimits(
            max_turns=args.max_turns,
            max_tool_calls=args.max_tool_calls,
            episode_timeout=args.episode_timeout,
            step_timeout=args.step_timeout,
        ),
        overlong_prompts=args.overlong_prompts,
        max_concurrency=args.max_concurrency,
        on_failure=args.on_failure,
        seed=args.seed,
        chat_template_kwargs=args.chat_template_kwargs,
        today=_template_date(args),
    )


def learning_settings(args: AgentConfig) -> LearningSettings:
    """Return the options that scoring and the loss read."""
    algorithm, sampling = ALGORITHMS[args.algorithm], sampling_of(args)
    estimator = args.advantage_estimator or algorithm.estimator
    correction = _correction(args, sampling)
    least, largest = CORRECTIONS[correction].bounds
    return LearningSettings(
        loss_type=args.loss_type,
        temperature=args.temperature,
        max_completion_length=args.max_completion_length,
        rows_at_once=args.per_device_train_batch_size,
        max_tokens_per_batch=args.max_tokens_per_batch,
        is_on_policy=args.num_iterations == 1 and args.gradient_accumulation_steps % parts_of_round(args) == 0,
        samples_all_tokens=sampling.is_full_distribution,
        truncated=parse_treatments(args.truncated),
        comparison=Comparison(
            advantage_estimator=estimator,
            scale_rewards=args.scale_rewards or ESTIMATORS[estimator].scale,
            normalize_advantages=args.normalize_advantages or ESTIMATORS[estimator].whitens,
            credit=args.credit,
            discount=args.discount,
        ),
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        delta=args.delta,
        sapo_temperature_pos=args.sapo_temperature_pos,
        sapo_temperature_neg=args.sapo_temperature_neg,
        entropy_coef=args.entropy_coef,
        top_entropy_quantile=args.top_entropy_quantile,
        beta=args.beta,
        kl_in=args.kl_in or algorithm.kl,
        use_bias_correction_kl=args.use_bias_correction_kl,
        correction=correction,
        correction_bounds=(
            least if args.correction_min is None else args.correction_min,
            largest if args.correction_max is None else args.correction_max,
        ),
        own=_own_options(args),
    )


def overlong_penalty(args: AgentConfig) -> OverlongPenalty:
    """Return the penalty of episodes that come close to their token limit."""
    return OverlongPenalty(limit=args.max_completion_length, buffer=args.overlong_buffer, penalty=args.overlong_penalty)


def parse_treatments(given: Any) -> Treatments:
    """Return the treatment of each kind of truncated episode, from the option `truncated`.

    Raises:
        TypeError: it is neither a name nor a dict.
        ValueError: a treatment or a stop reason does not exist; the message lists those that do.
    """
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
