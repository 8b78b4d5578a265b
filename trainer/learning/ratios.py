"""Ratios of probabilities, and divergences that are estimated from them."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Larger log-ratios are clamped to this. `exp` overflows float32 at 88, which a sum over a long sequence can reach. The
gradient of an infinite ratio is NaN even where clipping discards it (0 * inf)."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Return exp(log-ratio), which is finite."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def k3(log_ratio: Tensor) -> Tensor:
    """Estimate KL(pi || ref) at tokens sampled from pi, from log(ref/pi): unbiased and never negative.

    The estimator k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html. Above a log-ratio of `MAX_LOG_RATIO` it is
    constant: one token that the reference finds far likelier would make the loss infinite.
    """
    log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO)
    return log_ratio.exp() - log_ratio - 1


def kl_in_reward(old_logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the sum of log(pi_old/ref) over each sequence's loss tokens, (B,); beta times it is taken off the reward.

    Unlike `k3` this may be negative; its expectation is the KL of the sequence (Ahmadian et al. 2024, arXiv
    2402.14740).
    """
    return torch.where(mask_BT.bool(), old_logprobs_BT - ref_logprobs_BT, 0.0).sum(dim=1)
