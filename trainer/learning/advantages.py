"""Advantages: how much better an episode was than its group.

A group is the episodes of one task from one environment seed. Groups may be ragged (a failed member leaves its group),
so an estimator takes one group, of two members or more, and functions that need the whole batch take a list of groups.
Rewards are float64: float32 rounds the mean of equal rewards to another number, and division by a tiny deviation
enlarges the difference. With `credit="turn"` returns of one turn take the place of rewards.

Axes: G, the members of one group; P, the processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Scale = Literal["group", "batch", "none"]
"""Which standard deviation of rewards advantages are divided by: the group's, the whole batch's, or none."""

KLIn = Literal["loss", "reward"]
"""Whether the divergence from the reference is added to the loss, or subtracted from the reward."""

Gather = Callable[[Tensor], Tensor]
"""Concatenates the (1, n) tensors of all P processes to (P, n), as `accelerate.Accelerator.gather` does."""

STD_FLOOR = 1e-4
"""Added to every standard deviation, so that a group of equal rewards has advantages of 0, not NaN."""


def this_process_only(values: Tensor) -> Tensor:
    """Return the values as they are: the `Gather` of a single process."""
    return values


def grpo(rewards_G: Tensor) -> Tensor:
    """Return reward minus the group's mean (Shao et al. 2024, arXiv 2402.03300, section 4.1.2, before its scaling)."""
    rewards_G = rewards_G - rewards_G[0]  # equal rewards become exactly 0, and so does their mean
    return rewards_G - rewards_G.mean()


def rloo(rewards_G: Tensor) -> Tensor:
    """Return reward minus the mean of the others, the leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740).

    It equals `grpo` times G / (G - 1). The baseline of a member does not depend on its own reward, so it has no bias.
    """
    rewards_G = rewards_G - rewards_G[0]  # as in `grpo`
    mean_of_others_G = (rewards_G.sum() - rewards_G) / (rewards_G.numel() - 1)
    return rewards_G - mean_of_others_G


def max_rl(rewards_G: Tensor) -> Tensor:
    """Return (reward - mean) / mean, the gradient of the log success rate (Tajwar et al. 2026, arXiv 2602.02710).

    A group whose rewards are all 0 has advantages of 0. Negative rewards are an error, see `Comparison.check`.
    """
    mean = rewards_G.mean()
    return grpo(rewards_G) / (mean if mean > 0 else 1.0)


def scale_advantages(
    advantages: list[Tensor], rewards: list[Tensor], how: Scale, gather: Gather = this_process_only
) -> list[Tensor]:
    """Divide the advantages of each group by the (unbiased) standard deviation of rewards.

    "group" is GRPO as published. It gives more weight to tasks that are nearly always or nearly never solved, so "none"
    was proposed (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783). "batch" divides all advantages by the standard deviation
    of all rewards in all processes, which includes differences between tasks.

    `advantages` has one (G,) tensor for each group of this process, and `rewards` those that they came from. `gather`
    is called once for "batch", and not otherwise. A process without groups must call this function too, or the others
    wait for it.
    """
    if how == "none":
        return list(advantages)
    if how == "group":
        return [a_G / (r_G.std() + STD_FLOOR) for a_G, r_G in zip(advantages, rewards, strict=True)]
    _, std = _mean_and_std(rewards, gather)
    return [a_G / (std + STD_FLOOR) for a_G in advantages]


def whiten(advantages: list[Tensor], gather: Gather = this_process_only) -> list[Tensor]:
    """Shift and scale the advantages of all processes together to mean 0 and standard deviation 1.

    TRL calls this `normalize_advantages`. It comes from PPO, where it is done per minibatch: Huang et al. 2022,
    "The 37 Implementation Details of Proximal Policy Optimization", detail 7. `gather` is as in `scale_advantages`.
    """
    mean, std = _mean_and_std(advantages, gather)
    rounding = 1e-12 * mean.abs()  # equal advantages become exactly 0, as in `grpo`
    return [torch.where((a_G - mean).abs() <= rounding, 0.0, a_G - mean) / (std + STD_FLOOR) for a_G in advantages]


def _mean_and_std(groups: list[Tensor], gather: Gather) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased standard deviation of all values of all processes.

    Each process sends count, mean and sum of squared deviations. They are merged as in Chan, Golub and LeVeque 1979,
    which does not cancel as raw sums of squares do.
    """
    values_N = torch.cat(groups) if groups else torch.zeros(0, dtype=torch.float64)
    count = values_N.new_tensor(float(values_N.numel()))
    mean = values_N.sum() / count.clamp(min=1)
    squares = (values_N - mean).square().sum()

    counts_P, means_P, squares_P = gather(torch.stack([count, mean, squares])[None]).unbind(dim=1)
    total = counts_P.sum()
    mean = (counts_P * means_P).sum() / total.clamp(min=1)
    squares = (squares_P + counts_P * (means_P - mean).square()).sum()
    return mean, (squares / (total - 1).clamp(min=1)).sqrt()


def quantile(values_N: Tensor, share: float, gather: Gather = this_process_only) -> float:
    """Return the value below which this share of all processes' values lies, interpolated; 0 if there are no values."""
    most = int(gather(torch.tensor([[float(len(values_N))]])).max())
    if not most:
        return 0.0
    padded_M = torch.full((most,), torch.nan)
    padded_M[: len(values_N)] = values_N
    return float(np.nanquantile(gather(padded_M[None]).numpy(), share))  # torch's takes 2**24 values at most


@dataclass(kw_only=True, slots=True, frozen=True)
class Estimator:
    """A row of `ESTIMATORS`."""

    advantage: Callable[[Tensor], Tensor]  # rewards (G,) of one group to advantages (G,); equal rewards to equal ones
    scale: Scale = "none"  # of `scale_advantages`, unless an option says otherwise
    whitens: bool = False  # then `whiten` all advantages


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(advantage=grpo, scale="group"),
    "rloo": Estimator(advantage=rloo),
    "max_rl": Estimator(advantage=max_rl),
    # Hu et al. 2025, "REINFORCE++", arXiv 2501.03262: the baseline is the mean of the whole batch, not of the group.
    "reinforce++": Estimator(advantage=lambda rewards_G: rewards_G, whitens=True),
}
