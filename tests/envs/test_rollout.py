"""The engine: many episodes at once, each at its own pace, in the order of their specs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from gymnast.envs import (
    Calculator,
    Environment,
    Episode,
    EpisodeSpec,
    Message,
    OverlongPromptError,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    ToolEnv,
    episode_specs,
    final_answer,
    group_specs,
    tool,
    tool_call,
)
from gymnast.envs.runtime.seeds import stable_seed
from gymnast.envs.runtime.threads import run_in_loop

from ..training.buttons import make_trainer
from .episodes import ANSWER, ROW, WAIT, Ender, Log, Probe, play_one, specs

# --- many at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 8])
async def test_concurrency_is_bounded_and_reached(concurrency: int) -> None:
    in_flight, most = 0, 0
    full = asyncio.Event()

    async def answer(messages: list[Message]) -> Message:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        if in_flight == concurrency:
            full.set()
        await asyncio.wait_for(full.wait(), WAIT)  # no episode goes on before the engine is full
        in_flight -= 1
        return ANSWER

    engine = RolloutEngine(Calculator(), ScriptedPolicy(answer), max_concurrency=concurrency)
    episodes = await engine.run(specs(20))
    assert most == concurrency
    assert len(episodes) == 20


async def test_results_come_in_the_order_of_the_specs() -> None:
    done = [asyncio.Event() for _ in range(6)]
    done[-1].set()

    class Chained(Probe):
        """Ends only after the episode with the next index has ended."""

        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            self.index = options["task"]["index"]
            return await super().areset(seed=seed)

        async def astep(self, action: Message) -> StepResult:
            await asyncio.wait_for(done[self.index + 1].wait(), WAIT)
            done[self.index].set()
            return StepResult([], float(self.index), True, False, {})

    finished: list[int] = []
    engine = RolloutEngine(Chained(Log()), ScriptedPolicy(["go"]))
    episodes = await engine.run(specs(5), on_episode=lambda episode: finished.append(episode.spec.task.row["index"]))
    assert [episode.reward for episode in episodes] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert finished == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_hung_tool_delays_only_its_own_episode(wrapped: bool) -> None:
    release = threading.Event()
    others_done = asyncio.Event()

    class Hanging(ToolEnv):
        @tool
        def work(self, hang: bool) -> str:
            """Work.

            Args:
                hang: Whether to hang.
            """
            assert not hang or release.wait(WAIT)
            return "worked"

    def script(messages: list[Message]) -> Message | str:
        hang = messages[0].get("content") == "hang"
        return "bye" if len(messages) > 1 else tool_call("work", hang=hang)

    finished: list[str] = []

    def note(episode: Episode) -> None:
        finished.append(str(episode.prompt[0].get("content")))
        if len(finished) == 19:
            others_done.set()

    environment = TimeLimit(Hanging(), 5) if wrapped else Hanging()
    rows = [{"prompt": "hang" if index == 3 else "go"} for index in range(20)]
    engine = RolloutEngine(environment, ScriptedPolicy(script))
    running = asyncio.create_task(engine.run(episode_specs(rows, group_size=1, seed=0), on_episode=note))
    await asyncio.wait_for(others_done.wait(), WAIT)
    assert "hang" not in finished  # it still hangs, and all the others are over
    release.set()
    episodes = await running
    assert [episode.stop for episode in episodes] == [StopReason.MODEL_STOPPED] * 20
    assert finished[-1] == "hang"


def test_play_works_for_synchronous_callers() -> None:
    engine = RolloutEngine(Calculator(), ScriptedPolicy([ANSWER]))
    episodes = engine.play([ROW, {**ROW, "answer": 4}], group_size=2, seed=1)
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 0.0, 0.0]
    assert [episode.spec.member for episode in episodes] == [0, 1, 0, 1]


# --- seeds ------------------------------------------------------------------------------------------------------


def test_members_of_a_group_share_task_and_environment_seed() -> None:
    group = group_specs("task-0", ROW, group_size=4, seed=1)
    assert len({(spec.task.id, spec.task.seed, spec.group) for spec in group}) == 1
    assert len({spec.seed for spec in group}) == 4
    assert [spec.member for spec in group] == [0, 1, 2, 3]
    again = group_specs("task-0", ROW, group_size=4, seed=1, visit=1)
    assert again[0].task.seed != group[0].task.seed
    assert again[0].group != group[0].group


async def test_the_environment_gets_the_seed_of_its_group() -> None:
    class Random(Environment):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            await super().areset(seed=seed)
            return [{"role": "user", "content": str(self.np_random.integers(2**60))}], {}

        async def astep(self, action: Message) -> StepResult:
            return StepResult([], 0.0, True, False, {})

    engine = RolloutEngine(Random, ScriptedPolicy(["x"]))
    episodes = await engine.run(episode_specs([ROW, ROW], group_size=3, seed=0))
    drawn = [episode.prompt[0].get("content") for episode in episodes]
    assert drawn[:3] == drawn[:1] * 3
    assert drawn[3:] == drawn[3:4] * 3
    assert drawn[0] != drawn[3]


def test_seeds_do_not_depend_on_the_batch() -> None:
    small = {(spec.group, spec.member): spec for spec in episode_specs([ROW], group_size=2, seed=5)}
    large = {(spec.group, spec.member): spec for spec in episode_specs([ROW] * 9, group_size=7, seed=5)}
    assert {key: large[key] for key in small} == small
    assert len({episode.seed for episode in large.values()}) == 63
    other = episode_specs([ROW], group_size=2, seed=6)
    assert {episode.seed for episode in other}.isdisjoint(episode.seed for episode in small.values())


def test_seeds_are_the_same_in_every_process() -> None:
    program = "from gymnast.envs.runtime.seeds import stable_seed; print(stable_seed(7, 'sampling', 'task-3', 1))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(result.stdout) == stable_seed(7, "sampling", "task-3", 1)
    parts: list[tuple[str | int, ...]] = [(1,), ("1",), (1, 1), (11,), ("1", "1"), ("11",), ("a;str:b",), ("a", "b")]
    assert len({stable_seed(*part) for part in parts}) == len(parts)
    assert all(0 <= stable_seed(index) < 2**63 for index in range(100))


# --- metrics, prompts and loops ---------------------------------------------------------------------------------


async def test_metrics_of_reset_are_kept_without_a_step() -> None:
    async def hang(messages: list[Message]) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    for environment in (Calculator(), TimeLimit(Calculator(), 5)):
        episode = await play_one(environment, hang, episode_timeout=0.2)
        assert str(episode.failure) == "policy: TimeoutError: episode_timeout=0.2 s was over before the first answer"
        assert (episode.turns, episode.metrics) == ([], {"success": 0.0})


@pytest.mark.parametrize(
    ("metrics", "error"),
    [
        ({"kind": "easy"}, "metric 'kind' must be a finite number, got 'easy'"),
        ({"mean": float("nan")}, "metric 'mean' must be a finite number, got nan"),
        ({"none": None}, "metric 'none' must be a finite number, got None"),
        ({5: 1.0}, "info['metrics'] must be a dict with names as keys, got {5: 1.0}"),
        ([1.0], "info['metrics'] must be a dict with names as keys, got [1.0]"),
    ],
)
@pytest.mark.parametrize("stage", ["reset", "step"])
async def test_wrong_metrics_are_refused(stage: str, metrics: Any, error: str) -> None:
    class Measures(Ender):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            messages, _ = await super().areset(seed=seed)
            return messages, {"metrics": metrics} if stage == "reset" else {}

    episode = await play_one(Measures(True, **({"metrics": metrics} if stage == "step" else {})), ["x"])
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.message.removeprefix(f"Measures.{stage}(): ")) == (stage, error)


async def test_metrics_become_plain_numbers() -> None:
    episode = await play_one(Ender(True, metrics={"a": np.float32(0.5), "b": True, "c": 2}), ["x"])
    assert episode.metrics == {"a": 0.5, "b": 1.0, "c": 2.0}
    assert {type(value) for value in episode.metrics.values()} == {float}


@pytest.mark.parametrize("on_failure", ["drop", "retry(2)", "zero", "raise"])
async def test_an_overlong_prompt_is_not_a_failure(on_failure: str) -> None:
    class Full(ScriptedPolicy):
        def begin(self, spec: EpisodeSpec, messages: Any, tools: Any) -> Any:
            raise OverlongPromptError("the prompt is too long")

    log = Log()
    engine = RolloutEngine(lambda: Probe(log), Full(["x"]), on_failure=on_failure)
    [episode] = await engine.run(specs(1))
    assert (episode.stop, episode.failure, episode.turns) == (StopReason.CONTEXT_OVERFLOW, None, [])
    assert (episode.reward, episode.reward_parts, episode.attempts) == (None, {}, 1)
    assert [message["role"] for message in episode.prompt] == ["user"]
    assert log.closed == [1]


def test_a_shared_semaphore_works_in_every_call() -> None:
    """Asyncio binds a semaphore to the loop in which a task first waited for it."""
    shared = asyncio.Semaphore(1)

    class Shares(Probe):
        async def astep(self, action: Message) -> StepResult:
            async with shared:
                await asyncio.sleep(0)
                return await super().astep(action)

    engine = RolloutEngine(lambda: Shares(Log()), ScriptedPolicy(["x"]))
    for _ in range(2):
        episodes = engine.play([{}] * 3)
        assert [episode.failure for episode in episodes] == [None] * 3


def test_an_environment_need_not_be_hashable() -> None:
    @dataclasses.dataclass
    class Data(ToolEnv):
        answer: int = 3

    with pytest.raises(TypeError, match="unhashable"):
        hash(Data())
    episodes = RolloutEngine(Data, ScriptedPolicy(["x"])).play([{"prompt": "go"}] * 3)
    assert [episode.failure for episode in episodes] == [None] * 3


def test_cancelling_a_player_leaves_the_others_alone(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    class Hangs(ToolEnv):
        async def reset_task(self, task: Mapping[str, Any]) -> list[Message]:  # type: ignore[override]
            if task["hang"]:
                begun.set()
                await asyncio.Event().wait()
            return [{"role": "user", "content": "go"}]

    async def another() -> str:
        await asyncio.to_thread(release.wait, WAIT)
        return "done"

    row = {"good": "left", "hang": False}
    player = make_trainer(tmp_path, environment=Hangs([final_answer]), rows=[row] * 4).player
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        other = threads.submit(run_in_loop, another())
        playing = threads.submit(player.play, [row | {"hang": True}], count=1)
        assert begun.wait(WAIT)
        player.cancel()
        assert isinstance(playing.exception(WAIT), asyncio.CancelledError)
        release.set()
        assert other.result(WAIT) == "done"
    with pytest.raises(asyncio.CancelledError):
        player.play([row], count=1)  # a cancellation lasts until `go_on`
    player.go_on()
    assert [episode.failure for episode in player.play([row], count=1)] == [None]


def test_wrong_kinds_of_rows_are_refused() -> None:
    with pytest.raises(TypeError, match="the row of task-1 must be a mapping, got int: 3"):
        RolloutEngine(Calculator(), ScriptedPolicy([])).play([ROW, 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"expected a list of rows, got one row: .*; write \[row\] for a single row"):
        RolloutEngine(Calculator(), ScriptedPolicy([])).play({"question": "What?", "answer": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["policy", None, ScriptedPolicy])
def test_a_policy_of_the_wrong_kind(policy: Any) -> None:
    message = f"policy must be a Policy, an object with begin(spec, messages, tools), got {type(policy).__name__}: "
    with pytest.raises(TypeError, match=re.escape(message + repr(policy))):
        RolloutEngine(Calculator(), policy)


# --- rows -------------------------------------------------------------------------------------------------------


class Shelf(ToolEnv):
    """Changes its row's list."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.books = task["shelf"]["books"]
        return [{"role": "user", "content": "Put b on the shelf."}]

    @tool
    def put(self, title: str) -> None:
        """Put a book on the shelf.

        Args:
            title: The book.
        """
        self.books.append(title)

    def grade(self, stop: StopReason) -> float:
        return float(self.books == ["a", "b"])


@pytest.mark.parametrize("place", ["data set", "tasks of the environment"])
def test_an_episode_that_changes_its_row_changes_no_other_episode(place: str) -> None:
    rows = [{"shelf": {"books": ["a"]}}]
    policy = ScriptedPolicy([tool_call("put", title="b"), "done"])
    if place == "data set":
        episodes = RolloutEngine(Shelf(), policy).play(rows, group_size=3)
        assert [episode.reward for episode in episodes] == [1.0] * 3
        assert episodes[0].spec.task.row == rows[0]
    else:
        environment = Shelf(tasks=rows)
        for _ in range(2):
            environment.reset(seed=0)
            environment.step(tool_call("put", title="b"))
    assert rows == [{"shelf": {"books": ["a"]}}]
