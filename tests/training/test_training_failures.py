"""Failures during training: some end the run, and the others are counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from gymnast.envs import Message, ToolEnv, tool
from gymnast.trainer import RolloutError

from .buttons import ROWS, Buttons, ScriptedGenerator, call_ids, make_trainer


class Breaks(Buttons):
    """Breaks in the step of some episodes. The row gives their share."""

    made = 0

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        messages = super().reset_task(task)
        Breaks.made += 1
        self.breaks = self.np_random is not None and Breaks.made % task["of"] < task["broken"]
        return messages

    async def astep(self, action: Message) -> Any:
        if self.breaks:
            raise OSError("the button came off")
        return await super().astep(action)


def breaking(folder: Path, broken: int, of: int = 4, **options: Any) -> Any:
    Breaks.made = -1  # the row check makes one
    generator = ScriptedGenerator(lambda request: call_ids("left" if request.seed % 2 else "right"))
    rows = [{"good": "left", "broken": broken, "of": of}]
    return make_trainer(folder, environment=Breaks, rows=rows, generator=generator, **options)


def test_too_many_failures_stop_training(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=r"last (3|10) rounds.*6 of 8 episodes failed") as caught:
        breaking(tmp_path, 3, max_steps=12).train()
    assert "OSError: the button came off" in str(caught.value)
    assert "in astep" in str(caught.value)


class Picky(ToolEnv):
    """Fails for rows that say so, and gives no rewards itself."""

    gives_rewards = False

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.good = task["good"]
        return [{"role": "user", "content": "Press." + " word" * task.get("words", 0)}]

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        return "done"

    async def astep(self, action: Message) -> Any:
        if self.good == "broken":
            raise OSError("the button came off")
        return await super().astep(action)


BAD_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "always fails": ({"good": "broken"}, {}),
    "no reward": ({"good": "left", "scored": False}, {}),
    "overlong": ({"good": "left", "words": 200}, {"max_model_len": 100}),
    "overlong and dropped": ({"good": "left", "words": 200}, {"overlong_prompts": "drop", "max_model_len": 100}),
    "no column": ({"bad": "left"}, {}),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_one_bad_row_never_ends_a_run(case: str, tmp_path: Path) -> None:
    """With the smallest batch a round has one group, so a bad row leaves its round without a group."""

    def pressed(episodes: Any, scored: Any = None, **columns: Any) -> list[float | None]:
        scored = scored or [None] * len(episodes)
        return [
            None if item is False else float(episode.spec.member)
            for item, episode in zip(scored, episodes, strict=True)
        ]

    row, options = BAD_ROWS[case]
    trainer = make_trainer(
        tmp_path,
        environment=Picky,
        rows=[ROWS[0], ROWS[1], row],
        reward_funcs=pressed,
        generator=ScriptedGenerator(lambda request: call_ids("left")),
        per_device_train_batch_size=4,
        max_steps=6,
        shuffle_dataset=False,
        **options,
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["rounds/skipped"] for log in logs] == [0, 0, 1, 0, 0, 1]
    assert logs[0]["grad_norm"] > 0
    assert logs[2]["grad_norm"] == 0


def test_a_checkpoint_is_saved_before_an_error_ends_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(completions: Any) -> list[float]:
        if trainer.state.global_step == 2:
            raise RuntimeError("the judge is gone")
        return [1.0] * len(completions)

    trainer = make_trainer(tmp_path, reward_funcs=broken, on_failure="raise", max_steps=3)
    with pytest.raises(RuntimeError, match="the judge is gone"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert "train(resume_from_checkpoint=" in caplog.text


def test_an_error_is_raised_also_if_no_checkpoint_can_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(completions: Any) -> list[float]:
        if trainer.state.global_step == 1:
            (tmp_path / "checkpoint-1").write_text("a file where the folder belongs")
            raise RuntimeError("the judge is gone")
        return [1.0] * len(completions)

    trainer = make_trainer(tmp_path, reward_funcs=broken, on_failure="raise", max_steps=3)
    with pytest.raises(RuntimeError, match="the judge is gone"):
        trainer.train()
    assert "no checkpoint could be saved before the error below" in caplog.text


def test_a_step_without_episodes_leaves_the_weights_alone(tmp_path: Path) -> None:
    """Momentum and weight decay would change them."""
    seen: list[dict[str, Any]] = []

    class Sees(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append({name: value.detach().clone() for name, value in kwargs["model"].named_parameters()})

    def broken_later(completions: Any) -> list[float]:
        if trainer.state.global_step:
            raise RuntimeError("the judge is gone")
        return [float(index % 2) for index in range(len(completions))]

    options: dict[str, Any] = {"weight_decay": 0.1, "max_failure_rate": 1.0, "callbacks": [Sees()]}
    trainer = make_trainer(tmp_path, reward_funcs=broken_later, max_steps=2, **options)
    trainer.train()
    first, second = seen
    assert all(value.equal(second[name]) for name, value in first.items())


def test_an_evaluation_that_fails(tmp_path: Path) -> None:
    trainer = breaking(tmp_path, 3)
    with pytest.raises(RolloutError, match="6 of 8 episodes failed"):
        trainer.evaluate([{"good": "left", "broken": 3, "of": 4}] * 2)
    with pytest.raises(ValueError, match="needs an eval_dataset"):
        trainer.evaluate()
