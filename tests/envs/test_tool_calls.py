"""Several tool calls in one turn."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from gymnast.envs import BrokenEnvironmentError, Message, StopReason, ToolEnv, final_answer, tool, tool_calls

from .toolkit import WAIT, environment_of, step


def test_the_calls_of_a_turn_run_one_after_the_other_in_call_order() -> None:
    class Walk(ToolEnv):
        def reset_task(self, task: Any) -> list[Message]:
            self.place = self.inside = 0
            return [{"role": "user", "content": "go"}]

        @tool
        def double(self) -> int:
            """Double the place."""
            return self.move(self.place)

        @tool
        def add(self) -> int:
            """Go one on."""
            return self.move(1)

        def move(self, by: int) -> int:
            self.inside += 1
            assert self.inside == 1
            place = self.place
            threading.Event().wait(0.001)  # another call would run in between
            self.place = place + by
            self.inside -= 1
            return self.place

    environment = Walk()
    for _ in range(5):
        environment.reset(seed=0, options={"task": {}})
        result = environment.step(tool_calls(("add", {}), ("double", {}), ("add", {}), ("double", {})))
        assert [message.get("content") for message in result.messages] == ["1", "2", "3", "6"]


async def test_only_neighbouring_calls_of_parallel_tools_run_at_the_same_time() -> None:
    running: set[str] = set()
    seen: list[set[str]] = []

    async def note(name: str) -> str:
        running.add(name)
        await asyncio.sleep(0)
        seen.append(set(running))
        running.discard(name)
        return name

    @tool(parallel=True)
    async def search(name: str) -> str:
        """Search.

        Args:
            name: Which.
        """
        return await note(name)

    @tool
    async def write(name: str) -> str:
        """Write.

        Args:
            name: Which.
        """
        return await note(name)

    calls = [("search", "a"), ("search", "b"), ("write", "c"), ("write", "d"), ("search", "e")]
    result, _ = await step(environment_of(search, write), *((name, {"name": which}) for name, which in calls))
    assert [message.get("content") for message in result.messages] == ["a", "b", "c", "d", "e"]
    assert seen == [{"a", "b"}, {"b"}, {"c"}, {"d"}, {"e"}]


async def test_parallel_calls_run_side_by_side_and_answer_in_order() -> None:
    together = threading.Barrier(8)
    last_first = [asyncio.Event() for _ in range(5)]
    loop = asyncio.get_running_loop()
    finished: list[int] = []

    def blocking(index: int) -> int:
        """Wait for all others.

        Args:
            index: Which.
        """
        together.wait(WAIT)
        return index

    async def later(index: int) -> int:
        """Wait for the next one.

        Args:
            index: Which.
        """
        await asyncio.wait_for(last_first[index + 1].wait(), WAIT)
        finished.append(index)
        last_first[index].set()
        return index

    last_first[-1].set()
    environment = environment_of(tool(parallel=True)(blocking), tool(parallel=True)(later))
    calls = [("blocking", {"index": index}) for index in range(8)] + [("later", {"index": index}) for index in range(4)]
    result, records = await step(environment, *calls)
    assert asyncio.get_running_loop() is loop
    assert finished == [3, 2, 1, 0]
    assert [message.get("content") for message in result.messages] == [*map(str, range(8)), *map(str, range(4))]
    assert [message.get("tool_call_id") for message in result.messages] == [f"call_{index}" for index in range(12)]
    assert [message.get("name") for message in result.messages] == ["blocking"] * 8 + ["later"] * 4
    assert [message["role"] for message in result.messages] == ["tool"] * 12
    assert [record.call_id for record in records] == [f"call_{index}" for index in range(12)]


async def test_a_call_without_an_id_gets_a_result_without_one() -> None:
    message: Message = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "final_answer", "arguments": '{"answer": 5}'}}],
    }
    result = await environment_of(final_answer).astep(message)
    assert result.messages == [{"role": "tool", "name": "final_answer", "content": "5"}]


async def test_the_final_call_comes_after_the_others_and_ends_the_turn() -> None:
    order: list[str] = []

    def note(text: str) -> str:
        """Note.

        Args:
            text: What.
        """
        order.append(text)
        return text

    @tool(final=True)
    def finish(succeed: bool) -> str:
        """Finish.

        Args:
            succeed: Whether this works.
        """
        order.append(f"finish {succeed}")
        if not succeed:
            raise ValueError("not yet")
        return "done"

    environment = environment_of(note, finish)
    result, records = await step(environment, ("finish", {"succeed": False}), ("note", {"text": "a"}))
    assert [record.outcome for record in records] == ["refused", "ok"]
    assert not result.terminated  # a final call that fails does not end the episode
    result, records = await step(
        environment,
        ("note", {"text": "b"}),
        ("finish", {"succeed": True}),
        ("note", {"text": "never"}),
        ("nothing", {}),
        ("finish", {"succeed": True}),
    )
    assert order == ["finish False", "a", "b", "finish True"]
    assert [record.outcome for record in records] == ["ok", "ok", "not_run", "unknown", "not_run"]
    assert [record.failed for record in records] == [False, False, False, True, False]
    assert result.messages[2].get("content") == "Error: not run, the episode ended before this call."
    assert len(result.messages) == 5
    assert result.terminated
    assert result.info["stop_reason"] is StopReason.FINAL_ANSWER


async def test_cancelling_a_turn_cancels_its_calls() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    task = asyncio.create_task(environment_of(wait).astep(tool_calls(("wait", {}))))
    await asyncio.wait_for(started.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_tool_that_swallows_a_cancellation_cannot_keep_the_turn_alive(count: int) -> None:
    started: list[int] = []
    all_started = asyncio.Event()

    @tool(parallel=True)
    async def stubborn() -> str:
        """Wait."""
        started.append(1)
        if len(started) == count:
            all_started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "still here"
        return ""

    task = asyncio.create_task(environment_of(stubborn).astep(tool_calls(*[("stubborn", {})] * count)))
    await asyncio.wait_for(all_started.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("count", [1, 2])
async def test_a_mark_of_cancellation_that_a_tool_leaves_on_its_task_is_not_on_the_turns(count: int) -> None:
    async def careless() -> str:
        """Cancel the task that one is in, and go on."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert task.cancelling() == 1
        return "done"

    _, records = await step(environment_of(careless), *[("careless", {})] * count)
    assert [record.outcome for record in records] == ["ok"] * count
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_tool_that_breaks_in_the_moment_of_a_cancellation_is_not_reported_by_asyncio() -> None:
    async def breaks() -> str:
        """Break."""
        loop.call_soon(turn.cancel)  # so that it arrives after this call has ended and before the turn notices
        raise BrokenEnvironmentError("lost")

    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    turn = asyncio.create_task(environment_of(breaks).astep(tool_calls(("breaks", {}))))
    with pytest.raises(asyncio.CancelledError):
        await turn
    gc.collect()  # asyncio reports an unretrieved error when its task is garbage-collected
    assert reports == []
