"""`ToolEnv`: its hooks, its options, the tools of an episode, and how an episode ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gymnast.envs import Calculator, Message, StopReason, Tool, ToolEnv, final_answer, tool, tool_call, tool_calls
from gymnast.envs.tools.sources import ToolSource

from .tool_env_steps import QUESTION, Collector, begin, contents, malformed


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


# --- the beginning ----------------------------------------------------------------------------------------------


def test_reset_task_by_default_takes_the_prompt_column() -> None:
    assert begin(ToolEnv(), prompt="Hello") == [{"role": "user", "content": "Hello"}]
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert begin(ToolEnv(), prompt=messages) == messages
    with pytest.raises(ValueError, match=r"ToolEnv: the row has no 'prompt' \(its columns: \['question'\]\)"):
        ToolEnv().reset(seed=0, options={"task": {"question": "?"}})


async def test_reset_task_may_block_or_be_asynchronous() -> None:
    both = threading.Barrier(2)

    class Blocking(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            both.wait(30)  # passes only if neither blocks the loop
            return [{"role": "user", "content": task["x"]}]

    class Asynchronous(ToolEnv):
        async def reset_task(self, task: Mapping[str, Any]) -> list[Message]:  # type: ignore[override]
            await asyncio.sleep(0)
            return [{"role": "user", "content": task["x"]}]

    blocking = [Blocking().areset(options={"task": {"x": text}}) for text in "ab"]
    assert [messages[0].get("content") for messages, _ in await asyncio.gather(*blocking)] == ["a", "b"]
    messages, _ = await Asynchronous().areset(options={"task": {"x": "c"}})
    assert messages[0].get("content") == "c"


def test_a_step_needs_an_episode() -> None:
    environment = Calculator()
    with pytest.raises(RuntimeError, match=r"Calculator has no episode to step in: call reset\(\) first"):
        environment.step(say("hello"))
    environment.reset(seed=0, options={"task": QUESTION})
    environment.step(tool_call("final_answer", answer=6))
    with pytest.raises(RuntimeError, match="no episode"):
        environment.step(tool_call("final_answer", answer=6))
    environment.reset(seed=0, options={"task": QUESTION})
    assert environment.step(tool_call("final_answer", answer=6)).reward == 1.0


# --- the episode's tools ----------------------------------------------------------------------------------------


def test_tools_may_change_with_the_episode() -> None:
    def secret() -> str:
        """Tell the secret."""
        return "42"

    class Changing(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            if task["open"]:
                self.tools = [*self.tools.values(), secret]
            return [{"role": "user", "content": "go"}]

    environment = Changing([final_answer])
    begin(environment, open=True)
    assert list(environment.tools) == ["final_answer", "secret"]
    assert contents(environment.step(tool_call("secret"))) == ["42"]
    begin(environment, open=True, tools=["secret"])  # a row narrows the tools that reset_task chose
    assert list(environment.tools) == ["secret"]
    begin(environment, open=False)
    assert list(environment.tools) == ["final_answer"]


def test_tools_that_can_be_read_only_once_are_refused() -> None:
    with pytest.raises(TypeError, match="tools must be a list or a tuple, since every copy reads it again"):
        ToolEnv(item for item in [final_answer])  # type: ignore[arg-type]


def test_an_init_that_forgets_super_still_works() -> None:
    class Forgetful(Calculator):
        def __init__(self, factor: int) -> None:
            self.factor = factor

    environment = Forgetful(3)
    environment.reset(seed=0, options={"task": QUESTION})
    assert environment.step(tool_call("final_answer", answer=6)).reward == 1.0
    assert environment.render() is None


def test_a_tool_cannot_have_a_name_that_the_environment_uses() -> None:
    def look(self: Any) -> str:
        """Look."""
        return ""

    for name in ("step", "reset", "close", "reply", "grade", "tool_schemas", "reward", "metrics", "tools", "np_random"):
        with pytest.raises(TypeError, match=rf"Game\.{name}: a tool's method cannot have this name, .*name='{name}'"):
            type("Game", (ToolEnv,), {name: tool(look)})
    named = type("Game", (ToolEnv,), {"walk": tool(name="step")(look)})
    assert list(named().tools) == ["step"]


def test_options_may_be_class_attributes() -> None:
    class Strict(Calculator):
        tool_timeout = 2.0
        max_result_chars = None
        on_malformed = "end"
        max_malformed = 1

    assert (Strict().tool_timeout, Strict().max_result_chars, Strict().max_malformed) == (2.0, None, 1)
    environment = Strict(tool_timeout=None)
    assert environment.tool_timeout is None
    environment.reset(seed=0, options={"task": QUESTION})
    assert environment.step(malformed()).info["stop_reason"] is StopReason.MALFORMED
    Strict.tool_timeout = -1.0
    with pytest.raises(ValueError, match="tool_timeout must be positive or None, got -1"):
        Strict()


def test_a_step_takes_a_message() -> None:
    environment = Calculator()
    environment.reset(seed=0, options={"task": QUESTION})
    with pytest.raises(TypeError, match=r"Calculator\.step\(\) takes the model's message: .*got str: 'text'"):
        environment.step("text")  # type: ignore[arg-type]


# --- rewards, endings, metrics ----------------------------------------------------------------------------------


def test_each_step_has_its_own_reward() -> None:
    environment = Collector()
    begin(environment)
    first = environment.step(tool_calls(("collect", {"stones": 1}), ("collect", {"stones": 2})))
    second = environment.step(say("nothing"))
    third = environment.step(tool_call("collect", stones=6))
    assert [result.reward for result in (first, second, third)] == [3.0, 0.0, 6.0]
    assert [result.terminated for result in (first, second, third)] == [False, False, True]
    assert third.info["stop_reason"] is StopReason.ENV_TERMINATED
    assert [result.info["metrics"]["stones"] for result in (first, third)] == [3.0, 9.0]
    begin(environment)
    assert environment.metrics == {}
    assert not environment.terminated


def test_reply_answers_a_message_without_calls() -> None:
    environment = Collector()
    begin(environment)
    result = environment.step(say("hello"))
    assert contents(result) == ["You said: hello"]
    assert not result.terminated
    result = environment.step(say("stop"))
    assert (contents(result), result.reward, result.terminated) == (["You said: stop"], -1.0, True)
    assert result.info["stop_reason"] is StopReason.ENV_TERMINATED
    begin(environment)
    result = environment.step(say("bye"))
    assert (result.messages, result.terminated) == ([], True)
    assert result.info["stop_reason"] is StopReason.MODEL_STOPPED


async def test_reply_may_be_asynchronous_and_is_checked() -> None:
    class Asynchronous(ToolEnv):
        async def reply(self, message: Message) -> list[Message] | None:  # type: ignore[override]
            await asyncio.sleep(0)
            replies: dict[Any, Any] = {"a": [{"role": "user", "content": "more"}], "b": "text", "c": []}
            return replies[message.get("content")]

    environment = Asynchronous()
    await environment.areset(options={"task": {"prompt": ""}})
    assert contents(await environment.astep(say("a"))) == ["more"]
    with pytest.raises(ValueError, match=r"Asynchronous\.reply\(\) must give a list of messages, got str: 'text'"):
        await environment.astep(say("b"))
    with pytest.raises(ValueError, match=r"Asynchronous\.reply\(\) gave no message: return None to end the episode"):
        await environment.astep(say("c"))


def test_the_built_in_final_answer_ends_the_episode() -> None:
    environment = ToolEnv([final_answer])
    begin(environment)
    result = environment.step(tool_call("final_answer", answer="Paris"))
    assert (contents(result), result.terminated) == (["Paris"], True)
    assert result.info["stop_reason"] is StopReason.FINAL_ANSWER
    assert environment.is_final({"function": {"name": "final_answer", "arguments": {}}})
    assert not environment.is_final({"function": {"name": "other", "arguments": {}}})


# --- options ----------------------------------------------------------------------------------------------------


async def test_a_cancelled_close_closes_the_other_sources_too() -> None:
    closing, closed = asyncio.Event(), list[str]()

    class Source(ToolSource):
        def __init__(self, name: str) -> None:
            self.name = name

        @asynccontextmanager
        async def open(self) -> AsyncIterator[list[Tool]]:
            try:
                yield []
            finally:
                closing.set()
                if self.name == "stuck":
                    await asyncio.Event().wait()
                closed.append(self.name)

    environment = ToolEnv([Source("first"), Source("second"), Source("stuck")])
    await environment.areset(options={"task": {"prompt": "go"}})
    close = asyncio.create_task(environment.aclose())
    await closing.wait()
    close.cancel()
    with pytest.raises(asyncio.CancelledError):
        await close
    assert closed == ["second", "first"]
