"""The objective: one micro-batch and a model to the loss, and what to log about it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .config import AgentConfig
from .losses import LossInputs, LossSettings, policy_loss, token_logprobs
from .metrics import token_metrics


def objective(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    args: AgentConfig,
    *,
    accumulation_steps: int,
    num_loss_tokens: Tensor | int | None,
    num_processes: int,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a micro-batch.

    Args:
        model: The policy in training, wrapped or not.
        batch: What `make_batch` returns, on the model's device.
        args: The configuration.
        accumulation_steps: Micro-batches in the optimiser step.
        num_loss_tokens: Loss tokens in all of them, over all processes; None for those of this one.
        num_processes: Processes whose gradients are averaged.

    Returns:
        The loss, ready for `backward()`, and metrics.
    """
    mask_BT, temperature = batch["mask"], args.temperature
    ids_BL, attention_BL, keep = batch["input_ids"], batch["attention_mask"], mask_BT.shape[1]
    logprobs_BT, entropy_BT = token_logprobs(
        model, ids_BL, attention_BL, keep=keep, temperature=temperature, with_entropy=True
    )
    settings = LossSettings(
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        beta=args.beta,
        max_completion_length=args.max_completion_length,
        accumulation_steps=accumulation_steps,
        num_loss_tokens=mask_BT.sum() if num_loss_tokens is None else num_loss_tokens,
        num_processes=num_processes,
        use_bias_correction_kl=args.use_bias_correction_kl,
    )
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=batch.get("old_logprobs"),  # absent: on-policy
        mask_BT=mask_BT,
        advantages_B=batch["advantages"],
        ref_logprobs_BT=batch.get("ref_logprobs"),
    )
    loss, stats = policy_loss(args.loss_type, inputs, settings)
    same = args.sampling.is_full_distribution
    metrics = token_metrics(logprobs_BT.detach(), entropy_BT, batch, compare_sampling=same)
    return loss, {name: value.item() for name, value in stats.items()} | metrics
