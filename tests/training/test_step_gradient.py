"""The gradient of an optimiser step does not depend on how its episodes are cut into batches, even if some failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gymnast.trainer import GRPOTrainer, RLOOTrainer

from .buttons import AddsTerm, Gradients, make_trainer, sometimes_failing
from .launching import launch

LOSSES = ["grpo", "dr_grpo", "dapo", "rloo"]
TRAINERS = {"rloo": RLOOTrainer, "with a term": AddsTerm}
EPISODES = 32


def step_gradient(folder: Path, case: str, batch_size: int, max_tokens: int | None = None) -> dict[str, Tensor]:
    """The gradient of one step on 32 episodes, in batches of this size and micro-batches of `max_tokens`."""
    kept = Gradients()
    trainer = make_trainer(
        folder,
        TRAINERS.get(case, GRPOTrainer),
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
    largest = max(each.abs().max().item() for each in expected.values())
    assert largest > 1e-3
    for name, value in expected.items():
        assert (got[name] - value).abs().max().item() < 1e-6 * max(1.0, largest), name


@pytest.fixture(scope="module", params=[*LOSSES, "with a term"])
def whole(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Tensor]]:
    return request.param, step_gradient(tmp_path_factory.mktemp("whole"), request.param, EPISODES)


@pytest.mark.parametrize(("batch_size", "max_tokens"), [(8, None), (16, 1), (16, 100)])
def test_micro_batches(
    whole: tuple[str, dict[str, Tensor]], batch_size: int, max_tokens: int | None, tmp_path: Path
) -> None:
    loss_type, expected = whole
    assert_equal(step_gradient(tmp_path, loss_type, batch_size, max_tokens), expected)


PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from buttons import AddsTerm, Buttons, Gradients, ROWS, config, model, sometimes_failing, tokenizer
from gymnast.trainer import GRPOTrainer, RLOOTrainer

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
steps, looks = {}, {}
for case in sys.argv[2:]:
    kept = Gradients()
    trainer_class = {"rloo": RLOOTrainer, "with a term": AddsTerm}.get(case, GRPOTrainer)
    options = dict(scale_rewards="none", beta=0.0, max_grad_norm=0.0, ddp_backend="gloo")
    options["loss_type"] = case if case in ("grpo", "dr_grpo", "dapo", "rloo") else "dapo"
    agent = model()
    if case == "with an unused weight":
        options |= dict(max_steps=2, ddp_find_unused_parameters=True)  # DDP misses a gradient in the next step
        agent.model.tower = torch.nn.Linear(2, 2)
    trainer = trainer_class(
        model=agent,
        environment=Buttons(),
        args=config(
            folder,
            trainer_class,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            max_tokens_per_batch=50,  # each process cuts its batches into another number of micro-batches
            **options,
        ),
        train_dataset=ROWS,
        processing_class=tokenizer(),
        callbacks=[kept],
        generator=sometimes_failing(),
    )
    trainer.train()
    steps[case] = kept.steps[0]
    looks[case] = trainer.model_wrapped.find_unused_parameters
torch.save(steps, folder / f"gradients-{rank}.pt")
(folder / f"report-{rank}.json").write_text(json.dumps(looks))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Tensor]], dict[str, bool]]:
    """The gradient of each case, and whether DDP looked for weights without one."""
    folder = tmp_path_factory.mktemp("two")
    _, looks = launch(folder, PROGRAM, *LOSSES, "with a term", "with an unused weight")
    return torch.load(folder / "gradients-1.pt", weights_only=True), looks


def test_processes(whole: tuple[str, dict[str, Tensor]], two_processes: Any) -> None:
    loss_type, expected = whole
    gradients, _ = two_processes
    assert_equal(gradients[loss_type], expected)


def test_ddp_looks_for_weights_without_a_gradient_only_if_told_to(two_processes: Any) -> None:
    gradients, looks = two_processes
    [case] = [case for case, each in looks.items() if each]
    assert case == "with an unused weight"
    assert_equal({name: gradients[case][name] for name in gradients["dapo"]}, gradients["dapo"])
