"""Policy-gradient losses, as a table: two losses differ only in their rows of `LOSSES`.

The loss is ready for `backward()`: it is already divided by gradient accumulation.

Axes: B sequences (rows of one micro-batch); T tokens, of which those with mask 1 count; R ratios of a row, T or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .corrections import CORRECTIONS, Mismatch
from .ratios import MAX_LOG_RATIO, k3, ratio_of
from .settings import LearningSettings


@dataclass(kw_only=True, slots=True, frozen=True)
class LossInputs:
    """The tensors of one micro-batch that its loss is computed from."""

    logprobs_BT: Tensor  # log-probabilities under the policy in training, with gradient
    old_logprobs_BT: Tensor | None = None
    """Under the policy that sampled. None: on-policy, so the ratio is 1 and only its gradient matters."""
    mask_BT: Tensor
    """1 (or True) on loss tokens, which the model sampled; 0 on tool results and padding, whose values are ignored."""
    advantages_BT: Tensor
    """A loss with one ratio for each sequence reads only that of its first loss token."""
    shares_B: Tensor | None = None
    """Share of each row in the loss tokens of its episode. None: each row is a whole episode."""
    sampling_logprobs_BT: Tensor | None = None
    """Under the distribution that was sampled from, for the correction. None: no correction."""
    ref_logprobs_BT: Tensor | None = None  # Under the reference model, for the KL term. None: no KL term.
    entropies_BT: Tensor | None = None  # of the distribution at each token, with gradient if `entropy_coef` is not 0


@dataclass(kw_only=True, slots=True, frozen=True)
class StepCounts:
    """The sizes of one optimiser step, which losses divide by."""

    loss_tokens: float | Tensor  # of all batches and processes
    sequences: float | Tensor  # episodes with a loss token, of all batches and processes
    batch_loss_tokens: float | Tensor  # of the batch that this micro-batch is a part of; only `bnpo` reads it
    batches: int  # batches of each process; only `bnpo` reads it
    processes: int  # processes, over which gradients are averaged


Ratio = Callable[[Tensor, Tensor], Tensor]
"""(log pi/pi_old (B, T), which is 0 where the mask is; mask) -> the log-ratios of a row, (B, R)."""

Surrogate = Callable[[Tensor, Tensor, Tensor, LearningSettings], Tensor]
"""(ratios (B, R), log pi (B, R), advantages (B, R), settings) -> terms (B, R) to minimise."""

Reduction = Callable[[Tensor, Tensor, StepCounts, LearningSettings], Tensor]
"""(terms (B, R), 0 at other tokens; number of terms in each row's episode (B,); counts, settings) -> loss."""

Clips = Callable[[Tensor, Tensor, LearningSettings], tuple[Tensor, Tensor]]
"""(ratios (B, R), advantages (B, R), settings) -> whether each term is clipped from below, and from above."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Loss:
    """A row of `LOSSES`."""

    ratio: Ratio  # the ratios of probabilities, of tokens or of whole sequences
    surrogate: Surrogate  # 0 if the advantage is 0, since such samples are not computed
    reduce: Reduction
    """Reduces the terms of a micro-batch to its share of the step's loss.

    Gradients are added over micro-batches and averaged over processes, so the divisor is a count of the whole step,
    divided by the number of processes.
    """
    clips: Clips | None  # finds the terms that `clip_ratio/...` counts; None if the surrogate clips no term

    @property
    def is_of_tokens(self) -> bool:
        """Whether each token has a ratio, and so an advantage, of its own."""
        return self.ratio(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)).shape[1] == 2

    @property
    def is_of_sequence(self) -> bool:
        """Whether a sequence is one action: its ratio is the product of its tokens', as that of `of_sequence`."""
        small, mask = torch.full((1, 2), 0.01), torch.ones(1, 2, dtype=torch.bool)
        return torch.equal(self.ratio(small, mask), of_sequence(small, mask))


def of_token(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return one ratio for each token."""
    return log_ratio_BT


def of_sequence(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the ratio of the probabilities of all loss tokens of a sequence, (B, 1)."""
    return log_ratio_BT.sum(dim=1, keepdim=True)


def of_mean_token(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the geometric mean of the ratios of a sequence's loss tokens, (B, 1)."""
    return log_ratio_BT.sum(dim=1, keepdim=True) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)


def of_mean_token_at_token(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the value of `of_mean_token` at each token, with the gradient of the token's own ratio."""
    return of_mean_token(log_ratio_BT, mask_BT).detach() + log_ratio_BT - log_ratio_BT.detach()


def clipped(ratio_BR: Tensor, logprobs_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> Tensor:
    """Return -min(ratio * A, clip(ratio) * A) of PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7).

    With `delta`, the ratio is at most that, so that a negative advantage has a bounded term: the dual clip of Ye et al.
    2020, arXiv 1912.09729.
    """
    clipped_BR = ratio_BR.clamp(1 - settings.epsilon_low, 1 + settings.epsilon_high)
    if settings.delta is not None:
        ratio_BR = ratio_BR.clamp(max=settings.delta)
    return -torch.min(ratio_BR * advantages_BR, clipped_BR * advantages_BR)


def clipped_weight(ratio_BR: Tensor, logprobs_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> Tensor:
    """Return -min(ratio, 1 + epsilon_high) * A * log pi, with a constant ratio: every token keeps a gradient."""
    return -ratio_BR.detach().clamp(max=1 + settings.epsilon_high) * advantages_BR * logprobs_BR


def soft_gate(ratio_BR: Tensor, logprobs_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> Tensor:
    """Return -4/t * sigmoid(t * (ratio - 1)) * A: the gradient fades where the ratio is far from 1."""
    temperature_BR = torch.where(advantages_BR > 0, settings.sapo_temperature_pos, settings.sapo_temperature_neg)
    return -(temperature_BR * (ratio_BR - 1)).sigmoid() * 4 / temperature_BR * advantages_BR


def score(ratio_BR: Tensor, logprobs_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> Tensor:
    """Return -A * log pi, whatever the ratio (Williams 1992, "REINFORCE")."""
    return -advantages_BR * logprobs_BR


def outside_epsilon(ratio_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> tuple[Tensor, Tensor]:
    """Return the terms of `clipped` without gradient: their ratio is out of bounds, as their advantage asks."""
    low_BR = (ratio_BR < 1 - settings.epsilon_low) & (advantages_BR < 0)
    return low_BR, (ratio_BR > 1 + settings.epsilon_high) & (advantages_BR > 0)


def above_epsilon(ratio_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> tuple[Tensor, Tensor]:
    """Return the terms of `clipped_weight` with an advantage above 0 and a ratio above the largest weight."""
    low_BR, high_BR = outside_epsilon(ratio_BR, advantages_BR, settings)
    return torch.zeros_like(low_BR), high_BR


def mean_of_sequence_means(terms_BR: Tensor, sizes_B: Tensor, counts: StepCounts, settings: LearningSettings) -> Tensor:
    """Weigh each episode of the step the same, whatever its length."""
    means_B = terms_BR.sum(dim=1) / sizes_B
    return means_B.sum() / _per_process(counts.sequences, counts, means_B)


def mean_of_all_tokens(terms_BR: Tensor, sizes_B: Tensor, counts: StepCounts, settings: LearningSettings) -> Tensor:
    """Weigh each token of the step the same."""
    return terms_BR.sum() / _per_process(counts.loss_tokens, counts, terms_BR)


def sum_over_longest(terms_BR: Tensor, sizes_B: Tensor, counts: StepCounts, settings: LearningSettings) -> Tensor:
    """Divide by episodes times `max_completion_length`, a constant, so that long answers are not favoured."""
    return terms_BR.sum() / (_per_process(counts.sequences, counts, terms_BR) * settings.max_completion_length)


def mean_of_sequence_sums(terms_BR: Tensor, sizes_B: Tensor, counts: StepCounts, settings: LearningSettings) -> Tensor:
    """Add up the terms of an episode; weigh each episode of the step the same."""
    return terms_BR.sum() / _per_process(counts.sequences, counts, terms_BR)


def mean_of_local_tokens(terms_BR: Tensor, sizes_B: Tensor, counts: StepCounts, settings: LearningSettings) -> Tensor:
    """Weigh each token of this batch the same: the one reduction that depends on how a step is cut into batches."""
    return terms_BR.sum() / torch.as_tensor(counts.batch_loss_tokens).clamp(min=1) / counts.batches


def _per_process(count: float | Tensor, counts: StepCounts, like: Tensor) -> Tensor:
    count = torch.as_tensor(count, dtype=like.dtype, device=like.device)
    return count.clamp(min=1) / counts.processes


LOSSES: dict[str, Loss] = {
    # Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, equation 3.
    "grpo": Loss(ratio=of_token, surrogate=clipped, reduce=mean_of_sequence_means, clips=outside_epsilon),
    # TRL's documentation of `GRPOConfig.loss_type`: https://huggingface.co/docs/trl/grpo_trainer.
    "bnpo": Loss(ratio=of_token, surrogate=clipped, reduce=mean_of_local_tokens, clips=outside_epsilon),
    # Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv 2503.20783: no bias towards long wrong answers.
    "dr_grpo": Loss(ratio=of_token, surrogate=clipped, reduce=sum_over_longest, clips=outside_epsilon),
    # Yu et al. 2025, "DAPO", arXiv 2503.14476, section 3.3, over the whole step.
    "dapo": Loss(ratio=of_token, surrogate=clipped, reduce=mean_of_all_tokens, clips=outside_epsilon),
    # MiniMax 2025, "MiniMax-M1", arXiv 2506.13585, section 3.1.
    "cispo": Loss(ratio=of_token, surrogate=clipped_weight, reduce=mean_of_all_tokens, clips=above_epsilon),
    # Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, equations 5 to 7, and 13.
    "gspo": Loss(ratio=of_mean_token, surrogate=clipped, reduce=mean_of_sequence_means, clips=outside_epsilon),
    "gspo_token": Loss(
        ratio=of_mean_token_at_token, surrogate=clipped, reduce=mean_of_sequence_means, clips=outside_epsilon
    ),
    # Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv 2511.20347.
    "sapo": Loss(ratio=of_token, surrogate=soft_gate, reduce=mean_of_sequence_means, clips=None),
    # Ahmadian et al. 2024, "Back to Basics", arXiv 2402.14740: the whole sequence is one action.
    "rloo": Loss(ratio=of_sequence, surrogate=clipped, reduce=mean_of_sequence_means, clips=outside_epsilon),
    # Williams 1992: no ratio, so each round should be used once.
    "reinforce": Loss(ratio=of_token, surrogate=score, reduce=mean_of_sequence_sums, clips=None),
}


def policy_loss(inputs: LossInputs, settings: LearningSettings, counts: StepCounts) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of one micro-batch, and statistics under TRL's names.

    Values at positions with mask 0 have no influence, not even NaN. A micro-batch without loss tokens has loss 0 and
    gradients of 0. The statistics `*_mean` and `kl` are over loss tokens (over sequences for a sequence-level ratio),
    `*_min` and `*_max` of the rates of sequences.
    """
    if settings.loss_type not in LOSSES:
        raise ValueError(f"Unknown loss_type: {settings.loss_type!r}. Known are {', '.join(LOSSES)}.")
    loss = LOSSES[settings.loss_type]
    if loss.is_of_sequence and inputs.ref_logprobs_BT is not None:
        raise ValueError(
            f"The KL of loss_type {settings.loss_type!r} goes into the reward: use kl_in_reward instead of "
            f"ref_logprobs_BT."
        )
    mask_BT = inputs.mask_BT.bool()
    logprobs_BT = torch.where(mask_BT, inputs.logprobs_BT, 0.0)
    old_logprobs_BT = logprobs_BT.detach() if inputs.old_logprobs_BT is None else inputs.old_logprobs_BT
    # Masked before `exp`, so that nothing at a masked position can become infinite: inf * 0 is NaN.
    log_ratio_BT = torch.where(mask_BT, logprobs_BT - old_logprobs_BT, 0.0)
    ratio_BR = ratio_of(loss.ratio(log_ratio_BT, mask_BT))
    advantages_BR = advantages_BT = torch.where(mask_BT, inputs.advantages_BT, 0.0)
    mask_BR = mask_BT
    if not loss.is_of_tokens:  # then the first loss token has the advantage of all
        advantages_BR = advantages_BT.gather(1, mask_BT.int().argmax(dim=1, keepdim=True))
        mask_BR = mask_BT.any(dim=1, keepdim=True)
    terms_BR = loss.surrogate(ratio_BR, logprobs_BT, advantages_BR, settings)
    stats = _clip_stats(loss, ratio_BR.detach(), advantages_BR, mask_BR, settings)

    weigh = CORRECTIONS[settings.correction].weigh
    if weigh is not None and inputs.sampling_logprobs_BT is not None:
        mismatch = Mismatch.of(logprobs_BT, old_logprobs_BT, inputs.sampling_logprobs_BT, mask_BT, advantages_BT)
        weights, is_cut = weigh(mismatch, settings.correction_bounds)
        terms_BR = terms_BR * weights
        mask_BR = mask_BT if terms_BR.shape == mask_BT.shape else mask_BR
        stats["mismatch/cut"] = _masked_mean(is_cut.expand(mask_BT.shape).float(), mask_BT)

    if inputs.ref_logprobs_BT is not None:
        log_ref_BT = torch.where(mask_BT, inputs.ref_logprobs_BT - logprobs_BT, 0.0)
        kl_BT = k3(log_ref_BT)
        if settings.use_bias_correction_kl:  # where k3 has no gradient, its value must not become that of the ratio
            kl_BT = kl_BT * torch.where(log_ref_BT > MAX_LOG_RATIO, ratio_BR.detach(), ratio_BR)
        if settings.beta != 0:  # a term of a whole sequence is added to each of its tokens
            terms_BR, mask_BR = terms_BR + settings.beta * kl_BT, mask_BT
        stats["kl"] = _masked_mean(kl_BT.detach(), mask_BT)

    sizes_B = mask_BR.sum(dim=1).clamp(min=1)
    if inputs.shares_B is not None and not loss.is_of_sequence:  # its terms are sums, which add up over samples
        sizes_B = sizes_B / inputs.shares_B
    total = loss.reduce(torch.where(mask_BR, terms_BR, 0.0), sizes_B, counts, settings)
    if settings.entropy_coef and inputs.entropies_BT is not None:
        entropies_BT = torch.where(mask_BT, inputs.entropies_BT, 0.0)
        total = total - settings.entropy_coef * mean_of_all_tokens(entropies_BT, sizes_B, counts, settings)
    return total, stats


def _masked_mean(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    return torch.where(mask_BR, values_BR, 0.0).sum() / mask_BR.sum().clamp(min=1)


def _clip_stats(
    loss: Loss, ratio_BR: Tensor, advantages_BR: Tensor, mask_BR: Tensor, settings: LearningSettings
) -> dict[str, Tensor]:
    """Return the rates of clipping, if the loss clips: from below, from above, and both. Empty rows do not count."""
    if loss.clips is None:
        return {}
    low_BR, high_BR = (mask_BR & is_clipped_BR for is_clipped_BR in loss.clips(ratio_BR, advantages_BR, settings))
    counts_B = mask_BR.sum(dim=1)
    low_B, high_B = (is_clipped_BR.sum(dim=1) / counts_B.clamp(min=1) for is_clipped_BR in (low_BR, high_BR))
    total = counts_B.sum().clamp(min=1)
    return {
        "clip_ratio/low_mean": low_BR.sum() / total,
        "clip_ratio/high_mean": high_BR.sum() / total,
        "clip_ratio/region_mean": (low_BR | high_BR).sum() / total,
        # A rate is at most 1, so 1 never wins the minimum; it is 0 where no sequence counts.
        "clip_ratio/low_min": low_B.masked_fill(counts_B == 0, 1.0).min() * (counts_B > 0).any(),
        "clip_ratio/high_max": high_B.max(),
    }
