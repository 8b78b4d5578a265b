"""The objective: from a model and one micro-batch to the loss and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

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
) -> tuple[Tensor, list[Part]]:
    """Compute the loss of a micro-batch.

    Args:
        model: The policy in training, wrapped or not.
        batch: The micro-batch, on the model's device.
        settings: The options of the run.
        counts: The sizes of the optimiser step that the micro-batch belongs to.
        head: The output head of the model; see `token_logprobs`.
        with_entropy: Whether the metrics have the entropy.
        watch: Called with the log-probabilities (B, T), before the loss is computed.

    Returns:
        The loss, ready for `backward()`, and metrics, which stay on the device: in parts, so that the means of several
        micro-batches have the right weights.
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
    )
    if watch is not None:
        watch(logprobs_BT)
    counts = replace(counts, batch_loss_tokens=batch["batch_loss_tokens"])
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
    loss, stats = policy_loss(inputs, settings, counts)
    metrics = _token_metrics(logprobs_BT.detach(), entropy_BT, batch, compare_sampling=settings.samples_all_tokens)
    tokens, rows = len(batch["places"]), len(mask_BT)
    of_ratios = {name: stats.pop(name) for name in [*stats] if name.startswith("clip_ratio/")}
    ratios = tokens if LOSSES[settings.loss_type].is_of_tokens else min(rows, tokens)  # a filler has a row and no token
    return loss, [(tokens, stats | metrics), (ratios, of_ratios)]


def _token_metrics(
    logprobs_BT: Tensor, entropy_BT: Tensor | None, batch: MicroBatch, *, compare_sampling: bool
) -> dict[str, Tensor]:
    """Measure entropy, and the distance of the generator's log-probabilities from the trainer's, at loss tokens.

    The difference is only rounding if sampler and trainer have the same weights and the same distribution. With top-p
    and the like the distributions differ; `compare_sampling=False` then leaves the comparison out.
    """
    places_N = batch["places"]
    if not len(places_N):
        return {}
    metrics = {} if entropy_BT is None else {"entropy": entropy_BT.detach().flatten()[places_N].mean()}
    if compare_sampling:
        difference_BT = batch.get("old_logprobs", logprobs_BT) - batch["sampling_logprobs"]
        log_ratio_N = difference_BT.flatten()[places_N]
        metrics |= mismatch_metrics(log_ratio_N)
        difference_N = log_ratio_N.abs()
        metrics["sampling/sampling_logp_difference/mean"] = difference_N.mean()
        metrics["sampling/sampling_logp_difference/max"] = difference_N.max()
    return metrics
