"""Runs of 30 steps with injected faults end as `on_failure` says, with exact counts, and leave no resources."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from gymnast.envs import EpisodeFailedError, StepResult, per_episode, tool
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import DockerExecutor, LocalExecutor
from gymnast.trainer import RolloutError
from gymnast.trainer.generation.contract import GenerationError

from ..sandbox.boxes import LIMITS
from .buttons import Buttons, ScriptedGenerator, call_ids, make_trainer, tokenizer

STEPS, PER_STEP = 30, 8
Box = DockerExecutor | LocalExecutor


class Kills(TrainerCallback):
    """Kills the container or the process of a box after the first step."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > 1:
            return
        if isinstance(self.box, DockerExecutor):
            assert self.box._launched is not None
            subprocess.run(["docker", "rm", "-f", self.box._launched.container], check=True, capture_output=True)
        else:
            assert self.box._process is not None
            self.box._process.popen.kill()


@pytest.fixture
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A container, or a subprocess where no engine answers, for the loop that plays the episodes."""
    try:
        request.getfixturevalue("image")
    except pytest.skip.Exception:
        box: Box = LocalExecutor()
    else:
        box = DockerExecutor(limits=LIMITS)
    run_in_loop(box.start())
    yield box
    run_in_loop(box.close())


class Faulty(Buttons):
    """Each instance may have one fault, which depends on the order of creation."""

    tool_timeout = 1.0
    plan: dict[int, str] = {}  # noqa: RUF012  (shared on purpose, as the next two)
    closed: list[int] = []  # noqa: RUF012  (how often each instance was closed)
    box: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.number = len(Faulty.closed)
        Faulty.closed.append(0)

    @property
    def fault(self) -> str:
        return Faulty.plan.get(self.number, "")

    async def areset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.fault == "reset":
            raise ConnectionError("the database is down")
        return await super().areset(seed=seed, options=options)

    async def astep(self, action: Any) -> StepResult:
        if self.fault == "step":
            raise OSError("the disk is full")
        if self.fault == "hang":
            await asyncio.Event().wait()
        result = await super().astep(action)
        return result._replace(reward="much") if self.fault == "wrong type" else result  # type: ignore[arg-type]

    @tool
    async def look(self) -> str:  # type: ignore[override]
        """Look at the buttons."""
        if self.fault == "tool":
            raise RuntimeError("no light")
        if self.fault == "slow tool":
            await asyncio.Event().wait()
        if self.fault == "box":
            await Faulty.box.python("1")
        return "one is lit"

    async def aclose(self) -> None:
        Faulty.closed[self.number] += 1
        await super().aclose()
        if self.fault == "close":
            raise OSError("still busy")


FAULTS = ("reset", "step", "hang", "wrong type", "box", "tool", "slow tool", "close")
LOST = (
    *("reset: ConnectionError", "step: OSError", "step: TimeoutError", "step: TypeError", "step: SandboxLostError"),
    *("reward: RuntimeError", "reward: TimeoutError", "reward: ValueError", "policy: GenerationError"),
)


def answers(fails: Any) -> ScriptedGenerator:
    """A generator that looks first and then presses a button; `fails` says which of its requests fail."""

    def answer(request: Any) -> list[int]:
        if fails(len(generator.requests)):
            raise GenerationError("the engine is busy")
        text = str(tokenizer().decode(request.prompt.ids))
        is_first = text.count("<|im_start|>assistant") == 1
        return call_ids("look" if is_first else ("left", "right")[request.seed % 2])

    generator = ScriptedGenerator(answer)
    return generator


def judge() -> Any:
    """A reward function of which three calls go wrong."""
    calls: list[int] = []

    @per_episode
    async def judged(completions: Any, **columns: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 20:
            raise RuntimeError("no judge")
        if len(calls) == 30:
            await asyncio.Event().wait()
        return [math.nan if len(calls) == 40 else 0.5]

    return judged


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every environment is closed once, and no thread, no task and no container is left."""
    Faulty.plan, Faulty.closed, Faulty.box = {}, [], None
    yield
    assert Faulty.closed == [1] * len(Faulty.closed)
    assert "gymnast-watchdog" not in [thread.name for thread in threading.enumerate()]

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    assert run_in_loop(tasks()) == 1  # this one


def faulty_trainer(folder: Path, **options: Any) -> Any:
    trainer = make_trainer(
        folder, environment=Faulty, max_steps=STEPS, step_timeout=2.0, reward_timeout=2.0, logging_steps=10, **options
    )
    Faulty.plan = {len(Faulty.closed) + 10 * index: fault for index, fault in enumerate(FAULTS)}  # from now on
    return trainer


def summary(caplog: pytest.LogCaptureFixture) -> str:
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("failures of this")]
    return line


@pytest.mark.parametrize("on_failure", ["drop", "retry(1)", "zero"])
def test_a_run_goes_on_with_exact_counts(
    on_failure: str, box: Box, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Faulty.box = box
    fails = answers(lambda count: count == 200)  # by then, all other faults are over: no episode has two
    options = {"reward_funcs": judge(), "generator": fails, "callbacks": Kills(box)}
    trainer = faulty_trainer(tmp_path, on_failure=on_failure, **options)
    made = len(Faulty.closed)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == STEPS
    kinds = ", ".join(sorted(f"1 x {kind}" for kind in LOST))
    again = on_failure == "retry(1)"
    lost = f"failures tried again: 9 ({kinds})" if again else f"lost episodes: 9 of {STEPS * PER_STEP} ({kinds})"
    others = "environments not closed cleanly: 1 (1 x close: OSError); broken tool calls: 2 (1 x look: exception, "
    assert summary(caplog) == f"failures of this training: {lost}; {others}1 x look: timeout)"
    logs = [log for log in trainer.state.log_history if "episodes/played" in log]
    counts = {"played": STEPS * PER_STEP, "failed": 0 if again else 9, "retried": 9 * again, "close_failed": 1}
    assert {name: sum(log[f"episodes/{name}"] for log in logs) for name in counts} == counts
    replayed = 6 if again else 0  # after a failed reward function only that is called again
    assert len(Faulty.closed) == made + STEPS * PER_STEP + replayed


def test_a_run_is_stopped_by_its_first_failure(tmp_path: Path) -> None:
    trainer = faulty_trainer(tmp_path, on_failure="raise", generator=answers(lambda count: False))
    Faulty.plan = {number + 80: "step" for number in Faulty.plan}
    with pytest.raises(EpisodeFailedError, match="step: OSError: the disk is full"):
        trainer.train()
    assert trainer.state.global_step == 10
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]


@pytest.mark.parametrize("on_failure", ["drop", "retry(1)", "zero", "raise"])
def test_a_run_whose_generator_dies_ends(on_failure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = faulty_trainer(tmp_path, on_failure=on_failure, generator=answers(lambda count: count > 40))
    Faulty.plan = {}
    error = EpisodeFailedError if on_failure == "raise" else RolloutError
    with caplog.at_level(logging.WARNING), pytest.raises(error, match="policy: GenerationError"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{trainer.state.global_step}"]
    if on_failure == "raise":
        assert trainer.state.global_step == 2
    else:
        assert " x policy: GenerationError)" in summary(caplog)
