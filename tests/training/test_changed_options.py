"""Options that change after their configuration was made: before there is a trainer, while it trains, and in a copy."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from gymnast.trainer import GRPOConfig, GRPOTrainer
from gymnast.trainer.options.derived import parts_of_round

from .buttons import ROWS, Buttons, config, make_trainer, model, tokenizer


class Assigns(TrainerCallback):
    """Sets options of the trainer at one of its events."""

    def __init__(self, event: str, **options: Any) -> None:
        self.options = options
        setattr(self, event, self._assign)

    def _assign(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, value in self.options.items():
            setattr(args, name, value)


@pytest.mark.parametrize("name", ["temperature", "beta", "scale_rewards", "gradient_accumulation_steps", "output_dir"])
def test_a_callback_cannot_set_an_option_that_the_trainer_has_taken(name: str, tmp_path: Path) -> None:
    value = {"scale_rewards": "none", "temperature": 0.5, "beta": 0.1}.get(name, 7)
    message = rf"^{name}={value!r} cannot be set .* taken {name}=.*dataclasses.replace\(args, {name}={value!r}\)"
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, callbacks=Assigns("on_init_end", **{name: value}))
    trainer = make_trainer(tmp_path, callbacks=Assigns("on_step_end", **{name: value}), max_steps=3)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert trainer.state.global_step == 1
    with pytest.raises(ValueError, match=message):  # the next training has the same options
        setattr(trainer.args, name, value)


def test_a_callback_can_set_what_takes_effect(tmp_path: Path) -> None:
    transformers_own = {"logging_steps": 2, "eval_steps": 2, "save_total_limit": 1, "max_grad_norm": 0.5}
    same = {"temperature": 1.0, "per_device_train_batch_size": 8}
    of_evaluation = {"eval_temperature": 0.0, "num_generations_eval": 1, "success_reward": 0.5}
    callback = Assigns("on_step_end", **transformers_own, **same, **of_evaluation)
    trainer = make_trainer(tmp_path, callbacks=callback, eval_rows=ROWS, max_steps=2)
    trainer.train()
    assert trainer.evaluate()["eval_episodes/played"] == len(ROWS)
    trainer.args.max_steps = 3
    trainer.train()
    assert trainer.state.global_step == 3
    trainer.config.num_generations_eval = 0
    with pytest.raises(ValueError, match="num_generations_eval must be at least 1, got 0"):
        trainer.evaluate()


def test_options_can_be_set_after_a_trainer_failed_to_be_made(tmp_path: Path) -> None:
    args = config(tmp_path, report_to="no such tracker")
    with pytest.raises(ValueError, match="no such tracker"):
        GRPOTrainer(model(), Buttons(), args, ROWS, processing_class=tokenizer())
    args.temperature = 0.5


def test_a_copy_of_the_options_of_a_trainer_can_be_changed(tmp_path: Path) -> None:
    taken = make_trainer(tmp_path).config
    copies: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda args: pickle.loads(pickle.dumps(args))]
    for item in copies:
        other = item(taken)
        other.temperature = 0.5
        assert (other.temperature, taken.temperature) == (0.5, 1.0)
    assert dataclasses.replace(taken, temperature=0.5).temperature == 0.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss_type", "gpro", "loss_type must be one of .*'gpro'"),
        ("temperature", -1.0, "temperature must be positive, got -1.0"),
        ("num_generations", 3, "not a multiple of num_generations=3"),
        ("auto_find_batch_size", True, "auto_find_batch_size=True cannot work here"),
    ],
)
def test_options_set_before_a_trainer_is_made_are_checked_by_it(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    args = config(tmp_path)
    setattr(args, name, value)
    with pytest.raises(ValueError, match=message):
        GRPOTrainer(model(), Buttons(), args, ROWS, processing_class=tokenizer())


def test_options_set_before_a_trainer_is_made_take_effect(tmp_path: Path) -> None:
    args = config(tmp_path)
    args.scale_rewards, args.temperature, args.per_device_train_batch_size = False, 0.7, 4
    trainer = GRPOTrainer(model(), Buttons(), args, ROWS, processing_class=tokenizer())
    settings = trainer.scorer.settings
    assert (settings.comparison.scale_rewards, settings.temperature, settings.rows_at_once) == ("none", 0.7, 4)
    assert trainer.player.policy.sampling.temperature == 0.7
    trainer.train()
    assert trainer.state.log_history[0]["episodes/played"] == 4


def test_an_option_set_later_that_has_no_effect_is_named(tmp_path: Path) -> None:
    args = config(tmp_path)
    args.dataloader_num_workers = 2
    with pytest.warns(UserWarning, match="no effect in GRPOConfig: dataloader_num_workers") as warned:
        GRPOTrainer(model(), Buttons(), args, ROWS, processing_class=tokenizer())
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize(
    ("change", "batches"),
    [
        ({"gradient_accumulation_steps": 4}, 4),
        ({"steps_per_generation": 2}, 2),
        ({"generation_batch_size": 24}, 3),
        ({"per_device_train_batch_size": 16}, 1),
    ],
)
def test_a_copy_with_another_option_derives_its_rounds_from_that(
    change: dict[str, int], batches: int, tmp_path: Path
) -> None:
    assert parts_of_round(dataclasses.replace(config(tmp_path), **change)) == batches


def test_a_copy_of_options_that_evaluate_does_not_warn(tmp_path: Path) -> None:
    first = GRPOConfig(str(tmp_path), use_cpu=True, eval_strategy="steps")
    assert dataclasses.replace(first, seed=2).do_eval
