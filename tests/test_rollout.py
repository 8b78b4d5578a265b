"""The engine: many episodes at once, each at its own pace, every ending and every failure told truthfully."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import datetime
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from gymnast.envs import (
    Act,
    Calculator,
    ConfigurationError,
    Environment,
    EnvironmentSource,
    Episode,
    EpisodeFailedError,
    EpisodeLimits,
    EpisodeSpec,
    Failure,
    Message,
    OverlongPromptError,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    Task,
    TokenTrace,
    ToolCallRecord,
    ToolEnv,
    Turn,
    episode_specs,
    final_answer,
    group_specs,
    play_episode,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.core import stable_seed
from gymnast.envs.threads import run_in_loop

from .buttons import make_trainer

WAIT = 30.0  # seconds after which an event that does not come is a failure
ADD = tool_call("add", a=1, b=2)
ANSWER = tool_call("final_answer", answer=3)
ROW = {"question": "What is 1 plus 2?", "answer": 3}


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def specs(count: int, **columns: Any) -> list[EpisodeSpec]:
    rows = [{**ROW, "prompt": "go", "index": index, **columns} for index in range(count)]
    return episode_specs(rows, group_size=1, seed=0)


async def play_one(environment: Any, script: Any, *, on_failure: str = "drop", **limits: Any) -> Episode:
    engine = RolloutEngine(environment, ScriptedPolicy(script), limits=EpisodeLimits(**limits), on_failure=on_failure)
    [episode] = await engine.run(specs(1))
    return episode


def tool_contents(episode: Episode) -> list[Any]:
    return [message.get("content") for message in episode.completion if message["role"] == "tool"]


class Probe(Environment):
    """Answers at once; notes what was made and closed, and breaks where it is told to."""

    def __init__(self, log: Log, *, breaks: str = "", error: BaseException | None = None) -> None:
        super().__init__()
        self.log = log
        self.breaks = breaks
        self.error = error
        self.closed = 0
        log.made.append(self)
        self.maybe_break("create")

    def maybe_break(self, stage: str) -> None:
        if stage == self.breaks:
            raise self.error or ZeroDivisionError(f"in {stage}")

    async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
        await super().areset(seed=seed)
        self.maybe_break("reset")
        return [{"role": "user", "content": "go"}], {}

    async def astep(self, action: Message) -> StepResult:
        self.maybe_break("step")
        return StepResult([], 1.0, True, False, {})

    async def aclose(self) -> None:
        self.closed += 1
        self.maybe_break("close")


class Log:
    def __init__(self) -> None:
        self.made: list[Probe] = []

    @property
    def closed(self) -> list[int]:
        return [each.closed for each in self.made]


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
        await asyncio.wait_for(full.wait(), WAIT)  # nobody goes on before the engine is full
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


async def test_specs_are_taken_as_places_become_free() -> None:
    taken: list[int] = []

    def stream() -> Iterator[EpisodeSpec]:
        for index, spec in enumerate(specs(6)):
            taken.append(index)
            yield spec

    over: list[int] = []
    engine = RolloutEngine(Calculator(), ScriptedPolicy([ANSWER]), max_concurrency=1)
    await engine.run(stream(), on_episode=lambda _: over.append(len(taken)))
    assert over[0] <= 2
    assert taken == list(range(6))


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_hung_tool_delays_its_own_episode_only(wrapped: bool) -> None:
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


def test_play_is_for_callers_that_are_not_asynchronous() -> None:
    engine = RolloutEngine(Calculator(), ScriptedPolicy([ANSWER]))
    episodes = engine.play([ROW, {**ROW, "answer": 4}], group_size=2, seed=1)
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 0.0, 0.0]
    assert [episode.spec.member for episode in episodes] == [0, 1, 0, 1]


# --- endings ----------------------------------------------------------------------------------------------------


class Ender(Environment):
    """Ends the way that its row says."""

    def __init__(self, terminated: Any = False, truncated: Any = False, **info: Any) -> None:
        super().__init__()
        self.result = StepResult([], 0.5, terminated, truncated, info)

    async def astep(self, action: Message) -> StepResult:
        return self.result


MALFORMED: Message = {"role": "assistant", "content": "x", "malformed": [{"text": "x", "error": "bad"}]}


@pytest.mark.parametrize(
    ("environment", "script", "limits", "stop"),
    [
        (Calculator(), [ADD, ANSWER], {}, StopReason.FINAL_ANSWER),
        (Calculator(), [ADD, "It is 3."], {}, StopReason.MODEL_STOPPED),
        (Calculator(), [MALFORMED] * 3, {}, StopReason.MALFORMED),
        (Calculator(on_malformed="end"), [MALFORMED], {}, StopReason.MALFORMED),
        (Ender(True), ["x"], {}, StopReason.ENV_TERMINATED),
        (Ender(np.True_, np.False_), ["x"], {}, StopReason.ENV_TERMINATED),
        (Ender(False, True), ["x"], {}, StopReason.ENV_TRUNCATED),
        (Ender(True, True), ["x"], {}, StopReason.ENV_TERMINATED),
        (Ender(False, True, stop_reason="context_overflow"), ["x"], {}, StopReason.CONTEXT_OVERFLOW),
        (Ender(True, stop_reason="model_stopped"), ["x"], {}, StopReason.MODEL_STOPPED),
        (TimeLimit(Calculator(), 2), [ADD] * 3, {}, StopReason.ENV_TRUNCATED),
        (TimeLimit(Calculator(), 2), [ADD, ANSWER], {}, StopReason.FINAL_ANSWER),
        (Calculator(), [ADD] * 3, {"max_turns": 3}, StopReason.MAX_TURNS),
        (Calculator(), [ADD, ADD, ANSWER], {"max_turns": 3}, StopReason.FINAL_ANSWER),
        (Calculator(), [ADD] * 3, {"max_tool_calls": 3}, StopReason.MAX_TOOL_CALLS),
        (Calculator(), [ADD, ADD, ANSWER], {"max_tool_calls": 3}, StopReason.FINAL_ANSWER),
        (Ender(), [ADD] * 3, {"max_tool_calls": 2}, StopReason.MAX_TOOL_CALLS),
    ],
)
async def test_endings(environment: Any, script: Any, limits: dict[str, Any], stop: StopReason) -> None:
    episode = await play_one(environment, script, **limits)
    assert episode.failure is None, episode.failure
    assert episode.stop is stop
    assert episode.reward == episode.environment_reward == episode.reward_parts["environment"]
    assert episode.stop.is_termination + episode.stop.is_truncation + episode.stop.is_failure == 1


def test_every_stop_reason_is_of_one_kind() -> None:
    kinds = {reason: (reason.is_termination, reason.is_truncation, reason.is_failure) for reason in StopReason}
    assert all(sum(kind) == 1 for kind in kinds.values())
    terminations = {reason.value for reason in StopReason if reason.is_termination}
    assert terminations == {"final_answer", "env_terminated", "model_stopped", "malformed"}
    assert [reason for reason in StopReason if reason.is_failure] == [StopReason.FAILED]


async def test_the_record_of_a_whole_episode() -> None:
    episode = await play_one(Calculator(), [tool_calls(("add", {"a": 1, "b": 2}), ("ad", {})), ANSWER])
    assert [message["role"] for message in episode.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    assert [record.outcome for record in episode.tool_calls] == ["ok", "unknown", "ok"]
    assert [schema["function"]["name"] for schema in episode.tools] == ["add", "subtract", "multiply", "final_answer"]
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
    assert episode.metrics == {"success": 1.0}
    assert (episode.attempts, episode.trace, episode.close_failure) == (1, None, None)
    assert 0 < sum(turn.environment_seconds for turn in episode.turns) < episode.seconds


async def test_a_timeout_truncates_the_episode() -> None:
    async def hang(messages: list[Message]) -> Message:
        if len(messages) > 1:
            await asyncio.Event().wait()
        return ADD

    log = Log()
    episode = await play_one(Calculator(), hang, episode_timeout=0.2)
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TIMEOUT, 0.0, 1)

    class Endless(Probe):
        async def astep(self, action: Message) -> StepResult:
            await asyncio.Event().wait()
            raise AssertionError

    episode = await play_one(Endless(log), ["x"], episode_timeout=0.2)
    assert (episode.stop, len(episode.turns)) == (StopReason.TIMEOUT, 1)
    assert log.closed[-1] == 1


async def test_a_timeout_before_the_first_turn_is_a_failure() -> None:
    class NeverReset(Probe):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            await asyncio.Event().wait()
            raise AssertionError

    log = Log()
    episode = await play_one(NeverReset(log), ["x"], episode_timeout=0.05)
    assert episode.failure is not None
    assert (episode.stop, episode.failure.stage, episode.failure.type) == (StopReason.FAILED, "reset", "TimeoutError")
    assert episode.failure.message == "episode_timeout=0.05 s was over before the first turn"
    assert episode.reward is None
    assert log.closed[-1] == 1


# --- the limit of tool calls ------------------------------------------------------------------------------------


async def test_refused_calls_get_a_result_in_their_place() -> None:
    turn = tool_calls(
        ("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}), ("nothing", {}), ("final_answer", {"answer": "x"})
    )
    episode = await play_one(Calculator(), [turn], max_tool_calls=1)
    assert episode.stop is StopReason.MAX_TOOL_CALLS  # the final call went wrong, so the limit counts
    refusal = "Error: not run, the limit of 1 tool calls is reached."
    assert tool_contents(episode)[:3] == ["2", refusal, refusal]
    assert "valid integer" in tool_contents(episode)[3]
    assert [message.get("tool_call_id") for message in episode.turns[0].observation] == [
        "call_0",
        "call_1",
        "call_2",
        "call_3",
    ]
    assert [record.call_id for record in episode.tool_calls] == ["call_0", "call_1", "call_2", "call_3"]
    assert [record.outcome for record in episode.tool_calls] == ["ok", "not_run", "unknown", "bad_arguments"]
    assert episode.turns[0].message == turn  # what the model said stays as it was


async def test_a_final_answer_goes_before_every_limit() -> None:
    turn = tool_calls(
        ("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}), ("final_answer", {"answer": 3}), ("add", {"a": 0, "b": 0})
    )
    episode = await play_one(Calculator(), [turn], max_tool_calls=1, max_turns=1)
    assert (episode.stop, episode.reward) == (StopReason.FINAL_ANSWER, 1.0)
    assert [record.outcome for record in episode.tool_calls] == ["ok", "not_run", "ok", "not_run"]
    assert tool_contents(episode)[2] == "right"


async def test_the_limit_counts_over_turns() -> None:
    two = tool_calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}))
    episode = await play_one(Calculator(), [two, two], max_tool_calls=3)
    assert episode.stop is StopReason.MAX_TOOL_CALLS
    assert tool_contents(episode) == ["2", "4", "2", "Error: not run, the limit of 3 tool calls is reached."]


async def test_refusals_stand_before_what_is_no_result() -> None:
    class Chatty(Environment):
        async def astep(self, action: Message) -> StepResult:
            results: list[Message] = [{"role": "tool", "content": "ran"} for _ in action.get("tool_calls") or []]
            return StepResult([*results, {"role": "user", "content": "go on"}], 0.0, False, False, {})

    episode = await play_one(Chatty(), [tool_calls(("a", {}), ("b", {}))], max_tool_calls=1)
    observation = episode.turns[0].observation
    assert [message["role"] for message in observation] == ["tool", "tool", "user"]
    assert observation[0].get("content") == "ran"


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("in it"), SystemExit(2), KeyboardInterrupt("k"), asyncio.CancelledError("c")]
)
@pytest.mark.parametrize("stage", ["create", "reset", "step"])
async def test_an_environment_that_breaks_is_a_typed_failure(stage: str, error: BaseException) -> None:
    log = Log()
    episode = await play_one(lambda: Probe(log, breaks=stage, error=error), ["x"])
    assert episode.stop is StopReason.FAILED
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == (stage, type(error).__name__)
    assert episode.failure.message == str(error)
    assert "maybe_break" in episode.failure.traceback
    assert (episode.reward, episode.reward_parts) == (None, {})
    assert log.closed == [0 if stage == "create" else 1]


@pytest.mark.parametrize("error", [ZeroDivisionError("in it"), SystemExit(2), asyncio.CancelledError("c")])
async def test_an_environment_that_does_not_close_keeps_its_episode(error: BaseException) -> None:
    log = Log()
    episode = await play_one(lambda: Probe(log, breaks="close", error=error), ["x"])
    assert (episode.stop, episode.reward, episode.failure) == (StopReason.ENV_TERMINATED, 1.0, None)
    assert episode.close_failure is not None
    assert (episode.close_failure.stage, episode.close_failure.type) == ("close", type(error).__name__)
    assert log.closed == [1]


class BrokenPolicy:
    """Breaks where it is told to."""

    trace = None

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks

    def begin(self, spec: EpisodeSpec, messages: Any, tools: Any) -> BrokenPolicy:
        self.maybe_break("begin")
        return self

    async def act(self) -> Act:
        self.maybe_break("act")
        return Act(message={"role": "robot"} if self.breaks == "message" else say("x"))

    def observe(self, messages: Any, *, last: bool) -> None:
        self.maybe_break("observe")

    def maybe_break(self, place: str) -> None:
        if place == self.breaks:
            raise ZeroDivisionError(f"in {place}")


@pytest.mark.parametrize("place", ["begin", "act", "observe", "message"])
async def test_a_policy_that_breaks_is_a_failure_of_the_policy(place: str) -> None:
    log = Log()
    [episode] = await RolloutEngine(lambda: Probe(log), BrokenPolicy(place)).run(specs(1))
    assert episode.failure is not None
    assert episode.failure.stage == "policy"
    assert episode.failure.message.startswith("the policy gave a wrong message" if place == "message" else "in ")
    assert log.closed == [1]


async def test_a_script_that_is_too_short_says_so() -> None:
    episode = await play_one(Calculator(), [ADD])
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("policy", "IndexError")
    assert "the script has 1 answers" in episode.failure.message


OK = {"messages": [], "reward": 0.0, "terminated": True, "truncated": False, "info": {}}


@pytest.mark.parametrize(
    ("reset", "step", "message"),
    [
        ("text", OK, r"Custom\.reset\(\) must return \(messages, info\), got 'text'"),
        (([{"role": "robot"}], {}), OK, r"Custom\.reset\(\) gave a wrong message at place 0: 'role' must be one of"),
        ((np.zeros(3), {}), OK, r"Custom\.reset\(\) must give a list of messages, got ndarray"),
        (None, "text", r"Custom\.step\(\) must return \(messages, reward, terminated, truncated, info\), got 'text'"),
        (None, {**OK, "messages": None}, r"Custom\.step\(\) must give a list of messages, got NoneType"),
        (
            None,
            {**OK, "messages": [{"role": "user", "content": 3}]},
            r"Custom\.step\(\) gave a wrong message .*'content'",
        ),
        (None, {**OK, "reward": None}, r"Custom\.step\(\) must give a number as reward, got None"),
        (None, {**OK, "reward": float("nan")}, r"Custom\.step\(\) must give a finite reward, got nan"),
        (None, {**OK, "info": None}, r"Custom\.step\(\) must give a dict as info, got NoneType"),
        (None, {**OK, "info": {"tool_calls": 3}}, r"info\['tool_calls'\] is a list of ToolCallRecord, got 3"),
        (None, {**OK, "info": {"stop_reason": "bored"}}, r"info\['stop_reason'\] must be one of .*got 'bored'"),
        (
            None,
            {**OK, "info": {"stop_reason": "timeout"}},
            "'timeout', which contradicts terminated=True and truncated=F",
        ),
        (None, {**OK, "info": {"stop_reason": "failed"}}, "'failed', which contradicts terminated=True"),
        (None, {**OK, "terminated": False, "info": {"stop_reason": "final_answer"}}, "contradicts terminated=False"),
    ],
)
async def test_what_an_environment_gives_back_is_checked(reset: Any, step: Any, message: str) -> None:
    class Custom(Environment):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return ([], {}) if reset is None else reset

        async def astep(self, action: Message) -> Any:
            return step if isinstance(step, str) else tuple(step.values())

    episode = await play_one(Custom, ["x"])
    assert episode.failure is not None
    assert episode.failure.stage == ("reset" if reset is not None else "step")
    with pytest.raises(ValueError, match=message):
        raise ValueError(episode.failure.message)


@pytest.mark.parametrize("stage", ["reset", "step"])
async def test_step_timeout_is_a_failure(stage: str) -> None:
    class Slow(Probe):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            if stage == "reset":
                await asyncio.Event().wait()
            return await super().areset(seed=seed)

        async def astep(self, action: Message) -> StepResult:
            await asyncio.Event().wait()
            raise AssertionError

    log = Log()
    episode = await play_one(lambda: Slow(log), ["x"], step_timeout=0.05)
    assert episode.failure is not None
    assert (episode.stop, episode.failure.stage, episode.failure.type) == (StopReason.FAILED, stage, "TimeoutError")
    assert episode.failure.message == f"Slow.{stage}() did not finish within step_timeout=0.05 s"
    assert log.closed == [1]


async def test_failures_stay_their_own() -> None:
    log = Log()

    def make() -> Probe:
        return Probe(log, breaks="step" if len(log.made) % 2 else "")

    episodes = await RolloutEngine(make, ScriptedPolicy(["x"]), max_concurrency=1).run(specs(6))
    assert [episode.stop.is_failure for episode in episodes] == [False, True] * 3
    assert [episode.reward for episode in episodes] == [1.0, None] * 3
    assert log.closed == [1] * 6


# --- on_failure -------------------------------------------------------------------------------------------------


def failing_first(log: Log, failures: int) -> Callable[[], Probe]:
    return lambda: Probe(log, breaks="step" if len(log.made) < failures else "")


@pytest.mark.parametrize(
    ("on_failure", "failures", "attempts", "reward", "failed"),
    [
        ("drop", 1, 1, None, True),
        ("retry(1)", 1, 2, 1.0, False),
        ("retry( 3 )", 2, 3, 1.0, False),
        ("retry(2)", 9, 3, None, True),
        ("zero", 1, 1, 0.0, True),
        ("raise", 0, 1, 1.0, False),
    ],
)
async def test_on_failure(on_failure: str, failures: int, attempts: int, reward: float | None, failed: bool) -> None:
    log = Log()
    episode = await play_one(failing_first(log, failures), ["x"], on_failure=on_failure)
    assert (episode.attempts, episode.reward, episode.stop.is_failure) == (attempts, reward, failed)
    assert (episode.failure is not None) == failed
    assert log.closed == [1] * attempts


@pytest.mark.parametrize("on_failure", ["ignore", "retry", "retry(0)", "retry(-1)", "retry(x)", ""])
def test_a_bad_on_failure_is_refused(on_failure: str) -> None:
    with pytest.raises(
        ValueError, match=r"on_failure must be 'drop', 'retry\(n\)' with n >= 1, 'zero' or 'raise', got"
    ):
        RolloutEngine(Calculator(), ScriptedPolicy([]), on_failure=on_failure)


class Waiting(Probe):
    """Waits in its step, and closes only when it is allowed to."""

    def __init__(self, log: Log, started: asyncio.Semaphore, may_close: asyncio.Event) -> None:
        super().__init__(log)
        self.started = started
        self.may_close = may_close

    async def astep(self, action: Message) -> StepResult:
        self.started.release()
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        await asyncio.wait_for(self.may_close.wait(), WAIT)
        self.closed += 1


async def test_cancellation_closes_every_environment_exactly_once() -> None:
    log, started, may_close = Log(), asyncio.Semaphore(0), asyncio.Event()
    running = asyncio.create_task(
        RolloutEngine(lambda: Waiting(log, started, may_close), ScriptedPolicy(["x"])).run(specs(5))
    )
    for _ in range(5):
        await asyncio.wait_for(started.acquire(), WAIT)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()  # an impatient user: closing goes on all the same
    await asyncio.sleep(0)
    assert not running.done()
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log.closed == [1] * 5


async def test_cancellation_closes_what_is_still_being_made() -> None:
    making, may_make, closed = threading.Event(), threading.Event(), threading.Event()

    class SlowlyMade(Probe):
        def __init__(self, log: Log) -> None:
            making.set()
            assert may_make.wait(WAIT)
            super().__init__(log)

        async def aclose(self) -> None:
            await super().aclose()
            closed.set()

    log = Log()
    running = asyncio.create_task(RolloutEngine(lambda: SlowlyMade(log), ScriptedPolicy(["x"])).run(specs(1)))
    assert await asyncio.to_thread(making.wait, WAIT)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    may_make.set()
    assert await asyncio.to_thread(closed.wait, WAIT)
    assert log.closed == [1]


async def test_cancellation_while_an_environment_closes_waits_for_it() -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()

    class SlowlyClosed(Probe):
        async def aclose(self) -> None:
            closing.set()
            await asyncio.wait_for(may_close.wait(), WAIT)
            self.closed += 1

    log = Log()
    playing = asyncio.create_task(
        play_episode(specs(1)[0], lambda _: SlowlyClosed(log), ScriptedPolicy(["x"]), EpisodeLimits())
    )
    await asyncio.wait_for(closing.wait(), WAIT)
    for _ in range(3):
        playing.cancel()
        await asyncio.sleep(0)
    assert not playing.done()
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert log.closed == [1]


async def test_cancellation_closes_what_was_made_but_not_yet_handed_over() -> None:
    made, closed = threading.Event(), threading.Event()

    class Made(Probe):
        def __init__(self, log: Log) -> None:
            super().__init__(log)
            made.set()

        async def aclose(self) -> None:
            await super().aclose()
            closed.set()

    log = Log()
    playing = asyncio.create_task(
        play_episode(specs(1)[0], lambda _: Made(log), ScriptedPolicy(["x"]), EpisodeLimits())
    )
    await asyncio.sleep(0)
    assert made.wait(WAIT)  # blocks the loop, so the environment exists before the engine knows of it
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await asyncio.to_thread(closed.wait, WAIT)
    assert log.closed == [1]


async def test_raise_stops_the_run_and_closes_the_others() -> None:
    log, started, may_close = Log(), asyncio.Semaphore(0), asyncio.Event()
    may_close.set()

    class LastBreaks(Waiting):
        async def astep(self, action: Message) -> StepResult:
            if len(log.made) < 4:
                return await super().astep(action)
            for _ in range(3):
                await asyncio.wait_for(self.started.acquire(), WAIT)
            raise ZeroDivisionError("in the last one")

    async def answer(messages: list[Message]) -> str:
        return "x"

    def stream() -> Iterator[EpisodeSpec]:
        yield from specs(4)

    makers = iter([Waiting, Waiting, Waiting, LastBreaks])
    engine = RolloutEngine(
        lambda: next(makers)(log, started, may_close), ScriptedPolicy(answer), on_failure="raise", max_concurrency=4
    )
    with pytest.raises(EpisodeFailedError, match="failed: step: ZeroDivisionError: in the last one") as caught:
        await engine.run(stream())
    assert caught.value.episode.failure is not None
    assert "Traceback" in str(caught.value)
    assert log.closed == [1] * 4


async def test_a_configuration_error_stops_the_run() -> None:
    log = Log()
    wrong = ConfigurationError("the template has no tools")
    engine = RolloutEngine(
        lambda: Probe(log, breaks="reset", error=wrong), ScriptedPolicy(["x"]), on_failure="retry(5)"
    )
    with pytest.raises(ConfigurationError, match="the template has no tools"):
        await engine.run(specs(3))
    assert set(log.closed) == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "max_turns must be positive or None, got 0"),
        ({"max_tool_calls": -1}, "max_tool_calls must be positive"),
        ({"episode_timeout": 0.0}, "episode_timeout must be positive"),
        ({"step_timeout": -2.0}, "step_timeout must be positive"),
    ],
)
def test_a_limit_out_of_its_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EpisodeLimits(**options)
    with pytest.raises(ValueError, match="max_concurrency must be at least 1, got 0"):
        RolloutEngine(Calculator(), ScriptedPolicy([]), max_concurrency=0)


# --- where environments come from -------------------------------------------------------------------------------


def make_calculator() -> Calculator:
    return Calculator()


@pytest.mark.parametrize(
    "environment",
    [
        Calculator(),
        TimeLimit(Calculator(), 5),
        gymnasium.make("gymnast/Calculator-v0"),
        Calculator,
        make_calculator,
        "gymnast/Calculator-v0",
        "gymnast.envs:gymnast/Calculator-v0",
        {"arithmetic": Calculator, "other": Probe},
    ],
    ids=["prototype", "wrapped", "made", "class", "function", "id", "module and id", "dict"],
)
async def test_sources_of_environments(environment: Any) -> None:
    engine = RolloutEngine(environment, ScriptedPolicy([ADD, ANSWER]))
    episodes = await engine.run(specs(3, environment="arithmetic"))
    assert [episode.failure for episode in episodes] == [None] * 3
    assert [episode.reward for episode in episodes] == [1.0] * 3


async def test_copies_of_a_prototype_share_what_was_passed_in() -> None:
    log = Log()
    prototype = Probe(log)
    await RolloutEngine(prototype, ScriptedPolicy(["x"])).run(specs(3))
    assert prototype.closed == 0  # it belongs to whoever made it
    copies = [each for each in log.made if each is not prototype]
    assert len({id(each) for each in copies}) == len(copies) >= 3
    assert [each.closed for each in copies] == [1] * len(copies)


async def test_the_row_chooses_the_environment() -> None:
    class Other(Environment):
        async def astep(self, action: Message) -> StepResult:
            return StepResult([], 7.0, True, False, {})

    engine = RolloutEngine({"arithmetic": Calculator(), "other": Other}, ScriptedPolicy([ANSWER]))
    rows = [{**ROW, "environment": name} for name in ("other", "arithmetic", "third", ["other"])] + [ROW]
    episodes = await engine.run(episode_specs(rows, group_size=1, seed=0))
    assert [episode.reward for episode in episodes] == [7.0, 1.0, None, None, None]
    messages = [episode.failure.message for episode in episodes if episode.failure is not None]
    column = "the row's 'environment' column must name one of ['arithmetic', 'other'], got "
    assert messages == [column + "'third'", column + "['other']", column + "None"]


class Unrecorded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


class Raw(gymnasium.Env[Any, Any]):
    """No `Environment`, so it cannot be copied."""


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (None, TypeError, "environment must be an Environment, an Environment class, a function .* got None"),
        (3, TypeError, "environment must be an Environment"),
        (dict, TypeError, "environment must be an Environment"),
        ({}, ValueError, "environment is an empty dict"),
        ({"a": 3}, TypeError, "environment must be an Environment"),
        (Unrecorded(Calculator()), TypeError, r"Unrecorded cannot be copied.*environment=lambda: Unrecorded\(\.\.\.\)"),
        (Raw(), TypeError, "Raw cannot be copied"),
        ("gymnast/Calculater-v0", gymnasium.error.Error, "Calculat"),
        ("gymnast.nothing:gymnast/Calculator-v0", ModuleNotFoundError, "nothing"),
    ],
)
def test_a_wrong_environment_is_refused_at_once(environment: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RolloutEngine(environment, ScriptedPolicy([]))


async def test_a_factory_must_make_fresh_environments() -> None:
    log = Log()
    one = Probe(log)
    episodes = await RolloutEngine(lambda: one, ScriptedPolicy(["x"])).run(specs(3))
    failures = [episode.failure for episode in episodes if episode.failure is not None]
    assert len(failures) == 2
    assert "the environment factory returned the same Probe again" in failures[0].message
    assert one.closed == 1
    with pytest.raises(TypeError, match=r"the environment factory returned int, not a gymnasium\.Env"):
        EnvironmentSource.of(lambda: 3).create(specs(1)[0])  # type: ignore[arg-type,return-value]


async def test_any_gymnasium_environment_of_messages_will_do() -> None:
    class Plain(gymnasium.Env[Any, Any]):
        """Written against Gymnasium alone."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return [{"role": "user", "content": options["task"]["question"]}], {}

        def step(self, action: Any) -> Any:
            return [], 2.0, True, False, {}

    episode = await play_one(Plain, ["x"])
    assert (episode.failure, episode.reward, episode.stop) == (None, 2.0, StopReason.ENV_TERMINATED)
    assert episode.prompt[0].get("content") == ROW["question"]


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
    small = {(each.group, each.member): each for each in episode_specs([ROW], group_size=2, seed=5)}
    large = {(each.group, each.member): each for each in episode_specs([ROW] * 9, group_size=7, seed=5)}
    assert {key: large[key] for key in small} == small
    assert len({each.seed for each in large.values()}) == 63
    other = episode_specs([ROW], group_size=2, seed=6)
    assert {each.seed for each in other}.isdisjoint(each.seed for each in small.values())


def test_seeds_are_the_same_in_every_process() -> None:
    program = "from gymnast.envs.core import stable_seed; print(stable_seed(7, 'sampling', 'task-3', 1))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(result.stdout) == stable_seed(7, "sampling", "task-3", 1)
    parts: list[tuple[str | int, ...]] = [(1,), ("1",), (1, 1), (11,), ("1", "1"), ("11",), ("a;str:b",), ("a", "b")]
    assert len({stable_seed(*each) for each in parts}) == len(parts)
    assert all(0 <= stable_seed(index) < 2**63 for index in range(100))


# --- JSON -------------------------------------------------------------------------------------------------------


async def test_an_episode_survives_json() -> None:
    episode = await play_one(Calculator(), [tool_calls(("add", {"a": 1, "b": 2}), ("no", {})), ANSWER])
    episode.trace = TokenTrace(prompt_ids=[1, 2])
    episode.trace.append_sampled([3, 4], [-0.5, float("-inf")])
    episode.trace.append_observation([5])
    episode.metrics["odd"] = float("inf")
    episode.close_failure = Failure.of("close", ValueError("a lone \ud800 surrogate"))
    text = episode.to_json()
    assert "\n" not in text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = Episode.from_json(text)
    assert again == episode
    assert json.loads(again.to_json()) == json.loads(text)
    assert isinstance(again.stop, StopReason)
    assert isinstance(again.turns[0], Turn)
    assert isinstance(again.tool_calls[0], ToolCallRecord)


async def test_a_failed_episode_survives_json() -> None:
    log = Log()
    episode = await play_one(lambda: Probe(log, breaks="step"), ["x"])
    again = Episode.from_json(episode.to_json())
    assert again == episode
    assert again.failure is not None
    assert str(again.failure) == "step: ZeroDivisionError: in step"


def test_keys_of_a_model_family_survive_json() -> None:
    call: Any = {"index": 0, "function": {"name": "a", "arguments": {}, "parsed": True}}
    message: Any = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    episode = Episode(spec=specs(1)[0], turns=[Turn(message=message)])
    assert Episode.from_json(episode.to_json()).turns[0].message == message


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float64(1.5), 1.5),
        (np.arange(3), [0, 1, 2]),
        (np.int64(3), 3),
        (datetime.date(2024, 5, 6), "2024-05-06"),
        ({1}, [1]),
        ((1, "a"), [1, "a"]),
        ({(1, 2): 3}, {"1,2": 3}),
        (float("nan"), "NaN"),
        (b"text", "text"),
        (b"\xff\xfe", repr(b"\xff\xfe")),
        ("\ud800", repr("\ud800")),
        (Calculator, repr(Calculator)),
    ],
)
def test_odd_values_of_a_row_survive_json(value: Any, kept: Any) -> None:
    row: Mapping[Any, Any] = collections.ChainMap({"odd": value, 5: "five"})
    episode = Episode(spec=EpisodeSpec(task=Task(id="t", row=row), group="t"))
    assert Episode.from_json(episode.to_json()).spec.task.row == {"odd": kept, "5": "five"}
    assert episode.spec.task.row is row


def test_a_trace_keeps_its_lengths_equal() -> None:
    trace = TokenTrace(prompt_ids=[1])
    trace.append_sampled([2, 3], [-1.0, -2.0])
    trace.append_observation([4])
    assert (trace.ids, trace.mask, trace.logprobs) == ([1, 2, 3, 4], [1, 1, 0], [-1.0, -2.0, 0.0])
    assert (len(trace), trace.num_sampled) == (4, 2)
    with pytest.raises(ValueError, match="got 2 sampled tokens and 1 log-probabilities"):
        trace.append_sampled([1, 2], [-1.0])
    assert len(trace) == 4


# --- metrics, prompts and loops ---------------------------------------------------------------------------------


async def test_metrics_of_reset_are_kept_without_a_step() -> None:
    async def hang(messages: list[Message]) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    for environment in (Calculator(), TimeLimit(Calculator(), 5)):
        episode = await play_one(environment, hang, episode_timeout=0.2)
        assert (episode.stop, episode.turns, episode.metrics) == (StopReason.TIMEOUT, [], {"success": 0.0})


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
async def test_an_overlong_prompt_is_no_failure(on_failure: str) -> None:
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


def test_what_environments_share_serves_every_call() -> None:
    """Asyncio binds a semaphore to the loop in which somebody first waited for it."""
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
    same = Data()
    episodes = RolloutEngine(lambda: same, ScriptedPolicy(["x"]), max_concurrency=1).play([{"prompt": "go"}] * 2)
    assert "returned the same Data again" in str(episodes[1].failure)


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
        playing = threads.submit(player.play_rows, [row | {"hang": True}], count=1)
        assert begun.wait(WAIT)
        player.cancel()
        assert isinstance(playing.exception(WAIT), asyncio.CancelledError)
        release.set()
        assert other.result(WAIT) == "done"
    player.cancel()  # nothing is playing, so nothing happens, to the next call neither
    assert [each.failure for each in player.play_rows([row], count=1)] == [None]


def test_wrong_kinds_of_limits_and_rows_are_refused() -> None:
    with pytest.raises(TypeError, match=r"limits must be EpisodeLimits\(\.\.\.\), got dict"):
        RolloutEngine(Calculator(), ScriptedPolicy([]), limits={"max_turns": 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a list of rows, got one row.*write play\(\[row\]\)"):
        RolloutEngine(Calculator(), ScriptedPolicy([])).play({"question": "What?", "answer": 1})  # type: ignore[arg-type]
