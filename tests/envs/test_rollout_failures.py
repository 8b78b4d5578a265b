"""Failed episodes: the stage, the error and the traceback that they carry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gymnast.envs import (
    Act,
    Calculator,
    Environment,
    EpisodeLimits,
    EpisodeSpec,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    ToolEnv,
    failure_counts,
    failure_summary,
)
from gymnast.envs.engine import environment_caller

from .episodes import ADD, WAIT, Log, Probe, play_one, say, specs


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
    """Breaks at the given place."""

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks
        self.trace = None

    def begin(self, spec: EpisodeSpec, messages: Any, tools: Any) -> Any:
        self.maybe_break("begin")
        return self

    async def act(self, **limits: Any) -> Act:
        self.maybe_break("act")
        return Act(message={"role": "robot"} if self.breaks == "message" else say("x"))

    async def observe(self, messages: Any, **options: Any) -> None:
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
        (
            None,
            {**OK, "reward": -1e300},
            r"Custom\.step\(\) must give a reward within .*float32 \(3\.4e\+38\), got -1e\+300",
        ),
        (None, {**OK, "info": None}, r"Custom\.step\(\) must give a dict as info, got NoneType"),
        (None, {**OK, "info": {"tool_calls": 3}}, r"info\['tool_calls'\] must be a list of ToolCallRecord, got 3"),
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
async def test_the_results_of_an_environment_are_checked(reset: Any, step: Any, message: str) -> None:
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


async def test_an_environment_that_cannot_be_made_in_time_is_a_failure() -> None:
    release, closed = threading.Event(), threading.Event()

    class SlowlyMade(Probe):
        def __init__(self, log: Log) -> None:
            assert release.wait(WAIT)
            super().__init__(log)

        async def aclose(self) -> None:
            closed.set()

    episode = await play_one(lambda: SlowlyMade(Log()), ["x"], step_timeout=0.05)
    assert str(episode.failure) == "create: TimeoutError: the environment was not made within step_timeout=0.05 s"
    release.set()
    assert await asyncio.to_thread(closed.wait, WAIT)


async def test_an_environment_that_does_not_close_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverClosed(Probe):
        async def aclose(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(environment_caller, "GRACE_SECONDS", 0.05)
    episode = await play_one(lambda: NeverClosed(Log()), ["x"])
    assert episode.reward == 1.0
    assert str(episode.close_failure) == ("close: TimeoutError: NeverClosed.close() did not finish within 0.05 s")


@pytest.mark.parametrize(
    ("in_row", "failure"),
    [
        (True, "MissingColumnError: the row has no column 'titel'; it has ['answer', 'index', 'prompt', 'question']"),
        (False, "KeyError: 'titel'"),  # the row is not to blame
    ],
)
async def test_a_missing_column_is_named(in_row: bool, failure: str) -> None:
    class Reads(Environment):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            found = self.task_of(options) if in_row else {"title": "go"}
            return [{"role": "user", "content": found["titel"]}], {}

    assert str((await play_one(Reads, ["x"])).failure) == f"reset: {failure}"


async def test_a_traceback_begins_where_the_users_code_does() -> None:
    class Breaks(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            try:
                return [][0]
            except IndexError as error:
                raise ValueError("no book") from error

    episode = await play_one(Breaks(), ["x"])
    assert episode.failure is not None
    lines = episode.failure.traceback.splitlines()
    assert [line.split(", in ")[1] for line in lines if line.startswith("  File ")] == ["reset_task", "reset_task"]
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ValueError: no book")


async def test_a_summary_counts_failures_and_says_why() -> None:
    def breaking(stage: str, error: BaseException | None = None) -> Callable[[], Probe]:
        return lambda: Probe(Log(), breaks=stage, error=error)

    async def hang(messages: list[Message]) -> Message:
        if len(messages) > 1:
            await asyncio.Event().wait()
        return ADD

    down = ConnectionError("the database is down\nHTTP 500")
    episodes = [await play_one(breaking("reset", down), ["x"]) for _ in range(3)]
    episodes += [await play_one(breaking("step"), ["x"]), await play_one(breaking(""), ["x"])]
    episodes += [await play_one(Calculator(), hang, episode_timeout=0.2)]
    assert failure_counts(episodes) == {"reset: ConnectionError": 3, "step: ZeroDivisionError": 1, "timeout": 1}
    assert failure_summary(episodes) == (
        "3 x reset: ConnectionError (the database is down), 1 x step: ZeroDivisionError (in step), 1 x timeout"
    )
    assert failure_summary([]) == ""


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


async def test_a_failure_affects_its_own_episode_only() -> None:
    log = Log()

    def make() -> Probe:
        return Probe(log, breaks="step" if len(log.made) % 2 else "")

    episodes = await RolloutEngine(make, ScriptedPolicy(["x"]), max_concurrency=1).run(specs(6))
    assert [episode.stop.is_failure for episode in episodes] == [False, True] * 3
    assert [episode.reward for episode in episodes] == [1.0, None] * 3
    assert log.closed == [1] * 6


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
    assert EpisodeLimits().step_timeout == 600  # a hung step ends without an option
