"""Rules of the objective: which options of the loss, the advantages and the correction fit together."""

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
from .config import AgentConfig
from .derived import learning_settings, parts_of_round

OF_SURROGATES: dict[Surrogate, tuple[str, ...]] = {
    clipped: ("epsilon", "epsilon_high", "delta"),
    clipped_weight: ("epsilon_high",),
    soft_gate: ("sapo_temperature_pos", "sapo_temperature_neg"),
    score: (),
}
"""The options that each surrogate of a loss reads; setting another one is an error."""


def paper_of_the_loss(args: AgentConfig) -> None:
    """A loss without the other half of its paper is a warning."""
    settings = learning_settings(args)
    if args.loss_type == "dr_grpo" and settings.comparison.scale_rewards == "group":
        warnings.warn(
            "loss_type='dr_grpo' is half of its paper: the other half is scale_rewards='none', got 'group'",
            stacklevel=5,
        )
    is_of_mean = LOSSES[args.loss_type].ratio in (of_mean_token, of_mean_token_at_token)
    if is_of_mean and args.epsilon == AgentConfig.epsilon and not settings.is_on_policy:
        warnings.warn(
            f"loss_type={args.loss_type!r} hardly clips with epsilon={args.epsilon}, because the mean ratio of a "
            f"sample is close to 1: its paper uses epsilon=3e-4 and epsilon_high=4e-4",
            stacklevel=5,
        )


def read_by_the_loss(args: AgentConfig) -> None:
    """An option that the surrogate of the loss does not read is an error."""
    surrogate = LOSSES[args.loss_type].surrogate
    for name in (name for name in _changed(args) if name not in OF_SURROGATES[surrogate]):
        known = [each for each, loss in LOSSES.items() if name in OF_SURROGATES.get(loss.surrogate, ())]
        raise ValueError(
            f"loss_type={args.loss_type!r} does not read {name}, got {getattr(args, name)}: leave it out, or "
            f"use one of {', '.join(known)}"
        )


def _changed(args: AgentConfig) -> list[str]:
    """Return the options of surrogates that differ from their defaults; none for a loss of the user's own."""
    if LOSSES[args.loss_type].surrogate not in OF_SURROGATES:
        return []
    names = dict.fromkeys(name for names in OF_SURROGATES.values() for name in names)
    return [name for name in names if getattr(args, name) != getattr(AgentConfig, name)]


def bounds_of_the_ratio(args: AgentConfig) -> None:
    """Rounds that serve several steps need a ratio, and its bounds have no effect in other rounds."""
    settings = learning_settings(args)
    if args.loss_type == "reinforce" and not settings.is_on_policy:
        raise ValueError(
            f"loss_type='reinforce' has no ratio that corrects old samples: use each round in one step, with "
            f"num_iterations=1 and steps_per_generation=gradient_accumulation_steps; got {args.num_iterations} and "
            f"{parts_of_round(args)} with {args.gradient_accumulation_steps}"
        )
    if args.delta is not None and args.delta <= 1 + settings.epsilon_high:
        raise ValueError(f"delta must be above 1 + epsilon_high, where the ratio is clipped anyway, got {args.delta}")
    if (idle := _changed(args)) and settings.is_on_policy:
        warnings.warn(
            f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect: each round is used in one step, in "
            f"which the ratio of new and old policy is 1; use a round in several steps with num_iterations, or with "
            f"steps_per_generation above gradient_accumulation_steps",
            stacklevel=5,
        )


def reference(args: AgentConfig) -> None:
    """The options of the divergence need a reference, and a loss that can take it."""
    settings = learning_settings(args)
    loss_has_kl = args.beta > 0 and settings.kl_in == "loss"
    if loss_has_kl and LOSSES[args.loss_type].is_of_sequence:
        raise ValueError(
            f"loss_type={args.loss_type!r} has no term for the divergence of each token: set beta=0, or "
            f"kl_in='reward', which takes it off the reward"
        )
    if type(args).use_bias_correction_kl and not args.use_bias_correction_kl and not loss_has_kl:
        raise ValueError(
            f"use_bias_correction_kl=False needs a divergence in the loss, got beta={args.beta} and "
            f"kl_in={settings.kl_in!r}: leave it out"
        )
    if not args.beta and (args.kl_in is not None or args.sync_ref_model):
        raise ValueError("kl_in and sync_ref_model need a reference, and with beta=0 there is none: set beta")
    if not args.sync_ref_model and (args.ref_model_mixup_alpha, args.ref_model_sync_steps) != (0.6, 512):
        raise ValueError("ref_model_mixup_alpha and ref_model_sync_steps need sync_ref_model=True")


def advantages(args: AgentConfig) -> None:
    """Scaling, penalties, refills and credit must suit the estimator and the loss."""
    settings, loss = learning_settings(args), LOSSES[args.loss_type]
    comparison = settings.comparison
    estimator = comparison.advantage_estimator
    if comparison.normalize_advantages and comparison.scale_rewards != "none":
        cause = "normalize_advantages=True" if args.normalize_advantages else f"advantage_estimator={estimator!r}"
        raise ValueError(
            f"{cause} and scale_rewards={comparison.scale_rewards!r} both scale advantages; set it to 'none'"
        )
    charged = {"beta": settings.charges_kl, "overlong_buffer": args.overlong_buffer}
    if estimator == "max_rl" and any(charged.values()):
        name = next(name for name, is_on in charged.items() if is_on)
        raise ValueError(
            f"advantage_estimator='max_rl' divides by mean rewards, so they must be at least 0, and {name} makes "
            f"them less: set {name}=0"
        )
    if args.max_refills and ESTIMATORS[estimator].whitens:
        raise ValueError(
            f"max_refills replaces groups whose rewards are equal, and advantage_estimator={estimator!r} learns "
            f"from them: set max_refills=0"
        )
    if args.max_refills and settings.charges_kl:
        remedy = "beta=0" if loss.is_of_sequence else "beta=0 or kl_in='loss'"
        raise ValueError(
            f"max_refills replaces groups whose rewards are equal, and with kl_in='reward' and beta={args.beta} "
            f"they differ by their divergence: set max_refills=0, {remedy}"
        )
    if args.credit == "episode" and args.discount != 1:
        raise ValueError(f"discount={args.discount} needs credit='turn': an episode has one reward")
    if args.credit == "turn" and not loss.is_of_tokens:
        others = ", ".join(name for name, other in LOSSES.items() if other.is_of_tokens)
        raise ValueError(
            f"credit='turn' gives the turns of an episode different advantages, and loss_type={args.loss_type!r} "
            f"has one ratio for the whole episode; use one of {others}"
        )


def entropy(args: AgentConfig) -> None:
    """`top_entropy_quantile` needs ratios of tokens, and excludes the entropy bonus."""
    if args.top_entropy_quantile == 1:
        return
    if not LOSSES[args.loss_type].is_of_tokens:
        raise ValueError(
            f"top_entropy_quantile={args.top_entropy_quantile} chooses tokens, and loss_type={args.loss_type!r} "
            f"has one ratio for each sequence: leave it 1, or use another loss"
        )
    if args.entropy_coef:
        raise ValueError(
            "entropy_coef raises the entropy of all loss tokens, and top_entropy_quantile learns from those of "
            "high entropy only: give one of the two"
        )


def correction(args: AgentConfig) -> None:
    """A correction must suit the sampling and the loss, and its bounds the correction."""
    settings = learning_settings(args)
    name = settings.correction
    if name != "none" and not settings.samples_all_tokens:
        raise ValueError(
            f"correction={name!r} compares log-probabilities of the sampler with those of the trainer, and top_p, "
            f"top_k and min_p change the sampler's; got top_p={args.top_p}, top_k={args.top_k}, "
            f"min_p={args.min_p}: switch them off, or set correction='none'"
        )
    if CORRECTIONS[name].of_tokens and LOSSES[args.loss_type].is_of_sequence:
        raise ValueError(
            f"correction={name!r} weighs tokens, and loss_type={args.loss_type!r} has one term for each sequence; "
            f"use 'sequence_tis', 'geometric_mask' or 'none'"
        )
    least, largest = settings.correction_bounds
    if not 0 <= least < largest:
        raise ValueError(f"correction_min must be at least 0 and below correction_max, got {least} and {largest}")
    if name == "none" and (args.correction_min is not None or args.correction_max is not None):
        raise ValueError("correction_min and correction_max need a correction, and there is none")
    if args.correction_min is not None and not CORRECTIONS[name].has_least:
        known = ", ".join(other for other, row in CORRECTIONS.items() if row.has_least)
        raise ValueError(f"correction={name!r} has no least ratio: leave correction_min out, or use one of {known}")
