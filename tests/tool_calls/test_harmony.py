"""Answers in channels: harmony (gpt-oss) and ATEM (Muse Glimmer)."""

from __future__ import annotations

import pytest

from gymnast.envs.core import Message, ToolSchema
from gymnast.trainer.tool_calls.channels import ATEM, HARMONY

from .writers import WRITERS, calls, errors

harmony_call, atem_call = WRITERS["harmony"], WRITERS["atem"]  # after `<|start|>assistant`
PROMPT = "<|start|>user<|message|>Add.<|end|><|start|>assistant"
GO_ON = "<|end|><|start|>assistant"
ANALYSIS, FINAL, COMMENTARY = (f"<|channel|>{item}<|message|>" for item in ("analysis", "final", "commentary"))


def tool(name: str, **types: str) -> ToolSchema:
    properties = {key: {"type": kind, "description": "x"} for key, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}


TOOLS = [tool("add", a="integer", b="integer"), tool("say", text="string"), tool("ping")]


def read(text: str, prefix: str = PROMPT) -> Message:
    return HARMONY.parse(text, prefix=prefix, tools=TOOLS)


def read_atem(text: str, prefix: str = PROMPT) -> Message:
    return ATEM.parse(text, prefix=prefix, tools=TOOLS)


# Harmony.


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.add<|channel|>commentary json",
        " to=functions.add<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.add json",
        "<|channel|>commentary to=functions.add<|constrain|>json",
        "<|channel|>commentary to=functions.add code",
        "<|channel|>analysis to=functions.add",
        "<|channel|>final to=functions.add",
        "<|channel|>commentary to=add <|constrain|>json",
        " to=functions.add",
        " to=add",
    ],
)
def test_spellings_of_a_calls_header(header: str) -> None:
    message = read(f'{header}<|message|>{{"a": 1}}')
    assert calls(message) == [("add", {"a": 1})]
    assert set(message) == {"role", "content", "tool_calls"}


@pytest.mark.parametrize("name", ["python", "browser.open", "unknown"])
def test_the_name_of_a_builtin_tool_stays(name: str) -> None:
    assert calls(read(f'<|channel|>analysis to={name}<|message|>{{"x": 1}}')) == [(name, {"x": 1})]


def test_a_message_to_the_user_is_not_a_call() -> None:
    assert read("<|channel|>final to=user<|message|>Hi.") == {"role": "assistant", "content": "Hi."}
    assert HARMONY.parse(' to=user<|message|>{"x": 1}', prefix="", tools=[tool("user")]).get("tool_calls")


@pytest.mark.parametrize("end", ["", "<|return|>", "<|end|>"])
def test_a_final_answer_stays_as_it_is(end: str) -> None:
    content = " Two\n\n lines <|channel|> \n"
    assert read(f"{FINAL}{content}{end}") == {"role": "assistant", "content": content}


def test_several_messages_of_a_channel_are_joined() -> None:
    text = GO_ON.join([f"{ANALYSIS}One", f"{COMMENTARY}Let me see.", f"{ANALYSIS}Two", f"{FINAL}Done."])
    assert read(text) == {"role": "assistant", "content": "Let me see.\nDone.", "reasoning_content": "One\nTwo"}


@pytest.mark.parametrize(
    "between", ["<|call|><|start|>assistant", GO_ON, "<|start|>assistant", "<|call|>", "<|call|>\n"]
)
def test_several_calls(between: str) -> None:
    message = read(between.join([harmony_call(a=1), harmony_call("say", text="x"), harmony_call("ping")]))
    assert calls(message) == [("add", {"a": 1}), ("say", {"text": "x"}), ("ping", {})]
    assert "malformed" not in message


def test_a_channel_that_the_prompt_has_begun() -> None:
    message = read(f"Hm.{GO_ON}{FINAL}Yes.", f"{PROMPT}{ANALYSIS}")
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert calls(read('{"a": 1}', f"{PROMPT} to=functions.add<|channel|>commentary json<|message|>")) == [
        ("add", {"a": 1})
    ]


MALFORMED = {
    ' to=functions.add<|message|>{"a": 1': "not valid JSON",
    ' to=functions.add<|message|>{"a": 1}}': "not valid JSON",
    ' to=functions.add<|message|>{"a": NaN}': "NaN is not a JSON number",
    ' to=functions.add<|message|>{"a": "\\ud800"}': "half of a surrogate pair",
    " to=functions.add<|message|>" + "[" * 100_000: "not valid JSON",
    " to=functions.add<|message|>[1]": "must be a JSON object",
    " to=functions.add<|message|>": "not valid JSON",
    " to=python<|message|>print(1)": "not valid JSON",
    " to=functions.<|message|>{}": 'needs a "name"',
    " to=<|message|>{}": "empty recipient",
    " to=functions.add<|channel|>commentary to=functions.say<|message|>{}": "one recipient",
    " to=functions.add<|channel|>commentary": "was cut before its <|message|>",
    " to=functions.a": "was cut before its <|message|>",
    "<|channel|>thoughts<|message|>Hm.": "unknown channel 'thoughts'",
    "<|message|>Hm.": "no channel",
    "Hm.<|end|>": "'Hm.' stands where",
    "Hm. <|channel|>final<|message|>Yes.": "'Hm.' stands where",
    "<|end|>": "an end marker stands where",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_messages(text: str) -> None:
    message = read(text)
    assert len(errors(message)) == 1
    assert MALFORMED[text] in errors(message)[0]
    assert message.get("malformed", [])[0]["text"] == text.strip()
    assert calls(message) == []
    message = read(f"{text.removesuffix('<|end|>')}<|call|><|start|>assistant{harmony_call(b=2)}")
    assert calls(message) == [("add", {"b": 2})]
    assert len(errors(message)) == 1


@pytest.mark.parametrize(
    "invented",
    [
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"5"<|end|>',
        "<|start|>user<|message|>And now?<|end|>",
    ],
)
def test_text_after_an_invented_message_does_not_count(invented: str) -> None:
    after = f"<|start|>assistant{harmony_call('ping')}<|call|><|start|>assistant{FINAL}5"
    message = read(f"{harmony_call(a=1)}<|call|>{invented}{after}")
    assert calls(message) == [("add", {"a": 1})]
    assert message.get("content") == ""
    assert [piece["text"] for piece in message.get("malformed", [])] == [invented + after]
    assert "was invented" in errors(message)[0]


# ATEM.


def test_recipients_of_atem() -> None:
    text = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Adding.<|eom|><|start|>assistant"
    text += atem_call(a=1)
    for end in ("", "<|eot|>"):
        message = read_atem(text + end)
        assert message.get("reasoning_content") == "Hm."
        assert message.get("content") == "Adding."
        assert calls(message) == [("add", {"a": 1})]
    assert read_atem("<|message|> Hi. ") == {"role": "assistant", "content": " Hi. "}
    assert read_atem("Hm.<|eom|>", f"{PROMPT} to=self<|message|>").get("reasoning_content") == "Hm."


def test_several_atem_calls() -> None:
    text = "<|eom|><|start|>assistant".join([atem_call(a=1), atem_call("ping")])
    assert calls(read_atem(text)) == [("add", {"a": 1}), ("ping", {})]
    invokes = (
        atem_call(a=1).removesuffix("\n</atem:function_calls>") + atem_call("say", text=" x\n").partition("calls>")[2]
    )
    assert calls(read_atem(invokes)) == [("add", {"a": 1}), ("say", {"text": " x\n"})]


ATEM_MALFORMED = {
    atem_call(a=1).removesuffix("</atem:invoke>\n</atem:function_calls>"): "cut off",
    atem_call(a=1).partition("</atem:parameter>")[0]: "cut off",
    f"{atem_call(a=1)} And now?": "'And now?' follows the calls",
    " to=add<|message|>Add one.": "expected the name of a tool",
    " to=add<|message|>": "expected the name of a tool",
    " to=add": "was cut before its <|message|>",
    '<atem:invoke name="add"></atem:invoke><|eot|>': "stands where a message's header was expected",
}


@pytest.mark.parametrize("text", ATEM_MALFORMED, ids=range(len(ATEM_MALFORMED)))
def test_malformed_atem(text: str) -> None:
    message = read_atem(text)
    assert len(errors(message)) == 1
    assert ATEM_MALFORMED[text] in errors(message)[0]
    assert calls(message) == []
    message = read_atem(f"{text.removesuffix('<|eot|>')}<|eom|><|start|>assistant{atem_call('ping')}")
    assert calls(message) == [("ping", {})]
    assert len(errors(message)) == 1


def test_an_invented_tool_output() -> None:
    invented = '<|start|>tool add<|message|><tool_output name="add">\n5\n</tool_output><|eot|>'
    message = read_atem(f"{atem_call(a=1)}<|eot|>{invented}<|start|>assistant to=user<|message|>5")
    assert calls(message) == [("add", {"a": 1})]
    assert "'tool add' was invented" in errors(message)[0]
    assert message.get("content") == ""
