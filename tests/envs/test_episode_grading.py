"""Every ending is graded: `Environment.grade` is called once, whatever the reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.wrappers import TimeLimit

from gymnast.envs import (
    ConfigurationError,
    Environment,
    Episode,
    EpisodeLimits,
    Message,
    Rewards,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    ToolEnv,
    episode_specs,
    final_answer,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.engine import environment_caller

from .episodes import WAIT, play_one, say

COUNT = tool_call("count")
MALFORMED: Message = {"role": "assistant", "content": "x", "malformed": [{"text": "x", "error": "bad"}]}


class Counter(ToolEnv):
    """Gives 0.25 for each step, and a grade of 1 for each call of `count`. It records its calls."""

    record: Callable[[str], None]

    def reset_task(self, task: Any) -> list[Message]:
        self.calls, self.record = 0, task["record"]
        return [{"role": "user", "content": "go"}]

    @tool
    def count(self) -> int:
        """Count."""
        self.calls += 1
        self.reward = 0.25
        return self.calls

    async def agrade(self, stop: StopReason) -> float | None:
        self.record(f"graded: {stop}")
        self.metrics["calls"] = float(self.calls)
        self.report["log"] = [f"{self.calls} calls"]
        return float(self.calls)

    async def aclose(self) -> None:
        if hasattr(self, "record"):  # the prototype is only copied, never reset
            self.record("closed")


async def play(environment: Any, script: Any, **limits: Any) -> tuple[Episode, list[str]]:
    happened: list[str] = []

    engine = RolloutEngine(environment, ScriptedPolicy(script), limits=EpisodeLimits(**limits))
    [episode] = await engine.run(episode_specs([{"record": happened.append}], group_size=1, seed=0))
    return episode, happened


async def hang(messages: list[Message]) -> Message:
    if len(messages) > 1:
        await asyncio.Event().wait()
    return COUNT


@pytest.mark.parametrize(
    ("environment", "script", "limits", "stop"),
    [
        (Counter([final_answer]), [COUNT, tool_call("final_answer", answer="x")], {}, StopReason.FINAL_ANSWER),
        (Counter(), [COUNT, "I am done."], {}, StopReason.MODEL_STOPPED),
        (Counter(max_malformed=1), [COUNT, MALFORMED], {}, StopReason.MALFORMED),
        (Counter(), [COUNT], {"max_turns": 1}, StopReason.MAX_TURNS),
        (Counter(), [COUNT], {"max_tool_calls": 1}, StopReason.MAX_TOOL_CALLS),
        (Counter(), hang, {"episode_timeout": 0.2}, StopReason.TIMEOUT),
        (TimeLimit(Counter(), 1), [COUNT], {}, StopReason.ENV_TRUNCATED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_every_ending_is_graded_once_before_the_environment_is_closed(
    environment: Any, script: Any, limits: dict[str, Any], stop: StopReason
) -> None:
    episode, happened = await play(environment, script, **limits)
    assert episode.failure is None, episode.failure.traceback
    assert (episode.stop, happened) == (stop, [f"graded: {stop}", "closed"])
    assert episode.reward == episode.environment_reward == episode.reward_parts["environment"] == 1.25
    assert episode.turns[-1].reward >= 1.0  # the last turn has the grade
    assert (episode.metrics, episode.report) == ({"calls": 1.0}, {"log": ["1 calls"]})
    assert Episode.from_json(episode.to_json()).report == episode.report


async def test_reward_functions_see_the_grade() -> None:
    rewards = Rewards([lambda episodes, **_: [episode.environment_reward for episode in episodes]])
    engine = RolloutEngine(Counter(), ScriptedPolicy([COUNT, "I am done."]), rewards=rewards)
    [episode] = await engine.run(episode_specs([{"record": [].append}], group_size=1, seed=0))
    assert episode.reward == 2.5


async def test_a_failed_episode_is_not_graded() -> None:
    class Breaks(Counter):
        def reply(self, message: Message) -> None:
            raise ZeroDivisionError

    episode, happened = await play(Breaks(), [COUNT, "I am done."])
    assert (episode.stop, episode.reward, happened) == (StopReason.FAILED, None, ["closed"])


@pytest.mark.parametrize(
    ("grade", "message"),
    [
        (1 / 3, None),
        (None, None),
        ("1.0", "TypeError: Graded.grade() must give a number as reward, got '1.0'"),
        (float("nan"), "ValueError: Graded.grade() must give a finite reward, got nan"),
        (1e39, "ValueError: Graded.grade() must give a reward within the range of float32 (3.4e+38), got 1e+39"),
        (SystemExit(0), "SystemExit: 0"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
async def test_a_grade_is_a_number_or_none(grade: Any, message: str | None) -> None:
    class Graded(Environment):
        def step(self, action: Message) -> StepResult:
            return StepResult([], 0.5, True, False, {})

        def grade(self, stop: StopReason) -> Any:
            if isinstance(grade, BaseException):
                raise grade
            return grade

    episode = await play_one(Graded(), [say("x")])
    if message is None:
        assert episode.reward == 0.5 + (grade or 0.0)
    else:
        assert (episode.stop, episode.reward, str(episode.failure)) == (StopReason.FAILED, None, f"grade: {message}")


async def test_grading_has_the_time_of_a_step() -> None:
    class Slow(Counter):
        async def agrade(self, stop: StopReason) -> float:
            await asyncio.Event().wait()
            raise AssertionError

    episode, happened = await play(Slow(), [say("x")], step_timeout=0.05)
    said = "grade: TimeoutError: Slow.grade() did not finish within step_timeout=0.05 s"
    assert (str(episode.failure), episode.reward, happened) == (said, None, ["closed"])


class StepsInThread(Environment):
    """Its step blocks. It records the end of the step and its grading."""

    def __init__(self, happened: list[str], seconds: float = 0.3) -> None:
        super().__init__()
        self.happened, self.seconds, self.release = happened, seconds, threading.Event()

    def step(self, action: Message) -> StepResult:
        self.release.wait(self.seconds)
        self.happened.append("stepped")
        return StepResult([], 1.0, True, False, {})

    async def agrade(self, stop: StopReason) -> float:
        self.happened.append(f"graded: {stop}")
        return 0.25

    async def aclose(self) -> None:
        self.happened.append("closed")
        self.release.set()


class BlocksInTool(Counter):
    def __init__(self, happened: list[str]) -> None:
        super().__init__()
        self.blocking = StepsInThread(happened)

    @tool
    def count(self) -> int:
        """Count."""
        self.blocking.step(COUNT)
        return 1

    async def agrade(self, stop: StopReason) -> float:
        return await self.blocking.agrade(stop)


@pytest.mark.parametrize("kind", [StepsInThread, BlocksInTool, lambda happened: TimeLimit(StepsInThread(happened), 9)])
async def test_grading_waits_for_a_step_that_episode_timeout_left_in_its_thread(kind: Any) -> None:
    happened: list[str] = []
    engine = RolloutEngine(lambda: kind(happened), ScriptedPolicy([COUNT]), limits=EpisodeLimits(episode_timeout=0.1))
    [episode] = await engine.run(episode_specs([{"record": happened.append}], group_size=1, seed=0))
    assert episode.failure is None, episode.failure.traceback
    assert happened == ["stepped", "graded: timeout", "closed"]
    assert (episode.stop, episode.reward) == (StopReason.TIMEOUT, 0.25)


async def test_an_episode_whose_step_does_not_end_is_not_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_caller, "GRACE_SECONDS", 0.05)
    happened: list[str] = []
    episode = await play_one(lambda: StepsInThread(happened, seconds=WAIT), [say("x")], episode_timeout=0.05)
    said = "StepsInThread.step() was still running in its thread 0.05 s after episode_timeout"
    assert (str(episode.failure), episode.reward, happened[0]) == (f"step: TimeoutError: {said}", None, "closed")


async def test_a_configuration_error_in_grade_stops_the_run() -> None:
    class Wrong(Counter):
        def grade(self, stop: StopReason) -> float:
            self.reward = 1.0  # no step is running: it would be lost
            return 0.0

    with pytest.raises(ConfigurationError, match=r"grade\(\) returns the reward"):
        await play(Wrong(), [say("x")])


def test_a_hook_in_the_wrong_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.grade is `async def`: the asynchronous form is called agrade, rename"):

        class Wrong(ToolEnv):
            async def grade(self, stop: StopReason) -> float:  # type: ignore[override]
                return 1.0


def test_a_loop_over_step_may_ask_for_the_grade() -> None:
    happened: list[str] = []
    environment = Counter()
    environment.reset(options={"task": {"record": happened.append}})
    environment.step(tool_calls(("count", {}), ("count", {})))
    assert environment.grade(StopReason.MAX_TURNS) == 2.0
