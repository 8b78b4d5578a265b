"""Rules of the objective: which options of the loss, the advantages and the correction fit together."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping

from ..learning import losses
from ..learning.advantages import ESTIMATORS
from ..learning.corrections import CORRECTIONS
from ..learning.losses import LOSSES, Surrogate
from ..learning.settings import LearningSettings
from .config import AgentConfig
from .derived import learning_settings, parts_of_round

OF_SURROGATES: dict[Surrogate, tuple[str, ...]] = {
    losses.clipped: ("epsilon", "epsilon_high", "delta"),
    losses.clipped_weight: ("epsilon_high",),
    losses.soft_gate: ("sapo_temperature_pos", "sapo_temperature_neg"),
    losses.score: (),
}
"""The options that each surrogate of a loss reads; setting another one is an error."""

Need = tuple[str, bool, str]
"""An option, whether the other options suit it, and what it needs if they do not."""


def objective(args: AgentConfig) -> None:
    """Check that the options of the objective fit together, and warn of those that have no effect."""
    settings = learning_settings(args)
    for name, is_met, need in (*_needs_of_learning(args, settings), *_needs_of_the_loss(args, settings)):
        if not is_met and changed(args, [name]):
            raise ValueError(f"{name}={getattr(args, name)!r} needs {need}")
    if LOSSES[args.loss_type].surrogate in OF_SURROGATES:  # a user's own may read any option
        check_read(args, "loss_type", {name: OF_SURROGATES.get(row.surrogate, ()) for name, row in LOSSES.items()})
    least, largest = settings.correction_bounds
    if not 0 <= least < largest:
        raise ValueError(f"correction_min must be at least 0 and below correction_max, got {least} and {largest}")
    loss_has_kl = args.beta > 0 and settings.kl_in == "loss"
    if type(args).use_bias_correction_kl and not args.use_bias_correction_kl and not loss_has_kl:
        raise ValueError(
            f"use_bias_correction_kl=False needs a divergence in the loss, got beta={args.beta} and "
            f"kl_in={settings.kl_in!r}: leave it out"
        )
    for text in _warnings(args, settings):
        warnings.warn(text, stacklevel=5)


def changed(args: AgentConfig, names: Iterable[str]) -> list[str]:
    """Return those of these options that differ from the default of both trainers."""
    return [name for name in names if getattr(args, name) != getattr(AgentConfig, name)]


def check_read(args: AgentConfig, choice: str, read: Mapping[str, Collection[str]]) -> None:
    """Check that the value of `choice`, an option, reads the options that are set; `read` has those of each value."""
    chosen = getattr(args, choice)
    for name in changed(args, dict.fromkeys(name for names in read.values() for name in names)):
        if name not in read[chosen]:
            got, readers = getattr(args, name), " or ".join(value for value, names in read.items() if name in names)
            raise ValueError(f"{choice}={chosen!r} does not read {name}, got {got!r}: leave it out, or use {readers}")


def _needs_of_learning(args: AgentConfig, settings: LearningSettings) -> Iterator[Need]:
    """Yield the needs of options of rounds, rewards and advantages."""
    estimator, scale = settings.comparison.advantage_estimator, settings.comparison.scale_rewards
    of_reference = "a reference model, and with beta=0 there is none: set beta"
    yield "kl_in", args.beta > 0, of_reference
    yield "sync_ref_model", args.beta > 0, of_reference
    yield "ref_model_mixup_alpha", args.sync_ref_model, "sync_ref_model=True"
    yield "ref_model_sync_steps", args.sync_ref_model, "sync_ref_model=True"
    yield "overlong_buffer", args.overlong_penalty > 0, "a penalty, and overlong_penalty=0 switches it off"
    at_most = f"to be at most max_completion_length={args.max_completion_length}: it is the last part of it"
    yield "overlong_buffer", args.overlong_buffer <= args.max_completion_length, at_most
    falls = "overlong_buffer=n: the reward falls in the last n tokens before max_completion_length"
    yield "overlong_penalty", args.overlong_buffer > 0, falls
    at_least_0 = "another estimator: it lowers rewards, and advantage_estimator='max_rl' divides by their mean"
    yield "beta", not (estimator == "max_rl" and settings.charges_kl), at_least_0
    yield "overlong_buffer", estimator != "max_rl", at_least_0
    scaled = "normalize_advantages" if args.normalize_advantages else "advantage_estimator"
    is_scaled_once = scale == "none" or not settings.comparison.normalize_advantages
    yield scaled, is_scaled_once, f"scale_rewards='none', got {scale!r}: both scale advantages"
    learns = "max_refills=0: it learns from groups whose rewards are equal, and refills replace them"
    yield "advantage_estimator", not (args.max_refills and ESTIMATORS[estimator].whitens), learns
    differ = f"beta=0 or kl_in='loss': with beta={args.beta}, equal rewards differ by their divergence"
    yield "max_refills", not settings.charges_kl, differ
    is_in_turn = not args.max_staleness
    yield "max_refills", is_in_turn, "max_staleness=0: otherwise the groups of the next rounds are in flight already"
    yield "vllm_enable_sleep_mode", is_in_turn, "max_staleness=0: otherwise it generates while the model trains"
    yield "discount", args.credit == "turn", "credit='turn': an episode has one reward"


def _needs_of_the_loss(args: AgentConfig, settings: LearningSettings) -> Iterator[Need]:
    """Yield the needs of the loss and the correction, and of options that only some of them suit."""
    loss, correction = LOSSES[args.loss_type], CORRECTIONS[settings.correction]
    given = f"loss_type={args.loss_type!r}"
    of_tokens = ", ".join(name for name, row in LOSSES.items() if row.is_of_tokens)
    tokens = f"a ratio for each token, and {given} has one for the whole episode; use one of {of_tokens}"
    yield "credit", loss.is_of_tokens, tokens
    yield "top_entropy_quantile", loss.is_of_tokens, tokens
    of_all = "top_entropy_quantile=1: it raises the entropy of all loss tokens, not only of those that are learned from"
    yield "entropy_coef", args.top_entropy_quantile == 1, of_all
    no_term = f"kl_in='reward' or beta=0: {given} has no term for the divergence of each token"
    yield "beta", settings.kl_in == "reward" or not loss.is_of_sequence, no_term
    once = (
        f"each round in one step, as it has no ratio that corrects old samples: set num_iterations=1, got "
        f"{args.num_iterations}, and steps_per_generation={args.gradient_accumulation_steps}, got "
        f"{parts_of_round(args)}"
    )
    yield "loss_type", args.loss_type != "reinforce" or settings.is_on_policy, once
    above = "to be above 1 + epsilon_high, where the ratio is clipped anyway"
    yield "delta", (args.delta or 0) > 1 + settings.epsilon_high, above
    all_tokens = (
        f"top_p=1, top_k=0 and min_p=0, got {args.top_p}, {args.top_k} and {args.min_p}: they change the "
        f"log-probabilities of the sampler, which it compares with those of the trainer; or set correction='none'"
    )
    yield "correction", settings.correction == "none" or settings.samples_all_tokens, all_tokens
    of_sequences = f"a term for each token, and {given} has one for all; use sequence_tis, geometric_mask or none"
    yield "correction", not (correction.of_tokens and loss.is_of_sequence), of_sequences
    yield "correction_min", settings.correction != "none", "a correction, and there is none"
    yield "correction_max", settings.correction != "none", "a correction, and there is none"
    bounded = ", ".join(name for name, row in CORRECTIONS.items() if row.has_least)
    yield "correction_min", correction.has_least, f"a correction with a lower bound: use one of {bounded}"
    remedy = "leave correction out" if settings.samples_all_tokens else "switch off top_p, top_k and min_p"
    older = f"a correction of samples of older weights, and correction is 'none': {remedy}"
    yield "max_staleness", settings.correction != "none", older


def _warnings(args: AgentConfig, settings: LearningSettings) -> Iterator[str]:
    """Yield what is half of a paper, hardly clips, or has no effect."""
    loss = LOSSES[args.loss_type]
    if 0 < args.max_steps < args.max_staleness:
        yield f"max_staleness={args.max_staleness} is more than max_steps={args.max_steps}: no sample becomes so old"
    if args.loss_type == "dr_grpo" and settings.comparison.scale_rewards == "group":
        yield "loss_type='dr_grpo' is half of its paper: the other half is scale_rewards='none', got 'group'"
    is_of_mean = loss.ratio in (losses.of_mean_token, losses.of_mean_token_at_token)
    if is_of_mean and args.epsilon == AgentConfig.epsilon and not settings.is_on_policy:
        yield (
            f"loss_type={args.loss_type!r} hardly clips with epsilon={args.epsilon}, because the mean ratio of a "
            f"sample is close to 1: its paper uses epsilon=3e-4 and epsilon_high=4e-4"
        )
    idle = changed(args, OF_SURROGATES.get(loss.surrogate, ()))
    if idle and settings.is_on_policy:
        yield (
            f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect: each round is used in one step, in "
            f"which the ratio of new and old policy is 1; use a round in several steps with num_iterations, or with "
            f"steps_per_generation above gradient_accumulation_steps"
        )
