"""The objective: from a model and one micro-batch to the loss and its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .logprobs import token_logprobs
from .losses import LossInputs, StepCounts, policy_loss
from .settings import LearningSettings


def objective(
    model: nn.Module, batch: Mapping[str, Tensor], settings: LearningSettings, counts: StepCounts
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a micro-batch.

    Args:
        model: The policy in training, wrapped or not.
        batch: What `make_batch` returns, on the model's device.
        settings: The options of the run.
        counts: The sizes of the optimiser step that the micro-batch belongs to.

    Returns:
        The loss, ready for `backward()`, and metrics.
    """
    mask_BT = batch["mask"]
    logprobs_BT, entropy_BT = token_logprobs(
        model,
        batch["input_ids"],
        batch["attention_mask"],
        keep=mask_BT.shape[1],
        temperature=settings.temperature,
        with_entropy=True,
    )
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=batch.get("old_logprobs"),  # absent: on-policy
        mask_BT=mask_BT,
        advantages_B=batch["advantages"],
        ref_logprobs_BT=batch.get("ref_logprobs"),
    )
    loss, stats = policy_loss(inputs, settings, counts)
    metrics = token_metrics(logprobs_BT.detach(), entropy_BT, batch, compare_sampling=settings.samples_all_tokens)
    return loss, {name: value.item() for name, value in stats.items()} | metrics


def token_metrics(
    logprobs_BT: Tensor, entropy_BT: Tensor | None, batch: Mapping[str, Tensor], *, compare_sampling: bool
) -> dict[str, float]:
    """Entropy, and how far the generator's log-probabilities are from the trainer's, over the loss tokens of a batch.

    The difference is only rounding if sampler and trainer have the same weights and the same distribution. With top-p
    and the like the distributions differ; `compare_sampling=False` then leaves the comparison out.
    """
    mask_BT = batch["mask"].bool()
    if not mask_BT.any():
        return {}
    metrics = {} if entropy_BT is None else {"entropy": entropy_BT[mask_BT].mean().item()}
    if compare_sampling:
        difference = (batch.get("old_logprobs", logprobs_BT) - batch["sampling_logprobs"])[mask_BT].abs()
        metrics["sampling/sampling_logp_difference/mean"] = difference.mean().item()
        metrics["sampling/sampling_logp_difference/max"] = difference.max().item()
    return metrics
