"""Check the options of the objective against each other: some exclude others, some need others."""

from __future__ import annotations

import warnings

from ..learning.advantages import ESTIMATORS
from ..learning.corrections import CORRECTIONS
from ..learning.losses import (
    LOSSES,
    Surrogate,
    clipped,
    clipped_weight,
    of_mean_token,
    of_mean_token_at_token,
    score,
    soft_gate,
)
from ..learning.settings import LearningSettings
from .learning import LearningOptions

OF_SURROGATES: dict[Surrogate, tuple[str, ...]] = {
    clipped: ("epsilon", "epsilon_high", "delta"),
    clipped_weight: ("epsilon_high",),
    soft_gate: ("sapo_temperature_pos", "sapo_temperature_neg"),
    score: (),
}
"""The options that each surrogate of a loss reads; setting another one is an error."""


def check_objective(options: LearningOptions) -> None:
    """Check the options of the loss, the advantages and the correction; single values are checked before.

    Raises:
        ValueError: two of them contradict each other; the message names both.
    """
    settings = options.learning_settings
    if options.loss_type == "dr_grpo" and settings.scale_rewards == "group":
        warnings.warn(
            "loss_type='dr_grpo' is half of its paper: the other half is scale_rewards='none', got 'group'",
            stacklevel=5,
        )
    is_of_mean = LOSSES[options.loss_type].ratio in (of_mean_token, of_mean_token_at_token)
    if is_of_mean and options.epsilon == LearningOptions.epsilon and not settings.is_on_policy:
        warnings.warn(
            f"loss_type={options.loss_type!r} hardly clips with epsilon={options.epsilon}, because the mean ratio of a "
            f"sample is close to 1: its paper uses epsilon=3e-4 and epsilon_high=4e-4",
            stacklevel=5,
        )
    _check_surrogate(options)
    _check_correction(options, settings)
    _check_advantages(options, settings)
    if options.loss_type == "reinforce" and not settings.is_on_policy:
        raise ValueError(
            f"loss_type='reinforce' has no ratio that corrects old samples: use each round in one step, with "
            f"num_iterations=1 and steps_per_generation=gradient_accumulation_steps; got {options.num_iterations} and "
            f"{options.parts_of_round} with {options.gradient_accumulation_steps}"
        )
    if options.delta is not None and options.delta <= 1 + settings.epsilon_high:
        raise ValueError(
            f"delta must be above 1 + epsilon_high, where the ratio is clipped anyway, got {options.delta}"
        )
    _check_reference(options, settings)
    _check_entropy(options)
    if (idle := _changed(options)) and settings.is_on_policy:
        warnings.warn(
            f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect: each round is used in one step, in "
            f"which the ratio of new and old policy is 1; use a round in several steps with num_iterations, or with "
            f"steps_per_generation above gradient_accumulation_steps",
            stacklevel=5,
        )


def _changed(options: LearningOptions) -> list[str]:
    """The options of surrogates that differ from their defaults; none for a loss of the user's own."""
    if LOSSES[options.loss_type].surrogate not in OF_SURROGATES:
        return []
    names = dict.fromkeys(name for names in OF_SURROGATES.values() for name in names)
    return [name for name in names if getattr(options, name) != getattr(LearningOptions, name)]


def _check_surrogate(options: LearningOptions) -> None:
    surrogate = LOSSES[options.loss_type].surrogate
    for name in (each for each in _changed(options) if each not in OF_SURROGATES[surrogate]):
        known = [each for each, loss in LOSSES.items() if name in OF_SURROGATES.get(loss.surrogate, ())]
        raise ValueError(
            f"loss_type={options.loss_type!r} does not read {name}, got {getattr(options, name)}: leave it out, or "
            f"use one of {', '.join(known)}"
        )


def _check_reference(options: LearningOptions, settings: LearningSettings) -> None:
    loss_has_kl = options.beta > 0 and settings.kl_in == "loss"
    if loss_has_kl and LOSSES[options.loss_type].is_of_sequence:
        raise ValueError(
            f"loss_type={options.loss_type!r} has no term for the divergence of each token: set beta=0, or "
            f"kl_in='reward', which takes it off the reward"
        )
    if type(options).use_bias_correction_kl and not options.use_bias_correction_kl and not loss_has_kl:
        raise ValueError(
            f"use_bias_correction_kl=False needs a divergence in the loss, got beta={options.beta} and "
            f"kl_in={settings.kl_in!r}: leave it out"
        )
    if not options.beta and (options.kl_in is not None or options.sync_ref_model):
        raise ValueError("kl_in and sync_ref_model need a reference, and with beta=0 there is none: set beta")
    if not options.sync_ref_model and (options.ref_model_mixup_alpha, options.ref_model_sync_steps) != (0.6, 512):
        raise ValueError("ref_model_mixup_alpha and ref_model_sync_steps need sync_ref_model=True")


def _check_advantages(options: LearningOptions, settings: LearningSettings) -> None:
    estimator, loss = settings.advantage_estimator, LOSSES[options.loss_type]
    if settings.normalize_advantages and settings.scale_rewards != "none":
        cause = "normalize_advantages=True" if options.normalize_advantages else f"advantage_estimator={estimator!r}"
        raise ValueError(
            f"{cause} and scale_rewards={settings.scale_rewards!r} both scale advantages; set it to 'none'"
        )
    charged = {"beta": settings.charges_kl, "overlong_buffer": options.overlong_buffer}
    if estimator == "max_rl" and any(charged.values()):
        name = next(name for name, is_on in charged.items() if is_on)
        raise ValueError(
            f"advantage_estimator='max_rl' divides by mean rewards, so they must be at least 0, and {name} makes "
            f"them less: set {name}=0"
        )
    if options.max_refills and ESTIMATORS[estimator].whitens:
        raise ValueError(
            f"max_refills replaces groups whose rewards are equal, and advantage_estimator={estimator!r} learns "
            f"from them: set max_refills=0"
        )
    if options.max_refills and settings.charges_kl:
        remedy = "beta=0" if loss.is_of_sequence else "beta=0 or kl_in='loss'"
        raise ValueError(
            f"max_refills replaces groups whose rewards are equal, and with kl_in='reward' and beta={options.beta} "
            f"they differ by their divergence: set max_refills=0, {remedy}"
        )
    if options.credit == "episode" and options.discount != 1:
        raise ValueError(f"discount={options.discount} needs credit='turn': an episode has one reward")
    if options.credit == "turn" and not loss.is_of_tokens:
        others = ", ".join(name for name, each in LOSSES.items() if each.is_of_tokens)
        raise ValueError(
            f"credit='turn' gives the turns of an episode different advantages, and loss_type={options.loss_type!r} "
            f"has one ratio for the whole episode; use one of {others}"
        )


def _check_entropy(options: LearningOptions) -> None:
    if options.top_entropy_quantile == 1:
        return
    if not LOSSES[options.loss_type].is_of_tokens:
        raise ValueError(
            f"top_entropy_quantile={options.top_entropy_quantile} chooses tokens, and loss_type={options.loss_type!r} "
            f"has one ratio for each sequence: leave it 1, or use another loss"
        )
    if options.entropy_coef:
        raise ValueError(
            "entropy_coef raises the entropy of all loss tokens, and top_entropy_quantile learns from those of "
            "high entropy only: give one of the two"
        )


def _check_correction(options: LearningOptions, settings: LearningSettings) -> None:
    name = settings.correction
    if name != "none" and not settings.samples_all_tokens:
        raise ValueError(
            f"correction={name!r} compares log-probabilities of the sampler with those of the trainer, and top_p, "
            f"top_k and min_p change the sampler's; got top_p={options.top_p}, top_k={options.top_k}, "
            f"min_p={options.min_p}: switch them off, or set correction='none'"
        )
    if CORRECTIONS[name].of_tokens and LOSSES[options.loss_type].is_of_sequence:
        raise ValueError(
            f"correction={name!r} weighs tokens, and loss_type={options.loss_type!r} has one term for each sequence; "
            f"use 'sequence_tis', 'geometric_mask' or 'none'"
        )
    least, largest = settings.correction_bounds
    if not 0 <= least < largest:
        raise ValueError(f"correction_min must be at least 0 and below correction_max, got {least} and {largest}")
    if name == "none" and (options.correction_min is not None or options.correction_max is not None):
        raise ValueError("correction_min and correction_max need a correction, and there is none")
    if options.correction_min is not None and not CORRECTIONS[name].has_least:
        known = ", ".join(each for each, correction in CORRECTIONS.items() if correction.has_least)
        raise ValueError(f"correction={name!r} has no least ratio: leave correction_min out, or use one of {known}")
