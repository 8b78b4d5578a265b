"""ReAct: tools through the prompt, calls as text."""

from __future__ import annotations

import json

import pytest

from gymnast.envs.core import Message, ToolSchema
from gymnast.trainer.tool_calls.react import ReActFormat

from .writers import WRITERS, calls, errors

REACT = ReActFormat()
action = WRITERS["react"]


def tool(name: str, description: str = "A tool.") -> ToolSchema:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "description": "Größe"}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [tool("add", "Adds."), tool("ping", "Pings.")]


def read(text: str, prefix: str = "") -> Message:
    return REACT.parse(text, prefix=prefix, tools=TOOLS)


def test_several_calls_and_the_text_around_them() -> None:
    message = read(f"First.\n{action(a=1)}\nThought: More.\n{action(a=2)}\n\nThat is all.")
    assert calls(message) == [("add", {"a": 1}), ("add", {"a": 2})]
    assert message.get("content") == "First.\nThought: More.\n\nThat is all."
    assert "malformed" not in message


@pytest.mark.parametrize(
    "text",
    [
        "Plain.",
        "",
        " two  spaces \n",
        "My Action: add\nAction Input: {}",
        "An `Action: add` is a line.",
        "Action Input: {}",
        "Observation: It rains.\nThought: I stay.",
        "Actions:\nAction items: none",
        "Final Answer: 5",
        f"Final Answer: write\n{action(a=1)}\nObservation: 5",
        '{"name": "add", "arguments": {}}',
    ],
)
def test_answers_without_an_action_stay_as_they_are(text: str) -> None:
    assert read(text) == {"role": "assistant", "content": text}


def test_without_tools_an_action_is_text() -> None:
    text = "Plan:\nAction: rest\n"
    assert REACT.parse(text, prefix="", tools=[]) == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "written",
    [
        '{"a": 1}',
        ' {"a": 1}  ',
        '\n{\n  "a":\n  1\n}',
        '```json\n{"a": 1}\n```',
        '\n```\n{"a": 1}\n```\n',
        '``` {"a": 1} ```',
        '```json\n{"a": 1}',
        "{'a': 1}",
        "```python\n{'a': 1}\n```",
        '"{\\"a\\": 1}"',
        '{"a": "1"}',
    ],
)
@pytest.mark.parametrize("after", ["", "\n", "\nDone.", "\r\n\nThe set {1}\nand more.", f"\n{action('ping')}"])
def test_ways_to_write_the_input(written: str, after: str) -> None:
    message = read(f"Action: add\nAction Input: {written}{after}")
    assert calls(message)[0] == ("add", {"a": 1})
    assert len(calls(message)) == 1 + ("ping" in after)
    assert "malformed" not in message
    assert message.get("content") == ("" if "ping" in after else after.strip())


@pytest.mark.parametrize("space", ["", " ", "\t"])
def test_labels_may_be_indented(space: str) -> None:
    assert calls(read(f"{space}Action{space}: add{space}\r\n\n{space}Action Input{space}:{{}}")) == [("add", {})]


def test_an_action_without_input() -> None:
    assert calls(read("Thought: Now.\nAction: ping\n")) == [("ping", {})]
    for text in ("Action: pong", "Action: I rest.", "Action: ping\nNow.", "Action:", f"Action: ping\n{action(a=1)}"):
        message = read(text)
        assert "without an Action Input" in errors(message)[0] or "names no tool" in errors(message)[0]
        assert message.get("malformed", [])[0]["text"] == text.split("\n")[0]
        assert len(calls(message)) == ("add" in text)


MALFORMED = {
    '{"a": 1': "must be a JSON object",
    '{"a": 1}}': "must be a JSON object",
    '{"a": NaN}': "must be a JSON object",
    '{"a": "\ud800"}': "half of a surrogate pair",
    '{"a": 1} I wait.': "must be a JSON object",
    "[1, 2]": "must be a JSON object",
    "Paris": "must be a JSON object",
    "": "is empty",
    "```json\n```": "must be a JSON object",
}


@pytest.mark.parametrize("written", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_inputs(written: str) -> None:
    text = f"Action: add\nAction Input: {written}"
    message = read(f"So.\n{text}\nThought: Next.\n{action('ping')}")
    assert len(errors(message)) == 1
    assert MALFORMED[written] in errors(message)[0]
    assert message.get("malformed", [])[0]["text"].strip() == text.strip()
    assert calls(message) == [("ping", {})]


def test_a_call_that_was_cut_is_not_a_call() -> None:
    whole = action("addition", a=1)
    for length in range(len("Action:"), len(whole)):
        message = read(whole[:length])
        assert calls(message) == ([("add", {})] if whole[:length] == "Action: add" else [])
        assert bool(errors(message)) != bool(calls(message))


@pytest.mark.parametrize("label", ["Observation:", "Observation 1 (add):", "Observation 2:"])
def test_text_after_an_invented_observation_does_not_count(label: str) -> None:
    rest = f"{label} 5\nThought: More.\n{action(a=2)}\nFinal Answer: 5"
    message = read(f"{action(a=1)}\n{rest}")
    assert calls(message) == [("add", {"a": 1})]
    assert message.get("content") == ""
    assert [piece["text"] for piece in message.get("malformed", [])] == [rest]
    assert "stop after the Action Input" in errors(message)[0]


def test_a_final_answer_after_an_action_is_content() -> None:
    message = read(f"{action(a=1)}\nFinal Answer: 5\n{action(a=2)}")
    assert calls(message) == [("add", {"a": 1})]
    assert message.get("content") == f"Final Answer: 5\n{action(a=2)}"


def test_an_action_within_a_later_thought_is_not_run() -> None:
    message = read(f"So.\n<think>\nPerhaps\n{action(a=1)}\n</think>\n{action('ping')}")
    assert calls(message) == [("ping", {})]
    assert message.get("reasoning_content") == f"Perhaps\n{action(a=1)}"
    assert message.get("content") == "So."


# The text in the prompt.


def test_instructions_describe_every_tool() -> None:
    text = REACT.instructions(TOOLS)
    for schema in TOOLS:
        function = schema["function"]
        assert f"{function['name']}: {function['description']}" in text
        assert json.dumps(function["parameters"], ensure_ascii=False) in text
    assert 'Action: tool_name\nAction Input: {"key": "value"}' in text
    assert "Observation:" in text


def test_the_example_in_the_instructions_is_read() -> None:
    example = REACT.instructions(TOOLS).partition("Thought:")[2].partition("\n\n")[0]
    assert calls(read(f"Thought:{example}")) == [("tool_name", {"key": "value"})]


def test_a_tool_without_description_or_parameters() -> None:
    assert "bare" in REACT.instructions([{"type": "function", "function": {"name": "bare"}}])


def test_observations() -> None:
    first: Message = {"role": "tool", "name": "add", "tool_call_id": "call_0", "content": "5"}
    second: Message = {
        "role": "tool",
        "content": [{"type": "text", "text": "Error: "}, {"type": "text", "text": "no."}],
    }
    assert REACT.observation([first]) == {"role": "user", "content": "Observation: 5"}
    assert REACT.observation([first, second]) == {
        "role": "user",
        "content": "Observation 1 (add): 5\nObservation 2: Error: no.",
    }
    with pytest.raises(ValueError, match="at least one result"):
        REACT.observation([])
    with pytest.raises(ValueError, match="content part of type 'image'"):
        REACT.observation([{"role": "tool", "content": [{"type": "image"}]}])
