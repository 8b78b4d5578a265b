"""Errors that make an episode of a `CodeEnv` fail or stop the run, instead of giving it a wrong reward."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.envs import (
    BrokenEnvironmentError,
    CodeEnv,
    ConfigurationError,
    EpisodeLimits,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    ToolEnv,
    episode_specs,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import DockerExecutor, ExecutorPool, Limits, LocalExecutor, SandboxClosedError, SandboxLostError

ROW = {"prompt": "go", "answer": 42}
ANSWER = tool_call("final_answer", answer="42")


@pytest.fixture(scope="module")
async def pool() -> Any:
    async with ExecutorPool(LocalExecutor(), max_boxes=2) as pool:
        yield pool


async def play(environment: Any, script: Any, row: Mapping[str, Any] = ROW, **limits: Any) -> Any:
    engine = RolloutEngine(environment, ScriptedPolicy(script), limits=EpisodeLimits(**limits))
    [episode] = await engine.run(episode_specs([row], group_size=1, seed=0))
    return episode


# --- time -------------------------------------------------------------------------------------------------------


class Undecided(CodeEnv):
    """Never comes to a verdict."""

    async def agrade(self, stop: StopReason) -> float | None:
        await asyncio.Event().wait()
        raise AssertionError


async def test_an_episode_whose_grading_takes_too_long_has_no_reward(pool: ExecutorPool) -> None:
    episode = await play(Undecided(pool, code_timeout=0.05), [ANSWER], step_timeout=0.5)
    assert (episode.stop, episode.reward) == (StopReason.FAILED, None)
    message = "grade: TimeoutError: Undecided.grade() did not finish within step_timeout=0.5 s"
    assert str(episode.failure) == message
    assert len(episode.turns) == 1


async def test_the_time_of_the_episode_does_not_count_while_it_is_graded(pool: ExecutorPool) -> None:
    class Patient(CodeEnv):
        async def agrade(self, stop: StopReason) -> float:
            assert stop is StopReason.TIMEOUT
            return 0.5

    endless = [tool_call("python", code="while True: pass")]
    episode = await play(Patient(pool), endless, episode_timeout=1.0)
    assert (episode.stop, episode.reward) == (StopReason.TIMEOUT, 0.5)


async def test_an_episode_timeout_during_a_step_truncates(pool: ExecutorPool) -> None:
    class Slow(CodeEnv):
        tools_in = "calls"

        @tool
        async def wait(self) -> str:
            """Wait for ever."""
            return str(await asyncio.Event().wait())

    episode = await play(Slow(pool), [tool_call("wait"), ANSWER], episode_timeout=1.0)
    assert (episode.stop, episode.reward) == (StopReason.TIMEOUT, 0.0)


@pytest.mark.parametrize("step_timeout", [1.0, 2.0])
async def test_step_timeout_must_leave_time_to_stop_the_code(pool: ExecutorPool, step_timeout: float) -> None:
    message = rf"step_timeout={step_timeout:g} s must be longer than the 12 s that one turn in CodeEnv may take"
    with pytest.raises(ConfigurationError, match=message):
        await play(CodeEnv(pool, code_timeout=2.0), [ANSWER], step_timeout=step_timeout)
    endless = [tool_call("python", code="while True: pass"), ANSWER]
    episode = await play(CodeEnv(pool, code_timeout=0.5), endless, step_timeout=60.0)
    assert (episode.failure, episode.reward) == (None, 1.0)


# --- what grade raises ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "error",
    [SystemExit(0), asyncio.CancelledError(), KeyboardInterrupt(), ExceptionGroup("g", [KeyError("a")])],
    ids=repr,
)
async def test_an_exception_in_grade_is_no_verdict(
    pool: ExecutorPool, error: BaseException, asynchronous: bool
) -> None:
    def verdict() -> float:
        raise error

    class Blocking(CodeEnv):
        def grade(self, stop: StopReason) -> float:
            return verdict()

    class Awaited(CodeEnv):
        async def agrade(self, stop: StopReason) -> float | None:
            return verdict()

    episode = await play((Awaited if asynchronous else Blocking)(pool), [ANSWER, "I go on."])
    assert (episode.stop, episode.reward) == (StopReason.FAILED, None)
    assert (episode.failure.stage, episode.failure.type) == ("grade", type(error).__name__)


async def test_a_grader_that_is_cancelled_is_cancelled(pool: ExecutorPool) -> None:
    environment = Undecided(pool)
    await environment.areset(options={"task": ROW})
    grading = asyncio.ensure_future(environment.agrade(StopReason.FINAL_ANSWER))
    await asyncio.sleep(0.1)
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading
    await environment.aclose()


@pytest.mark.parametrize("columns", [{"answer": None}, {}], ids=["None", "absent"])
async def test_an_override_that_asks_for_the_rows_verdict_needs_one(
    pool: ExecutorPool, columns: dict[str, Any]
) -> None:
    class Milder(CodeEnv):
        async def agrade(self, stop: StopReason) -> float | None:
            return 0.5 + 0.5 * (await super().agrade(stop) or 0.0)

    with pytest.raises(ConfigurationError, match="Milder: the row has neither 'checks' nor 'answer'"):
        await play(Milder(pool), [tool_call("final_answer", answer="None")], {"prompt": "go", **columns})


async def test_a_lambda_around_a_coroutine_function_is_awaited() -> None:
    class Hooked(ToolEnv):
        def __init__(self) -> None:
            super().__init__()
            self.reset_task = lambda task: self.begin(task)  # type: ignore[method-assign]

        async def begin(self, task: Mapping[str, Any]) -> list[dict[str, str]]:
            return [{"role": "user", "content": f"{task['prompt']}!"}]

    messages, _ = await Hooked().areset(options={"task": ROW})
    assert messages[0].get("content") == "go!"


# --- no box -----------------------------------------------------------------------------------------------------


async def test_an_episode_that_gave_its_box_away_fails(pool: ExecutorPool) -> None:
    class Early(CodeEnv):
        tools_in = "calls"

        @tool
        async def peek(self) -> str:
            """Look into a fresh box."""
            async with self.fresh_box() as box:
                return str((await box.python("6 * 7")).value)

    episode = await play(Early(pool), [tool_call("peek"), tool_call("python", code="1"), ANSWER])
    assert episode.turns[0].observation[0]["content"] == "42"
    assert episode.reward is None
    assert str(episode.failure).startswith("step: SandboxClosedError: Early has no box now")
    assert "agrade()" in str(episode.failure)


async def test_a_fresh_box_of_no_episode_is_refused(pool: ExecutorPool) -> None:
    environment = CodeEnv(pool)
    with pytest.raises(SandboxClosedError, match="has no box now"):
        async with environment.fresh_box():
            pass


async def test_a_step_outside_of_an_episode_says_to_reset_first(pool: ExecutorPool) -> None:
    environment = CodeEnv(pool)
    await environment.areset(options={"task": ROW})
    await environment.aclose()
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        await environment.astep(tool_call("python", code="1"))
    await environment.areset(options={"task": ROW})
    with pytest.raises(ConfigurationError):
        await environment.areset(options={"task": {"prompt": "no verdict"}})
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        await environment.astep(tool_call("python", code="1"))


# --- which error ------------------------------------------------------------------------------------------------


async def test_the_first_error_is_raised_and_not_its_consequences() -> None:
    waiting = asyncio.Event()

    @tool(parallel=True)
    async def consequence() -> str:
        """Break when cancelled."""
        try:
            waiting.set()
            return str(await asyncio.Event().wait())
        except asyncio.CancelledError:
            raise SandboxClosedError("closed because I was cancelled") from None

    @tool(parallel=True)
    async def cause() -> str:
        """Break."""
        await waiting.wait()
        raise SandboxLostError("the box is lost")

    environment = ToolEnv([consequence, cause])
    await environment.areset(options={"task": ROW})
    with pytest.raises(SandboxLostError, match="the box is lost"):
        await environment.astep(tool_calls(("consequence", {}), ("cause", {})))


async def test_a_configuration_error_goes_first() -> None:
    @tool(parallel=True)
    async def broken() -> str:
        """Break."""
        raise BrokenEnvironmentError("the database is down")

    @tool(parallel=True)
    async def wrong() -> str:
        """Be wrong."""
        raise ConfigurationError("no key")

    environment = ToolEnv([broken, wrong])
    await environment.areset(options={"task": ROW})
    with pytest.raises(ConfigurationError, match="no key"):
        await environment.astep(tool_calls(("broken", {}), ("wrong", {})))


# --- mistakes that stop the run ---------------------------------------------------------------------------------


async def test_a_pool_that_was_opened_elsewhere_stops_the_run(pool: ExecutorPool) -> None:
    engine = RolloutEngine(CodeEnv(pool), ScriptedPolicy([ANSWER]))
    with pytest.raises(ConfigurationError, match=r"do not open it yourself before play\(\) or train\(\)"):
        await asyncio.to_thread(engine.play, [ROW])


def test_a_pool_that_was_closed_elsewhere_is_opened_again() -> None:
    async def use() -> None:
        async with pool, pool.lease() as box:
            assert (await box.python("1")).ok

    pool = ExecutorPool(LocalExecutor(), max_boxes=1)
    asyncio.run(use())
    [episode] = RolloutEngine(CodeEnv(pool), ScriptedPolicy([ANSWER])).play([ROW])
    assert episode.reward == 1.0
    run_in_loop(pool.close())


async def test_an_expected_output_longer_than_max_output_is_refused() -> None:
    row = {"prompt": "go", "submit": ["a.py"], "checks": [{"run": "import a", "stdout": "x" * 2048}]}
    environment = CodeEnv(LocalExecutor(limits=Limits(max_output="2k")))
    with pytest.raises(ConfigurationError, match=r"2048 bytes .* raise Limits\.max_output"):
        await environment.areset(options={"task": row})


class Shaped(CodeEnv):
    """Writes the synchronous form, which runs in a loop of gymnast's own."""

    def step(self, action: Any) -> StepResult:
        return super().step(action)

    def close(self) -> None:
        super().close()


async def test_a_synchronous_step_in_another_loop_fails_the_episode_and_says_why(pool: ExecutorPool) -> None:
    for _ in range(3):  # the pool's two boxes are given back each time
        episode = await play(Shaped(pool), [tool_call("python", code="1"), ANSWER])
        assert episode.failure is not None
        assert (episode.failure.type, episode.reward, episode.close_failure) == ("PoolLoopError", None, None)
        assert "write its asynchronous form, such as astep()" in episode.failure.message
    [episode] = RolloutEngine(Shaped(LocalExecutor()), ScriptedPolicy([tool_call("python", code="1"), ANSWER])).play(
        [ROW]
    )
    assert episode.reward == 1.0


async def test_an_engine_that_is_in_use_in_another_loop_stops_the_run(image: str) -> None:
    recipe, loop = DockerExecutor(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(recipe.engine.open(), loop).result(30)
        async with ExecutorPool(recipe, warm=0) as pool:
            with pytest.raises(ConfigurationError, match="opened in another event loop"):
                await play(CodeEnv(pool), [ANSWER])
        asyncio.run_coroutine_threadsafe(recipe.engine.close(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
