"""The gradient of an optimiser step does not depend on how its episodes are cut into batches, even if some failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from gymnast.trainer import GRPOTrainer, RLOOTrainer

from .buttons import AddsTerm, Gradients, adapted, make_trainer, sometimes_failing

LOSSES = ["grpo", "dr_grpo", "dapo", "rloo"]
TRAINERS = {"rloo": RLOOTrainer, "with a term": AddsTerm}
CASES = [*LOSSES, "with a term"]
EPISODES = 32


def step_gradient(folder: Path, case: str, batch_size: int, max_tokens: int | None = None) -> dict[str, Tensor]:
    """The gradient of one step on 32 episodes, in batches of this size and micro-batches of `max_tokens`."""
    kept = Gradients()
    trainer = make_trainer(
        folder,
        TRAINERS.get(case, GRPOTrainer),
        agent=adapted() if case == "with an adapter" else None,
        generator=sometimes_failing(),
        callbacks=[kept],
        loss_type=case if case in LOSSES else "dapo",
        scale_rewards="none",
        beta=0.0,
        max_grad_norm=0.0,  # not clipped
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=EPISODES // batch_size,
        max_tokens_per_batch=max_tokens,
    )
    trainer.train()
    [logs] = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert 0 < logs["episodes/failed"] < EPISODES / 2
    [gradient] = kept.steps
    return gradient


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    largest = max(tensor.abs().max().item() for tensor in expected.values())
    assert largest > 1e-3
    for name, value in expected.items():
        assert (got[name] - value).abs().max().item() < 1e-6 * max(1.0, largest), name


@pytest.fixture(scope="module", params=[*CASES, "with an adapter"])
def whole(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Tensor]]:
    return request.param, step_gradient(tmp_path_factory.mktemp("whole"), request.param, EPISODES)


@pytest.mark.parametrize(("batch_size", "max_tokens"), [(8, 100), (16, 1)])
def test_micro_batches(whole: tuple[str, dict[str, Tensor]], batch_size: int, max_tokens: int, tmp_path: Path) -> None:
    loss_type, expected = whole
    assert_equal(step_gradient(tmp_path, loss_type, batch_size, max_tokens), expected)
