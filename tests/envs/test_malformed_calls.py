"""Malformed tool calls under each `on_malformed`, and the cap on consecutive ones."""

from __future__ import annotations

from typing import Any

import pytest

from gymnast.envs import Calculator, Message, StopReason, ToolEnv, tool_call

from .tool_env_steps import QUESTION, Collector, begin, contents, malformed


def test_malformed_calls_are_fed_back_up_to_a_cap() -> None:
    environment = Collector(max_malformed=3)
    begin(environment)
    feedback = "Error: the tool call could not be read: the JSON ends early"
    for _ in range(2):
        result = environment.step(malformed())
        assert (contents(result), result.terminated) == ([feedback], False)
    result = environment.step(tool_call("collect", stones=1))  # a good turn resets the count
    assert not result.terminated
    for _ in range(2):
        assert not environment.step(malformed()).terminated
    result = environment.step(malformed())
    assert (result.messages, result.terminated, result.truncated) == ([], True, False)
    assert result.info["stop_reason"] is StopReason.MALFORMED


def test_good_calls_beside_a_malformed_one_are_run() -> None:
    environment = Collector()
    begin(environment)
    result = environment.step(malformed(("collect", {"stones": 2})))
    assert contents(result) == ["collected", "Error: the tool call could not be read: the JSON ends early"]
    assert result.reward == 2.0


@pytest.mark.parametrize("options", [{"max_malformed": 1}, {"on_malformed": "end"}], ids=str)
def test_a_final_answer_takes_precedence_over_a_malformed_call(options: dict[str, Any]) -> None:
    environment = Calculator(**options)
    environment.reset(seed=0, options={"task": QUESTION})
    result = environment.step(malformed(("final_answer", {"answer": 6})))
    assert (result.reward, result.info["stop_reason"]) == (1.0, StopReason.FINAL_ANSWER)
    environment.reset(seed=0, options={"task": QUESTION})
    result = environment.step(malformed(("final_answer", {"answer": "six"})))
    assert (result.reward, result.info["stop_reason"]) == (0.0, StopReason.MALFORMED)
    assert [record.outcome for record in result.info["tool_calls"]] == ["bad_arguments"]


def test_on_malformed_text_is_an_answer_like_any_other() -> None:
    environment = Collector(on_malformed="text", max_malformed=1)
    begin(environment)
    for _ in range(3):
        result = environment.step({**malformed(), "content": "hello"})
        assert (contents(result), result.terminated) == (["You said: hello\n<tool_call>{"], False)


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (None, "<tool_call>{"),
        ("It is there: <tool_call>{", "It is there: <tool_call>{"),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}, {"type": "text", "text": "<tool_call>{"}]),
    ],
)
def test_on_malformed_text_loses_nothing_of_the_text(content: Any, whole: Any) -> None:
    seen: list[Message] = []

    class Listens(ToolEnv):
        def reply(self, message: Message) -> None:
            seen.append(message)

    environment = Listens(on_malformed="text")
    begin(environment)
    action: Message = {**malformed(), "content": content}
    environment.step(action)
    assert seen[0].get("content") == whole
    assert action.get("content") == content


@pytest.mark.parametrize(
    "action",
    [
        tool_call("x" * 5000),
        tool_call("add", a="x" * 5000, b=1, **{"y" * 5000: 1}),
        {"role": "assistant", "malformed": [{"text": "?", "error": "e" * 5000}]},
    ],
    ids=["unknown tool", "bad arguments", "malformed call"],
)
async def test_errors_that_quote_the_model_are_cut_too(action: Message) -> None:
    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: Other.
        """
        return a + b

    env = ToolEnv([add], max_result_chars=60)
    await env.areset(options={"task": {"prompt": "Hi."}})
    result = await env.astep(action)
    content = result.messages[0].get("content")
    assert isinstance(content, str)
    assert len(content) < 120
    assert "characters cut" in content
