"""Policy-gradient losses, as a table: a row of `LOSSES` is all that tells one from another.

Every row is the clipped objective of PPO (Schulman et al. 2017, arXiv 1707.06347),

    -min(ratio * advantage, clip(ratio, 1 - epsilon_low, 1 + epsilon_high) * advantage)

and says two things: whether the ratio pi/pi_old is one of each token or one of the whole sequence, and how the terms
are summed up to one number. What comes out is ready for `backward()`: gradient accumulation is divided out already.

Axes: B sequences (rows of one micro-batch); L tokens of a row with its prompt; T tokens, of which those with mask 1
count; R ratios of a row, T or 1; V vocabulary; N, C tokens of many rows, and of a chunk of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MAX_LOG_RATIO = 20.0
"""Larger log-ratios are cut here. `exp` overflows float32 at 88, which a sum over a long sequence can reach, and the
gradient of an infinite ratio is NaN even where clipping discards it (0 * inf)."""

TOKENS_AT_ONCE = 1024
"""So many rows of logits are in float32 at one time: 0.6 GB at a vocabulary of 152k."""


@dataclass(kw_only=True, slots=True, frozen=True)
class LossInputs:
    """What the loss of one micro-batch is computed from."""

    logprobs_BT: Tensor
    """Log-probabilities under the policy in training, with gradient."""
    old_logprobs_BT: Tensor | None = None
    """The same under the policy that sampled. None: on-policy, so the ratio is 1 and only its gradient matters."""
    mask_BT: Tensor
    """1 (or True) on loss tokens, sampled by the model; 0 on tool results and padding, where any value will do."""
    advantages_B: Tensor
    """One for each sequence."""
    ref_logprobs_BT: Tensor | None = None
    """Under the reference model, for the KL term. None: no KL term."""


@dataclass(kw_only=True, slots=True, frozen=True)
class LossSettings:
    """What is the same for all micro-batches of one optimiser step."""

    epsilon_low: float
    """The ratio is clipped at 1 - epsilon_low where the advantage is negative."""
    epsilon_high: float
    """The ratio is clipped at 1 + epsilon_high where the advantage is positive."""
    beta: float
    """Weight of the KL term. At 0 it is measured, where there is a reference, but not trained on."""
    max_completion_length: int
    """Tokens that a completion could have; what `dr_grpo` divides by."""
    accumulation_steps: int
    """Micro-batches in one optimiser step."""
    num_loss_tokens: float | Tensor
    """Loss tokens in all micro-batches of the step, over all processes; what `dapo` divides by."""
    num_processes: int
    """Processes whose gradients are averaged."""
    use_bias_correction_kl: bool = False
    """Multiply the KL term by the ratio, so that its gradient is the reverse KL's (DeepSeek-V3.2, arXiv 2512.02556).

    TRL 1.16 does so unless told not to. It changes the gradient on-policy too: the ratio is 1, its gradient is not 0.
    """


Normalise = Callable[[Tensor, Tensor, LossSettings], Tensor]
"""(terms_BR, mask_BR, settings) -> the scalar loss. The terms are 0 where the mask is 0."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Loss:
    """A row of `LOSSES`."""

    level: Literal["token", "sequence"]
    """One ratio for each token, or for each sequence: that of the probabilities of all its loss tokens together."""
    normalise: Normalise
    """Sums the terms up, and divides gradient accumulation out."""


def mean_of_sequence_means(terms_BR: Tensor, mask_BR: Tensor, settings: LossSettings) -> Tensor:
    """Each sequence weighs the same, whatever its length."""
    means_B = terms_BR.sum(dim=1) / mask_BR.sum(dim=1).clamp(min=1)
    return means_B.mean() / settings.accumulation_steps


def mean_of_local_tokens(terms_BR: Tensor, mask_BR: Tensor, settings: LossSettings) -> Tensor:
    """Each token of the micro-batch weighs the same; what it weighs depends on the micro-batch that it came into."""
    return terms_BR.sum() / mask_BR.sum().clamp(min=1) / settings.accumulation_steps


def sum_over_longest(terms_BR: Tensor, mask_BR: Tensor, settings: LossSettings) -> Tensor:
    """Each token weighs the same in every batch: the divisor is the number of tokens that there could have been."""
    return terms_BR.sum() / (terms_BR.shape[0] * settings.max_completion_length) / settings.accumulation_steps


def mean_of_all_tokens(terms_BR: Tensor, mask_BR: Tensor, settings: LossSettings) -> Tensor:
    """Each token of the optimiser step weighs the same, whatever its micro-batch and process.

    Gradients add up over micro-batches, so the whole step's count divides here and `accumulation_steps` does not;
    they are averaged over processes, so each takes its share of the count.
    """
    num_tokens = torch.as_tensor(settings.num_loss_tokens, dtype=terms_BR.dtype, device=terms_BR.device)
    return terms_BR.sum() / (num_tokens.clamp(min=1) / settings.num_processes)


LOSSES: dict[str, Loss] = {
    # Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, equation 3.
    "grpo": Loss(level="token", normalise=mean_of_sequence_means),
    # TRL's documentation of `GRPOConfig.loss_type`: https://huggingface.co/docs/trl/grpo_trainer.
    "bnpo": Loss(level="token", normalise=mean_of_local_tokens),
    # Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv 2503.20783: no bias towards long wrong answers.
    "dr_grpo": Loss(level="token", normalise=sum_over_longest),
    # Yu et al. 2025, "DAPO", arXiv 2503.14476, section 3.3, over the whole step.
    "dapo": Loss(level="token", normalise=mean_of_all_tokens),
    # Ahmadian et al. 2024, "Back to Basics", arXiv 2402.14740: the whole sequence is one action.
    "rloo": Loss(level="sequence", normalise=mean_of_sequence_means),
}


def policy_loss(loss_type: str, inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch, and what to log about it under TRL's names.

    Positions with mask 0 have no influence whatever stands there, NaN included. A micro-batch without loss tokens has
    loss 0 and gradients of 0. The statistics are of this micro-batch in this process: `*_mean` and `kl` over its loss
    tokens (over its sequences for a sequence-level ratio), `*_min` and `*_max` of the rates of its sequences.

    Raises:
        ValueError: `loss_type` is not in `LOSSES`, or it has a sequence-level ratio and reference log-probabilities
            were given: there the KL belongs into the reward, see `kl_in_reward`.
    """
    if loss_type not in LOSSES:
        raise ValueError(f"Unknown loss_type: {loss_type!r}. Known are {', '.join(LOSSES)}.")
    loss = LOSSES[loss_type]
    if loss.level == "sequence" and inputs.ref_logprobs_BT is not None:
        raise ValueError(
            f"The KL of loss_type {loss_type!r} goes into the reward: use kl_in_reward, no ref_logprobs_BT."
        )

    mask_BT = inputs.mask_BT.bool()
    logprobs_BT = inputs.logprobs_BT
    old_logprobs_BT = logprobs_BT.detach() if inputs.old_logprobs_BT is None else inputs.old_logprobs_BT
    # Masked before `exp`, so that nothing at a masked position can become infinite: inf * 0 is NaN.
    log_ratio_BT = torch.where(mask_BT, logprobs_BT - old_logprobs_BT, 0.0)
    if loss.level == "token":
        log_ratio_BR, mask_BR = log_ratio_BT, mask_BT
    else:
        log_ratio_BR, mask_BR = log_ratio_BT.sum(dim=1, keepdim=True), mask_BT.any(dim=1, keepdim=True)

    ratio_BR = log_ratio_BR.clamp(max=MAX_LOG_RATIO).exp()
    clipped_BR = ratio_BR.clamp(1 - settings.epsilon_low, 1 + settings.epsilon_high)
    advantages_B1 = inputs.advantages_B[:, None]
    terms_BR = -torch.min(ratio_BR * advantages_B1, clipped_BR * advantages_B1)
    stats = _clip_stats(ratio_BR.detach(), advantages_B1, mask_BR, settings)

    if inputs.ref_logprobs_BT is not None:
        kl_BT = k3(torch.where(mask_BT, inputs.ref_logprobs_BT - logprobs_BT, 0.0))
        if settings.use_bias_correction_kl:
            kl_BT = kl_BT * ratio_BR
        if settings.beta != 0:
            terms_BR = terms_BR + settings.beta * kl_BT
        stats["kl"] = _masked_mean(kl_BT.detach(), mask_BT)

    return loss.normalise(torch.where(mask_BR, terms_BR, 0.0), mask_BR, settings), stats


def k3(log_ratio: Tensor) -> Tensor:
    """Estimate KL(pi || ref) at tokens sampled from pi, from log(ref/pi): unbiased and never negative.

    The estimator k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html.
    """
    return log_ratio.exp() - log_ratio - 1


def kl_in_reward(old_logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sum of log(pi_old/ref) over each sequence's loss tokens, (B,): beta times this is taken off its reward.

    Unlike `k3` this may be negative; its expectation is the KL of the sequence (Ahmadian et al. 2024, arXiv
    2402.14740).
    """
    return torch.where(mask_BT.bool(), old_logprobs_BT - ref_logprobs_BT, 0.0).sum(dim=1)


def _masked_mean(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    return torch.where(mask_BR, values_BR, 0.0).sum() / mask_BR.sum().clamp(min=1)


def _clip_stats(ratio_BR: Tensor, advantages_B1: Tensor, mask_BR: Tensor, settings: LossSettings) -> dict[str, Tensor]:
    """How much was clipped from below, from above, and at all. Sequences without loss tokens do not count."""
    low_BR = mask_BR & (ratio_BR < 1 - settings.epsilon_low) & (advantages_B1 < 0)
    high_BR = mask_BR & (ratio_BR > 1 + settings.epsilon_high) & (advantages_B1 > 0)
    counts_B = mask_BR.sum(dim=1)
    low_B = low_BR.sum(dim=1) / counts_B.clamp(min=1)
    high_B = high_BR.sum(dim=1) / counts_B.clamp(min=1)
    total = counts_B.sum().clamp(min=1)
    return {
        "clip_ratio/low_mean": low_BR.sum() / total,
        "clip_ratio/high_mean": high_BR.sum() / total,
        "clip_ratio/region_mean": (low_BR | high_BR).sum() / total,
        # A rate is at most 1, so 1 never wins the minimum; it is 0 where no sequence counts.
        "clip_ratio/low_min": low_B.masked_fill(counts_B == 0, 1.0).min() * (counts_B > 0).any(),
        "clip_ratio/high_max": high_B.max(),
    }


def token_logprobs(
    model: nn.Module,
    input_ids_BL: Tensor,
    attention_mask_BL: Tensor,
    *,
    keep: int,
    temperature: float,
    with_entropy: bool = False,
    rows_at_once: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (B, keep) of the last `keep` tokens of each row, each given the tokens before it.

    Memory: the model's own logits of `keep + 1` positions, and `TOKENS_AT_ONCE` of them in float32, which the backward
    pass computes again.

    Args:
        model: a causal language model, wrapped or not.
        input_ids_BL: rows padded on the right. What comes out at padding has no meaning, and is to be masked.
        attention_mask_BL: 1 on tokens, 0 on padding.
        keep: how many tokens, from the right; less than L, since the first token is given by nothing.
        temperature: what the logits are divided by: the one sampled with, so that ratios are of what was sampled.
        with_entropy: also return the entropy (B, keep) of the distribution at each token, in nats, without gradient.
        rows_at_once: rows in one forward pass; None for all.

    Raises:
        ValueError: `keep`, `temperature` or `rows_at_once` is out of range.
    """
    if not 0 < keep < input_ids_BL.shape[1]:
        raise ValueError(f"keep must be between 1 and {input_ids_BL.shape[1] - 1} (row length - 1), got {keep}.")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    if rows_at_once is not None and rows_at_once < 1:
        raise ValueError(f"rows_at_once must be at least 1, got {rows_at_once}.")
    options = _forward_options(model, keep)
    rows = rows_at_once or input_ids_BL.shape[0]
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for ids_bL, attention_bL in zip(input_ids_BL.split(rows), attention_mask_BL.split(rows), strict=True):
        logits_bKV = model(input_ids=ids_bL, attention_mask=attention_bL, **options).logits[:, -(keep + 1) :]
        # K = keep + 1: the logits of a position are of the token after it. Those of the last are of no token here; they
        # are scored against a stand-in and cut off, because cutting the logits would copy them.
        targets_bK = torch.cat([ids_bL[:, -keep:], ids_bL[:, -1:]], dim=1)
        logprobs.append(_chosen_logprobs(logits_bKV.flatten(0, 1), targets_bK.flatten(), temperature))
        if with_entropy:
            entropies.append(_entropies(logits_bKV.detach().flatten(0, 1), temperature))
        del logits_bKV  # or they would live on while the next rows' are made
    logprobs_BK = torch.cat(logprobs).view(-1, keep + 1)
    entropies_BK = torch.cat(entropies).view(-1, keep + 1) if with_entropy else None
    return logprobs_BK[:, :-1], None if entropies_BK is None else entropies_BK[:, :-1]


def _forward_options(model: nn.Module, keep: int) -> dict[str, int | bool]:
    """Arguments that save memory, where the model's own `forward`, under its wrappers, names them."""
    inner = extract_model_from_parallel(model)
    if hasattr(inner, "get_base_model"):  # PEFT, which passes on what it does not know
        inner = inner.get_base_model()
    named = inspect.signature(inner.forward).parameters
    return {name: value for name, value in (("logits_to_keep", keep + 1), ("use_cache", False)) if name in named}


def _chosen_logprobs(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) at `ids`, by chunks that the backward pass computes again."""

    def chosen(logits_CV: Tensor, ids_C: Tensor) -> Tensor:
        logits_CV = logits_CV.float() / temperature
        return logits_CV.gather(1, ids_C[:, None])[:, 0] - logits_CV.logsumexp(dim=1)

    # `split`, not slices: the gradient of a slice is as large as the whole, and there would be one for each chunk.
    chunks = zip(logits_NV.split(TOKENS_AT_ONCE), ids_N.split(TOKENS_AT_ONCE), strict=True)
    return torch.cat([checkpoint(chosen, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks])


@torch.no_grad()
def _entropies(logits_NV: Tensor, temperature: float) -> Tensor:
    """Entropy of softmax(logits / temperature) in nats: logsumexp(x) - sum(softmax(x) * x)."""

    def entropy(logits_CV: Tensor) -> Tensor:
        logits_CV = logits_CV.float() / temperature
        return logits_CV.logsumexp(dim=1) - (logits_CV.softmax(dim=1) * logits_CV).sum(dim=1)

    return torch.cat([entropy(logits_CV) for logits_CV in logits_NV.split(TOKENS_AT_ONCE)])
