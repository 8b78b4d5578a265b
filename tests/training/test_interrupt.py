"""Ctrl-C or SIGTERM: the first signal stops training at a safe place with a checkpoint, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from gymnast.envs import Message, tool
from gymnast.trainer import AgentTrainer, RolloutError

from .buttons import ROWS, Buttons, ScriptedGenerator, call_ids, make_trainer
from .inspecting import assert_same, weights


def press() -> None:
    """Do as the terminal does on Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Python's own handler, even if the parent process ignores the signal; each test must restore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, previous) is signal.default_int_handler


class Counts(Buttons):
    """Knows which of its instances are open."""

    open: set[int] = set()  # noqa: RUF012  (shared on purpose)
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Counts.open.add(id(self))
        Counts.made += 1

    def close(self) -> None:
        Counts.open.remove(id(self))
        super().close()


@pytest.fixture(autouse=True)
def everything_is_closed() -> Iterator[None]:
    Counts.open.clear()
    Counts.made = 0
    yield
    assert not Counts.open


class Presses(TrainerCallback):
    """Presses Ctrl-C at an event of a step."""

    def __init__(self, event: str, step: int, times: int = 1) -> None:
        self.step = step
        self.times = times
        setattr(self, event, self._press)

    def _press(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            for _ in range(self.times):
                press()


def trainer_of(folder: Path, *callbacks: Any, environment: Any = Counts, **options: Any) -> AgentTrainer:
    options = {"max_steps": 50} | options
    return make_trainer(folder, environment=environment, callbacks=callbacks, **options)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def assert_resumes(folder: Path, step: int, **options: Any) -> None:
    """The checkpoint equals the state of a training without Ctrl-C: the next step gives the same weights."""
    rest = make_trainer(folder / "resumed", max_steps=step + 1, **options)
    rest.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    assert rest.state.global_step == step + 1
    assert rest.model is not None
    whole = usual_weights() if not options else weights_of_steps(folder / "whole", step + 1, **options)
    assert_same(weights(rest.model), whole[step])


def weights_of_steps(folder: Path, steps: int, **options: Any) -> list[dict[str, torch.Tensor]]:
    """The weights after each step of a training without Ctrl-C."""
    found: list[dict[str, torch.Tensor]] = []

    class Keeps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.append(weights(kwargs["model"]))

    make_trainer(folder, max_steps=steps, callbacks=[Keeps()], **options).train()
    return found


@cache
def usual_weights() -> list[dict[str, torch.Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        return weights_of_steps(Path(folder), 4)


@pytest.mark.parametrize("overlap", [0, 1])
def test_during_a_rollout(overlap: int, tmp_path: Path) -> None:
    pressed: list[int] = []

    class Stops(Counts):
        @tool
        async def look(self) -> str:  # type: ignore[override]
            """Look at the buttons."""
            if trainer.state.global_step >= 2:
                if not pressed:
                    pressed.append(trainer.state.global_step)
                    press()
                await asyncio.Event().wait()  # for ever, unless it is cancelled
            return "one is lit"

    generator = ScriptedGenerator(lambda request: call_ids("look" if request.seed % 2 else "left"))
    trainer = trainer_of(tmp_path, environment=Stops, generator=generator, max_staleness=overlap)
    step = trainer.train().global_step
    assert trainer.was_interrupted
    assert pressed[0] <= step <= pressed[0] + overlap  # an update that has begun is finished
    assert checkpoints(tmp_path) == [f"checkpoint-{step}"]
    assert Counts.made > 16
    assert_resumes(tmp_path, step, generator=generator, max_staleness=overlap)


@pytest.mark.parametrize("overlap", [0, 1])
def test_before_a_rollout(overlap: int, tmp_path: Path) -> None:
    """Ctrl-C counts between two waits for episodes, too."""

    class Rows(list[dict[str, Any]]):
        is_armed = False

        def __getitem__(self, index: Any) -> Any:
            if self.is_armed:
                self.is_armed = False
                press()
                made.append(Counts.made)
            return super().__getitem__(index)

    class Arms(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rows.is_armed = state.global_step == 2

    made: list[int] = []
    rows = Rows(ROWS)
    trainer = trainer_of(tmp_path, Arms(), rows=rows, max_staleness=overlap)
    trainer.train()
    assert trainer.was_interrupted
    assert trainer.state.global_step == 2
    assert overlap or made == [Counts.made]  # no episode began
    assert len(trainer.rollout(ROWS[:1])) == 1  # the trainer still plays


def test_a_trainer_can_go_on_by_itself(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Presses("on_step_end", 2), max_steps=4)
    trainer.train()
    assert trainer.was_interrupted
    trainer.train(resume_from_checkpoint=True)
    assert not trainer.was_interrupted
    assert trainer.state.global_step == 4


@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("on_step_begin", {}),
        ("on_pre_optimizer_step", {}),
        ("on_substep_end", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
    ],
)
def test_an_update_in_progress_is_finished(event: str, options: dict[str, Any], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Presses(event, 1), **options)
    trainer.train()
    assert trainer.was_interrupted
    assert trainer.state.global_step == 2
    assert checkpoints(tmp_path) == ["checkpoint-2"]
    assert_resumes(tmp_path, 2, **options)


def test_sigterm_is_like_ctrl_c(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same holds right after a training was resumed: its checkpoint exists already."""

    class Terminates(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    trainer_of(tmp_path, Terminates()).train()
    assert checkpoints(tmp_path) == ["checkpoint-1"]
    saved = [path.stat().st_mtime_ns for path in sorted((tmp_path / "checkpoint-1").iterdir())]
    again = trainer_of(tmp_path, Presses("on_train_begin", 1))
    again.train(resume_from_checkpoint=True)
    assert (again.was_interrupted, again.state.global_step) == (True, 1)
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "checkpoint-1").iterdir())] == saved
    assert "interrupted by SIGTERM: stopping at the next safe place" in caplog.text
    assert caplog.text.count("interrupted after step 1; the checkpoint is in") == 2
    assert signal.getsignal(signal.SIGTERM) == handler
    assert_resumes(tmp_path, 1)


def test_in_the_middle_of_a_checkpoint(tmp_path: Path) -> None:
    trainer: Any = trainer_of(tmp_path, save_strategy="steps", save_steps=1)
    save_model = trainer.save_model

    def terminated(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        save_model(*args, **kwargs)

    trainer.save_model = terminated
    trainer.train()
    assert (trainer.was_interrupted, checkpoints(tmp_path)) == (True, ["checkpoint-1"])
    assert_resumes(tmp_path, 1)


def test_in_the_middle_of_a_round(tmp_path: Path) -> None:
    options = {"per_device_train_batch_size": 4, "steps_per_generation": 2}
    trainer = trainer_of(tmp_path, Presses("on_pre_optimizer_step", 2), **options)
    trainer.train()
    assert checkpoints(tmp_path) == ["checkpoint-3"]
    assert_resumes(tmp_path, 3, **options)


def test_between_two_rounds_of_a_step(tmp_path: Path) -> None:
    trainer: Any = trainer_of(tmp_path, steps_per_generation=1, gradient_accumulation_steps=4)
    rounds: list[int] = []

    def on_episodes(episodes: Any) -> None:
        rounds.append(len(episodes))
        press()

    trainer.on_episodes = on_episodes
    trainer.train()
    assert len(rounds) == 1
    assert (trainer.was_interrupted, trainer.state.global_step) == (True, 0)


def test_a_step_that_was_given_up_is_counted_once(tmp_path: Path) -> None:
    """The signal comes after the first of the two rounds of step 3."""
    options: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "steps_per_generation": 1,
        "gradient_accumulation_steps": 2,
    }
    trainer: Any = trainer_of(tmp_path, **options)

    def on_episodes(episodes: Any) -> None:
        if trainer.state.global_step == 2:
            press()

    trainer.on_episodes = on_episodes
    trainer.train()
    assert checkpoints(tmp_path) == ["checkpoint-2"]
    rest = make_trainer(tmp_path, max_steps=3, **options)
    rest.train(resume_from_checkpoint=True)
    assert [logs["episodes/played"] for logs in rest.state.log_history if "loss" in logs] == [8, 8, 8]


@pytest.mark.parametrize(("options", "step"), [({"eval_on_start": True}, 0), ({"eval_delay": 2}, 2)])
def test_during_an_evaluation(options: dict[str, Any], step: int, tmp_path: Path) -> None:
    never = threading.Event()
    pressed: list[bool] = []

    class Stops(Counts):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            if task.get("stop") and trainer.is_in_train:
                if not pressed:
                    pressed.append(True)
                    press()
                never.wait()  # this thread is abandoned when the evaluation is cancelled
            return super().reset_task(task)

    class IsNotInTrain:
        is_in_train = False

    trainer: Any = IsNotInTrain()
    trainer = trainer_of(
        tmp_path,
        environment=Stops,
        eval_rows=[{"good": "left", "stop": True}] * 2,
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="eval_reward",
        **options,
    )
    trainer.train()
    assert trainer.was_interrupted
    assert trainer.state.global_step == step
    assert checkpoints(tmp_path) == [f"checkpoint-{step}"]
    assert not [logs for logs in trainer.state.log_history if "eval_reward" in logs]
    never.set()


def test_before_the_first_round(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Presses("on_train_begin", 0))
    Counts.made = 0
    trainer.train()
    assert trainer.was_interrupted
    assert (trainer.state.global_step, Counts.made) == (0, 0)
    assert checkpoints(tmp_path) == ["checkpoint-0"]
    assert_resumes(tmp_path, 0)


def test_the_checkpoint_is_not_the_best_model(tmp_path: Path) -> None:
    """`load_best_model_at_end` brings back older weights; the checkpoint has the latest."""
    trainer = trainer_of(
        tmp_path,
        Presses("on_step_end", 3),
        eval_rows=[{"good": "neither"}],
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None
    assert best.endswith("checkpoint-1")  # all rewards are 0, so the first checkpoint stays the best
    assert_resumes(tmp_path, 3)


def test_the_second_interrupts_at_once(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Presses("on_pre_optimizer_step", 1, times=2))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 1
    assert checkpoints(tmp_path) == []


def test_outside_the_main_thread_training_works(tmp_path: Path) -> None:
    """Python delivers signals to the main thread alone."""
    trainer = trainer_of(tmp_path, max_steps=1)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 1


def test_the_handler_is_restored_after_an_error(tmp_path: Path) -> None:
    def broken(completions: Any, **columns: Any) -> list[float]:
        raise RuntimeError("the reward broke")

    with pytest.raises(RolloutError, match="the reward broke"):
        trainer_of(tmp_path, reward_funcs=broken).train()
