"""Prompts that are longer than `max_model_len` allows, with each value of `overlong_prompts`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import ConfigurationError, Message, ToolEnv
from gymnast.trainer import RolloutError

from .buttons import ScriptedGenerator, call_ids, make_trainer


def ones(completions: list[Any]) -> list[float]:
    return [1.0] * len(completions)


CHAT: dict[str, Any] = {"environment": ToolEnv(), "reward_funcs": ones, "max_model_len": 100}
LONG = [{"prompt": "short"}, {"prompt": "long " * 200}]


@pytest.mark.parametrize("option", ["fail", "raise"])
def test_a_long_prompt_in_the_first_row_is_an_error(option: str, silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 0 of train_dataset.*max_model_len=100.*overlong_prompts='drop'"):
        make_trainer(tmp_path, rows=LONG[1:], generator=silent, overlong_prompts=option, **CHAT)


def test_a_long_prompt_fails_its_episode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    generator = ScriptedGenerator(lambda request: call_ids("left"))
    trainer = make_trainer(tmp_path, rows=LONG, generator=generator, **CHAT)
    trainer.train()
    [logs] = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert (logs["episodes/failed"], logs["prompts/overlong"], logs["groups/dropped"]) == (4, 0, 1)
    assert "4 of 8 episodes failed: 4 x policy: LongPromptError (the prompt of task 'train-1' has" in caplog.text


def test_a_long_prompt_can_stop_the_run_before_anything_is_sampled(silent: Any, tmp_path: Path) -> None:
    rows = [LONG[0], *LONG[1:] * 9]
    trainer = make_trainer(tmp_path, rows=rows, generator=silent, seed=1, overlong_prompts="raise", **CHAT)
    with pytest.raises(ConfigurationError, match=r"task 'train-\d'.*max_model_len=100.*overlong_prompts='drop'"):
        trainer.train()


def test_a_long_prompt_is_dropped_and_counted(tmp_path: Path) -> None:
    class Talks(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            return [{"role": "user", "content": task["prompt"]}]

    generator = ScriptedGenerator(lambda request: call_ids("left"))
    options: dict[str, Any] = {**CHAT, "environment": Talks(), "overlong_prompts": "drop"}
    trainer = make_trainer(tmp_path, rows=[LONG[1], LONG[0]], generator=generator, **options)
    trainer.train()
    [logs] = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert logs["prompts/overlong"] == 4
    assert logs["episodes/played"] == 8
    assert logs["episodes/failed"] == 0
    assert logs["stop/context_overflow"] >= 0.5
    assert logs["groups/dropped"] == 1
    assert logs["turns/mean"] >= 1
    assert logs["completions/min_length"] > 0
    assert all(len(request.prompt) < 100 for request in generator.requests)


def test_rounds_of_long_prompts_stop_training(silent: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {**CHAT, "overlong_prompts": "drop"}
    trainer = make_trainer(tmp_path, rows=[LONG[1]], generator=silent, max_steps=5, **options)
    with pytest.raises(RolloutError, match=r"last 3 rounds.*8 of 8 episodes had a prompt longer.*max_model_len"):
        trainer.train()
