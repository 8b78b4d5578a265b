"""A step whose loss or gradient is not finite leaves weights and optimiser as they are, or ends training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from gymnast.records.files.run import Run
from gymnast.trainer import NonFiniteError, RunFolder
from gymnast.trainer.loop.nonfinite import MOST_SKIPPED, NonFiniteSteps, spread_nonfinite
from gymnast.trainer.models.distributed import Processes

from .buttons import make_trainer


class States(TrainerCallback):
    """Keeps the weights and the optimiser's state after each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        flat = {name: item.clone() for name, item in kwargs["model"].state_dict().items()}
        for index, values in kwargs["optimizer"].state_dict()["state"].items():
            flat |= {f"{index}.{name}": torch.as_tensor(value).clone() for name, value in values.items()}
        self.steps.append(flat)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(item, other[name]) for name, item in one.items())


def huge_rewards(*steps: int) -> Any:
    """Rewards whose loss is infinite in float32 in these steps; the trainer is set later."""

    def rewards(completions: Any) -> list[float]:
        scale = 3e38 if rewards.trainer.state.global_step + 1 in steps else 1.0  # type: ignore[attr-defined]
        return [scale * (index % 2) for index in range(len(completions))]

    return rewards


def train(folder: Path, rewards: Any, **options: Any) -> Any:
    rewards.trainer = make_trainer(folder, reward_funcs=rewards, scale_rewards="none", loss_type="grpo", **options)
    rewards.output = rewards.trainer.train()
    return rewards.trainer


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def test_a_skipped_step_changes_nothing_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states = States()
    callbacks = [states, RunFolder(tmp_path)]
    trainer = train(tmp_path, huge_rewards(2), max_steps=3, log_episodes_steps=1, callbacks=callbacks)
    first, second, third = states.steps
    assert equal(first, second)
    assert not equal(second, third)
    assert all(value.isfinite().all() for value in third.values())
    counts = [logs["steps/nonfinite"] for logs in trainer.state.log_history if "loss" in logs]
    assert counts == [0, 1, 0]
    assert "the update of step 2 is not finite (loss " in caplog.text
    assert "so it is skipped" in caplog.text
    # It has no update in the records, and metrics that are not finite are null there.
    lines = [json.loads(line) for line in (tmp_path / "learning.jsonl").read_text().splitlines()]
    assert {line["update"] for line in lines if "update" in line} == {1, 3}
    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    for name in ("grad_norm", "loss"):
        assert [line[name] is None for line in lines[:3]] == [False, True, False]
        assert [name in line for line in Run(tmp_path).metrics] == [True, False, True]


def test_a_skipped_step_is_in_no_mean_of_losses(tmp_path: Path) -> None:
    def losses_of(*skipped: int, **options: Any) -> tuple[list[float], float]:
        rewards = huge_rewards(*skipped)
        trainer = train(tmp_path, rewards, max_steps=3, **options)
        summary = trainer.state.log_history[-1]
        assert summary["train_loss"] == pytest.approx(rewards.output.training_loss, nan_ok=True)
        return [logs["loss"] for logs in trainer.state.log_history if "loss" in logs], summary["train_loss"]

    (first, second, third), mean = losses_of(2)
    assert math.isnan(second)
    assert mean == pytest.approx((first + third) / 2)
    assert losses_of(2, logging_steps=3) == (pytest.approx([mean]), pytest.approx(mean))
    assert losses_of(1, 2, 3, logging_steps=3) == (
        pytest.approx([math.nan], nan_ok=True),
        pytest.approx(math.nan, nan_ok=True),
    )


def test_a_gradient_of_which_only_a_part_is_not_finite_is_skipped_too(tmp_path: Path) -> None:
    states = States()
    trainer: Any = make_trainer(tmp_path, max_steps=2, callbacks=[states])
    weight = trainer.model.get_input_embeddings().weight

    def spoil(gradient: Tensor) -> Tensor:
        if trainer.state.global_step == 1:
            gradient[0, 0] = math.inf
        return gradient

    weight.register_hook(spoil)
    trainer.train()
    assert equal(*states.steps)


def test_a_loss_that_is_not_finite_spreads_to_every_gradient() -> None:
    """Half of this loss does not depend on the weights, so their gradient is finite."""
    for other, expected in ((1.0, 2.0), (math.inf, math.nan), (math.nan, math.nan)):
        weight = torch.tensor(3.0, requires_grad=True)
        loss = spread_nonfinite(2 * weight + other)
        loss.backward()
        assert loss.isfinite() == math.isfinite(other)
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, torch.tensor(expected), equal_nan=True)


def test_training_stops_where_it_is_told_to(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"the update of step 2 is not finite .* and on_nonfinite='stop'"):
        train(tmp_path, huge_rewards(2), max_steps=3, on_nonfinite="stop")
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


def test_a_training_that_only_skips_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=f"as were {MOST_SKIPPED} of the last {MOST_SKIPPED + 1} steps"):
        train(tmp_path, huge_rewards(*range(2, 50)), max_steps=50, max_turns=1)


class Scaler:
    """The part of `torch.amp.GradScaler` that is read, which needs a GPU."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def get_scale(self) -> float:
        return self.scale


@pytest.mark.parametrize(
    ("scale", "loss", "skipped"), [(65536.0, 1.0, False), (65536.0, math.nan, True), (1.0, 1.0, True)]
)
def test_an_overflow_of_the_loss_scaler_is_its_own_affair(
    scale: float, loss: float, skipped: bool, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path)
    watch = NonFiniteSteps("skip", Processes(trainer.accelerator), Scaler(scale))
    assert watch.skips(1, torch.tensor(loss), torch.tensor(math.inf)) == skipped
