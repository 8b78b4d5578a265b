"""Reads the logs, weights and batches of a training run, for the tests of training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gymnast.trainer import AgentTrainer, GRPOTrainer, RLOOTrainer

BOTH = pytest.mark.parametrize("trainer_class", [GRPOTrainer, RLOOTrainer], ids=["grpo", "rloo"])


def step_logs(trainer: AgentTrainer) -> list[dict[str, float]]:
    return [logs for logs in trainer.state.log_history if "loss" in logs]


def weights(trained: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trained.named_parameters()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def differ(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return any(not torch.equal(first[name], second[name]) for name in first)


class KeepsBatches(GRPOTrainer):
    """Keeps the batches that the loss was computed from."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        self.batches = [*getattr(self, "batches", []), inputs]
        return super().compute_loss(model, inputs, *args, **kwargs)
