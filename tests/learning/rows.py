"""Rows of random tokens, in TRL's layout and in ours, and a small model to compute their log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from gymnast.trainer.learning.comparison import Comparison
from gymnast.trainer.learning.logprobs import token_logprobs
from gymnast.trainer.learning.losses import LossInputs, StepCounts, policy_loss
from gymnast.trainer.learning.settings import LearningSettings
from gymnast.trainer.models.output_head import OutputHead

VOCABULARY = 64
MAX_COMPLETION = 12
TEMPERATURE = 0.9
EPSILON_LOW, EPSILON_HIGH = 0.2, 0.3
PAD = 0

SETTINGS = LearningSettings(
    loss_type="grpo",
    temperature=TEMPERATURE,
    max_completion_length=MAX_COMPLETION,
    rows_at_once=8,
    is_on_policy=True,
    comparison=Comparison(scale_rewards="none"),
    epsilon_low=EPSILON_LOW,
    epsilon_high=EPSILON_HIGH,
)


def make_model(seed: int = 0, *, num_layers: int = 2, initializer_range: float = 0.1) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=initializer_range,  # far from uniform, so that gradients are not tiny
        pad_token_id=PAD,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


@dataclass(kw_only=True)
class Batch:
    """The same random sequences in TRL's layout (prompts padded left, completions right) and in ours (rows right)."""

    trl: dict[str, Tensor]
    inputs: dict[str, Tensor]  # of the forward pass: rows padded on the right
    keep: int
    rows: list[tuple[int, int]]
    """(prompt length, completion length) of each row."""

    def to_ours(self, values_BT: Tensor) -> Tensor:
        """Values at TRL's completion positions, moved to the last `keep` positions of our rows; 0 elsewhere."""
        ours_BL = torch.zeros(self.inputs["input_ids"].shape, dtype=values_BT.dtype)
        for b, (prompt, completion) in enumerate(self.rows):
            ours_BL[b, prompt : prompt + completion] = values_BT[b, :completion]
        return ours_BL[:, -self.keep :]


def make_batch(seed: int = 0, *, with_tool_mask: bool = True) -> Batch:
    torch.manual_seed(seed)
    rows = [(5, 12), (3, 7), (8, 9), (6, 1), (2, 11)]
    prompts = [torch.randint(3, VOCABULARY, (p,)) for p, _ in rows]
    completions = [torch.randint(3, VOCABULARY, (c,)) for _, c in rows]
    P, T = max(p for p, _ in rows), max(c for _, c in rows)
    L = max(p + c for p, c in rows)

    def padded(values: Tensor, length: int, *, left: bool = False) -> Tensor:
        amount = length - len(values)
        return nn.functional.pad(values, (amount, 0) if left else (0, amount), value=PAD)

    mask_BT = torch.stack([padded(torch.ones_like(c), T) for c in completions])
    trl = {
        "prompt_ids": torch.stack([padded(p, P, left=True) for p in prompts]),
        "prompt_mask": torch.stack([padded(torch.ones_like(p), P, left=True) for p in prompts]),
        "completion_ids": torch.stack([padded(c, T) for c in completions]),
        "completion_mask": mask_BT,
        "advantages": torch.randn(len(rows)),
    }
    if with_tool_mask:
        trl["tool_mask"] = (torch.rand(mask_BT.shape) < 0.7).long()
        trl["tool_mask"][:, 0] = 1  # no row without loss tokens, where TRL's statistics are NaN
    full = [torch.cat(pair) for pair in zip(prompts, completions, strict=True)]
    return Batch(
        trl=trl,
        inputs={
            "input_ids": torch.stack([padded(ids, L) for ids in full]),
            "attention_mask": torch.stack([padded(torch.ones_like(ids), L) for ids in full]),
        },
        keep=L - min(p for p, _ in rows),
        rows=rows,
    )


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def our_logprobs(model: nn.Module, batch: Batch, head: OutputHead | None = None) -> Tensor:
    """Log-probabilities (B, keep) of the last `keep` tokens of each row."""
    places_N = torch.arange(len(batch.rows) * batch.keep)
    options = {"keep": batch.keep, "temperature": TEMPERATURE, "head": head}
    return token_logprobs(model, batch.inputs, places_N, **options)[0]


def counts_of(mask_BT: Tensor, *, steps: int = 1, processes: int = 1, loss_tokens: float | None = None) -> StepCounts:
    """The counts of a step of `steps` micro-batches like this one."""
    return StepCounts(
        loss_tokens=steps * mask_BT.sum() if loss_tokens is None else loss_tokens,
        sequences=steps * mask_BT.any(dim=1).sum(),
        batch_loss_tokens=mask_BT.sum(),
        batches=steps,
        processes=processes,
    )


def loss_of(
    inputs: LossInputs, loss_type: str = "grpo", *, counts: StepCounts | None = None, **changes: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    settings = SETTINGS.changed(loss_type=loss_type, **changes)
    return policy_loss(inputs, settings, counts_of(inputs.mask_BT) if counts is None else counts)
