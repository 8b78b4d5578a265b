"""TRL's trainers, as the reference for losses and log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from .rows import EPSILON_HIGH, EPSILON_LOW, MAX_COMPLETION, TEMPERATURE, VOCABULARY, Batch, make_model


def make_trainer(
    kind: str, folder: Path, model: Qwen3ForCausalLM, *, rewards: Any = None, prompts: Any = None, **options: Any
) -> GRPOTrainer | RLOOTrainer:
    """A trainer whose completions get these rewards, by default 0."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")), pad_token="w0", eos_token="w1", unk_token="w2"
    )
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "bf16": False,
        "gradient_checkpointing": False,
        "temperature": TEMPERATURE,
        "epsilon": EPSILON_LOW,
        "epsilon_high": EPSILON_HIGH,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": MAX_COMPLETION,
        "beta": 0.0,
    }
    common: dict[str, Any] = {
        "model": model,
        "reward_funcs": lambda completions, **_: rewards or [0.0] * len(completions),
        "train_dataset": Dataset.from_list(prompts or [{"prompt": "w3 w4"}]),
        "processing_class": tokenizer,
    }
    if kind == "grpo":
        return GRPOTrainer(args=GRPOConfig(**(defaults | options)), **common)
    return RLOOTrainer(args=RLOOConfig(**(defaults | options)), **common)


def trl_logprobs(trainer: GRPOTrainer | RLOOTrainer, batch: Batch) -> Tensor:
    ids_BL = torch.cat([batch.trl["prompt_ids"], batch.trl["completion_ids"]], dim=1)
    mask_BL = torch.cat([batch.trl["prompt_mask"], batch.trl["completion_mask"]], dim=1)
    model: Any = trainer.model
    with torch.no_grad():
        logprobs_BT, _, _ = trainer._get_per_token_logps_and_entropies(
            model, ids_BL, mask_BL, batch.trl["completion_ids"].shape[1]
        )
    return logprobs_BT


def unpatched_copy(trainer: GRPOTrainer | RLOOTrainer) -> Qwen3ForCausalLM:
    """A model with the trainer's weights, but without the forward that TRL puts in."""
    model = make_model()
    source: Any = trainer.model
    model.load_state_dict(source.state_dict())
    return model.train()


def assert_same(ours: tuple[Tensor, dict[str, Tensor]], theirs: tuple[Tensor, dict[str, Tensor]]) -> None:
    """Loss and gradients agree to 1e-5 (of the largest, if it is above 1), and the gradients are no noise."""
    (our_loss, our_grads), (their_loss, their_grads) = ours, theirs
    assert our_grads.keys() == their_grads.keys()
    loss_difference = (our_loss - their_loss).abs().item()
    grad_difference = max((our_grads[name] - their_grads[name]).abs().max().item() for name in their_grads)
    largest = max(grad.abs().max().item() for grad in their_grads.values())
    assert loss_difference < 1e-5
    assert grad_difference < 1e-5 * max(1.0, largest)
    assert largest > 1e-2


def last_metrics(trainer: GRPOTrainer | RLOOTrainer) -> dict[str, float]:
    return {name: values[-1] for name, values in trainer._metrics["train"].items()}


def assert_same_stats(stats: dict[str, Tensor], metrics: dict[str, float]) -> None:
    for name, value in stats.items():
        assert value.item() == pytest.approx(metrics[name], abs=1e-5), name
