"""Exceptions and time limits of tools."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from gymnast.envs import ConfigurationError, tool
from gymnast.envs.runtime.user_calls import BLOCKING_SECONDS

from .toolkit import WAIT, call, environment_of, run_python, step

ERRORS = [
    ValueError("no"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    StopIteration(),
    TimeoutError("own"),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_every_exception_of_a_tool_becomes_a_message(error: BaseException, asynchronous: bool) -> None:
    def fail() -> str:
        """Fail."""
        raise error

    async def afail() -> str:
        """Fail."""
        raise error

    content, record = await call(afail if asynchronous else fail, {})
    name = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__  # PEP 479
    assert content.startswith(f"Error: {name}")
    outcome = "refused" if isinstance(error, ValueError) else "exception"
    assert (record.outcome, record.failed) == (outcome, True)


async def test_the_bug_of_a_tool_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def buggy(kind: str) -> str:
        """Have a bug.

        Args:
            kind: Which.
        """
        if kind == "attribute":
            return kind.missing  # type: ignore[attr-defined]
        raise {"type": TypeError, "value": ValueError}[kind]("for the model")

    environment = environment_of(buggy)
    kinds = ["attribute", "attribute", "type", "value"]
    _, records = await step(environment, *(("buggy", {"kind": kind}) for kind in kinds))
    assert [record.outcome for record in records] == [*["exception"] * 3, "refused"]
    assert [record.getMessage().split(".")[0] for record in caplog.records] == [
        "tool 'buggy' raised AttributeError",
        "tool 'buggy' raised TypeError",
    ]
    trace = records[0].traceback
    assert trace is not None
    assert trace.splitlines()[1].endswith("in buggy")  # only the author's frames
    assert "return kind.missing" in trace
    assert trace in caplog.text + "\n"


async def test_a_result_without_json_is_an_error_without_a_repr_and_ends_the_run_if_it_is_final() -> None:
    def make() -> Any:
        """Make a thing."""
        return {"thing": object()}

    content, record = await call(make, {})
    assert record.outcome == "exception"
    assert content.startswith("Error: TypeError: the tool returned dict, which cannot be shown to the model")
    assert "0x" not in content
    # A final tool has judged the answer already, so the model may not give another.
    with pytest.raises(ConfigurationError, match="make: the tool returned dict, which cannot be shown"):
        await call(tool(final=True)(make), {})


async def test_a_coroutine_tool_that_blocks_the_loop_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.envs.runtime.user_calls.BLOCKING_SECONDS", 0.02)

    async def blocks() -> str:
        """Block."""
        await asyncio.sleep(0)
        threading.Event().wait(0.03)
        await asyncio.sleep(0)
        return "done"

    environment = environment_of(blocks)
    for _ in range(2):
        result, _ = await step(environment, ("blocks", {}))
        assert result.messages[0].get("content") == "done"
    [message] = [record.getMessage() for record in caplog.records if "blocks" in record.getMessage()]
    line = blocks.__code__.co_firstlineno
    assert f"blocks ({__file__}:{line}) is `async def`, but blocked the event loop, and so every episode" in message


@pytest.mark.parametrize("computes", [0.0, 0.03])
async def test_a_garbage_collection_is_not_the_fault_of_a_coroutine_tool_but_excuses_nothing_else(
    computes: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.envs.runtime.user_calls.BLOCKING_SECONDS", 0.02)

    async def collects() -> str:
        """Collect garbage, as if that came by itself."""
        gc.collect()
        used = time.thread_time()
        while time.thread_time() < used + computes:
            pass
        return "done"

    ballast = [[number] for number in range(200_000)]
    await step(environment_of(collects), ("collects", {}))
    del ballast  # it was work for the collector
    assert ("blocked the event loop" in caplog.text) == bool(computes)


async def test_a_coroutine_tool_that_other_threads_held_up_is_not_blamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            pass

    async def works() -> str:
        """Work until other threads have had the interpreter's lock many times."""
        used, began = time.thread_time(), time.perf_counter()
        while time.thread_time() < used + 0.04 or time.perf_counter() < began + BLOCKING_SECONDS:
            pass
        return "done"

    others = [threading.Thread(target=compute) for _ in range(4)]
    for other in others:
        other.start()
    await step(environment_of(works), ("works", {}))
    over.set()
    for other in others:
        other.join()
    assert "blocked the event loop" not in caplog.text


@pytest.mark.parametrize("own", [False, True])
async def test_a_tool_that_overruns_is_abandoned(own: bool) -> None:
    never, ended = threading.Event(), threading.Event()

    def hang() -> str:
        """Hang."""
        never.wait(WAIT)
        ended.set()
        return ""

    async def ahang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    function, options = (tool(timeout=0.05), {}) if own else (lambda item: item, {"tool_timeout": 0.05})
    environment = environment_of(function(hang), function(ahang), **options)
    result, records = await step(environment, ("hang", {}), ("ahang", {}))
    assert not ended.is_set()
    assert [message.get("content") for message in result.messages] == [
        "Error: hang did not finish within 0.05 s.",
        "Error: ahang did not finish within 0.05 s.",
    ]
    assert [record.outcome for record in records] == ["timeout", "timeout"]
    assert all(0.04 < record.seconds < WAIT for record in records)
    never.set()
    assert await asyncio.to_thread(ended.wait, WAIT)


@pytest.mark.parametrize("own", [False, True])
async def test_a_turn_of_many_slow_calls_is_cut_and_the_model_sees_it(own: bool) -> None:
    """Otherwise the model could make its own episode fail at will, through the time limit of a step."""

    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    environment = (
        environment_of(tool(timeout=0.02)(hang), tool_timeout=0.01) if own else environment_of(hang, tool_timeout=0.02)
    )
    result, records = await step(environment, *[("hang", {})] * 20)
    outcomes = [record.outcome for record in records]
    assert outcomes == sorted(outcomes, reverse=True)  # time-outs, then calls that are not run
    assert {"timeout", "not_run"} == set(outcomes)
    assert "took too long; try again" in str(result.messages[-1].get("content"))


def test_the_interpreter_ends_although_a_tool_hangs() -> None:
    program = """
import threading
from gymnast.envs import ToolEnv, tool_call
def hang() -> str:
    '''Hang.'''
    threading.Event().wait()
environment = ToolEnv([hang], tool_timeout=0.05)
environment.reset(seed=0, options={"task": {"prompt": "go"}})
print(environment.step(tool_call("hang")).messages[0]["content"])
"""
    result = run_python(program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "Error: hang did not finish within 0.05 s.\n", "")
