"""The objective: from a model and one micro-batch to the loss and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from ..models.images import ImageEncoder
from ..models.output_head import OutputHead
from .corrections import mismatch_metrics
from .logprobs import token_logprobs
from .losses import LOSSES, LossInputs, StepCounts, policy_loss
from .samples import MicroBatch
from .settings import LearningSettings

Part = tuple[int, dict[str, Tensor]]
"""A number of tokens or rows, and means over them."""


def objective(
    model: nn.Module,
    batch: MicroBatch,
    settings: LearningSettings,
    counts: StepCounts,
    *,
    head: OutputHead | None = None,
    with_entropy: bool = False,
    watch: Callable[[Tensor], None] | None = None,
    images: ImageEncoder | None = None,
) -> tuple[Tensor, list[Part]]:
    """Compute the loss of a micro-batch on the model's device, ready for `backward()`, and metrics.

    The metrics stay on the device, and are in parts, so that the means of several micro-batches have the right weights.
    They have the entropy `with_entropy`. `watch` is called with the log-probabilities (B, T), before the loss is
    computed.
    """
    assert "advantages" in batch
    mask_BT = batch["mask"]
    logprobs_BT, entropy_BT = token_logprobs(
        model,
        batch["inputs"],
        batch["places"],
        keep=mask_BT.shape[1],
        temperature=settings.temperature,
        head=head,
        entropy="differentiable" if settings.entropy_coef else "value" if with_entropy else "none",
        images=images,
        pictures=batch["pictures"],
    )
    if watch is not None:
        watch(logprobs_BT)
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=batch.get("old_logprobs"),  # absent: on-policy
        mask_BT=mask_BT,
        advantages_BT=batch["advantages"],
        shares_B=batch["shares"],
        sampling_logprobs_BT=batch["sampling_logprobs"],
        ref_logprobs_BT=batch.get("ref_logprobs"),
        entropies_BT=entropy_BT,
    )
    loss, stats = policy_loss(inputs, settings, replace(counts, batch_loss_tokens=batch["batch_loss_tokens"]))
    metrics = _token_metrics(logprobs_BT.detach(), entropy_BT, batch, compare_sampling=settings.samples_all_tokens)
    tokens, rows = len(batch["places"]), len(mask_BT)
    of_ratios = {name: stats.pop(name) for name in [*stats] if name.startswith("clip_ratio/")}
    ratios = tokens if LOSSES[settings.loss_type].is_of_tokens else min(rows, tokens)  # a filler has a row and no token
    return loss, [(tokens, stats | metrics), (ratios, of_ratios)]


def _token_metrics(
    logprobs_BT: Tensor, entropy_BT: Tensor | None, batch: MicroBatch, *, compare_sampling: bool
) -> dict[str, Tensor]:
    """Measure entropy, and the distance of the generator's log-probabilities from the trainer's, at loss tokens."""
    places_N = batch["places"]
    if not len(places_N):
        return {}
    metrics = {} if entropy_BT is None else {"entropy": entropy_BT.detach().flatten()[places_N].mean()}
    if compare_sampling:
        difference_BT = batch.get("old_logprobs", logprobs_BT) - batch["sampling_logprobs"]
        log_ratio_N = difference_BT.flatten()[places_N]
        metrics |= mismatch_metrics(log_ratio_N)
        metrics["sampling/sampling_logp_difference/mean"] = log_ratio_N.abs().mean()
        metrics["sampling/sampling_logp_difference/max"] = log_ratio_N.abs().max()
    return metrics
