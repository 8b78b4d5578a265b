"""Corrections of the mismatch between the sampler and the trainer, as a table.

A generator with kernels or a precision of its own (vLLM) samples from a distribution that is not quite the trainer's. A
correction weighs the terms of the loss by a function of pi/mu, or removes episodes. Here pi is the trainer's policy
when the round was played, and mu the distribution that was sampled from, whose exact log-probabilities the trace has.

Axes: B sequences; T tokens; N loss tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .ratios import ratio_of

Bounds = tuple[float, float]


@dataclass(kw_only=True, slots=True, frozen=True)
class Mismatch:
    """The tensors that a correction reads; all are without gradient, and 0 where the mask is."""

    log_ratio_BT: Tensor  # log(pi/mu) of each token
    probability_gain_BT: Tensor  # its probability under the weights in training, minus that under mu
    advantages_BT: Tensor

    @classmethod
    def of(
        cls, logprobs_BT: Tensor, old_logprobs_BT: Tensor, sampling_BT: Tensor, mask_BT: Tensor, advantages_BT: Tensor
    ) -> Mismatch:
        """Compare log-probabilities under the weights in training, pi and mu, where the mask is not 0."""
        log_ratio_BT = torch.where(mask_BT, old_logprobs_BT.detach() - sampling_BT, 0.0)
        gain_BT = torch.where(mask_BT, logprobs_BT.detach().exp() - sampling_BT.exp(), 0.0)
        return cls(log_ratio_BT=log_ratio_BT, probability_gain_BT=gain_BT, advantages_BT=advantages_BT)


Weigh = Callable[[Mismatch, Bounds], tuple[Tensor, Tensor]]
"""(mismatch, bounds) -> weights of the terms and whether each was cut, both (B, T), or (B, 1) for whole sequences."""

Keep = Callable[[Tensor, Bounds], bool]
"""(log(pi/mu) of an episode's loss tokens (N,), bounds) -> whether the episode stays in its group."""


def truncated(mismatch: Mismatch, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Return min(pi/mu, max) of each token."""
    ratio_BT = ratio_of(mismatch.log_ratio_BT)
    return ratio_BT.clamp(max=bounds[1]), ratio_BT > bounds[1]


def truncated_sequence(mismatch: Mismatch, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Return min(pi/mu, max) of each sequence."""
    ratio_B1 = ratio_of(mismatch.log_ratio_BT.sum(dim=1, keepdim=True))
    return ratio_B1.clamp(max=bounds[1]), ratio_B1 > bounds[1]


def masked(mismatch: Mismatch, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Return pi/mu of each token; 0 outside the bounds."""
    ratio_BT = ratio_of(mismatch.log_ratio_BT)
    is_cut_BT = (ratio_BT < bounds[0]) | (ratio_BT > bounds[1])
    return ratio_BT.masked_fill(is_cut_BT, 0.0), is_cut_BT


def behaviour_clip(mismatch: Mismatch, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Return pi/mu of each token; 0 where training has moved its probability too far from mu.

    Too far: by more than max, in the direction of its advantage. The loss multiplies by the ratio of the weights in
    training to pi, so the product is their ratio to mu.
    """
    is_cut_BT = mismatch.probability_gain_BT * mismatch.advantages_BT.sign() > bounds[1]
    return ratio_of(mismatch.log_ratio_BT).masked_fill(is_cut_BT, 0.0), is_cut_BT


def geometric_mean_within(log_ratio_N: Tensor, bounds: Bounds) -> bool:
    """Return whether the geometric mean of pi/mu over an episode is within the bounds."""
    return bounds[0] <= ratio_of(log_ratio_N.mean()).item() <= bounds[1]


@dataclass(kw_only=True, slots=True, frozen=True)
class Correction:
    """A row of `CORRECTIONS`."""

    bounds: Bounds  # the defaults of `correction_min` and `correction_max`
    weigh: Weigh | None = None
    keep: Keep | None = None
    """Removes episodes before advantages are computed, so that they do not count in the baseline of their group."""
    of_tokens: bool = True
    """Whether tokens of a sequence have different weights, which a loss with one ratio for each sequence cannot use."""
    has_least: bool = False  # whether the lower bound has a meaning


CORRECTIONS: dict[str, Correction] = {
    "none": Correction(bounds=(0.0, math.inf), of_tokens=False),
    # Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    "tis": Correction(bounds=(0.0, 2.0), weigh=truncated),
    "sequence_tis": Correction(bounds=(0.0, 5.0), weigh=truncated_sequence, of_tokens=False),
    # Ling Team 2025, "Every Step Evolves", arXiv 2510.18855: IcePop.
    "icepop": Correction(bounds=(0.5, 5.0), weigh=masked, has_least=True),
    # Liu et al. 2025, "When Speed Kills Stability": the geometric mean over a sequence.
    "geometric_mask": Correction(bounds=(0.99, 1.01), keep=geometric_mean_within, of_tokens=False, has_least=True),
    # Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879: DPPO-Binary-TV.
    "behaviour_clip": Correction(bounds=(0.0, 0.2), weigh=behaviour_clip),
    # Hilton et al. 2022, "Batch size-invariance for policy optimization", arXiv 2110.00641: the loss clips around pi.
    "decoupled": Correction(bounds=(0.0, math.inf), weigh=masked, has_least=True),
}

MEANS_OF_RATIOS = ("mismatch/mean_ratio", "mismatch/mean_squared_ratio")


def mismatch_metrics(log_ratio_N: Tensor) -> dict[str, Tensor]:
    """Measure KL(mu || pi) in nats a token, by the estimator k3, and the means for `effective_sample_size`."""
    ratio_N = ratio_of(log_ratio_N)
    means = dict(zip(MEANS_OF_RATIOS, (ratio_N.mean(), ratio_N.square().mean()), strict=True))
    return {"mismatch/kl": (ratio_N - 1 - log_ratio_N).mean(), **means}


def effective_sample_size(mean_ratio: float, mean_square: float) -> float:
    """Return the effective sample size of tokens weighed by pi/mu, as a share of their number; 1 if all are equal."""
    return mean_ratio**2 / mean_square if mean_square else 0.0
