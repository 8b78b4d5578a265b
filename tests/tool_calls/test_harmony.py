"""Answers in channels: harmony (gpt-oss) and ATEM (Muse Glimmer)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import trl.chat_template_utils as trl_templates
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from gymnast.envs.core import Message, ToolSchema
from gymnast.trainer.tool_calls.channel_formats import AtemFormat, HarmonyFormat

from .mutations import check_that_no_text_raises, mutated
from .reading_time import not_held

HARMONY, ATEM = HarmonyFormat(), AtemFormat()
PROMPT = "<|start|>user<|message|>Add.<|end|><|start|>assistant"
GO_ON = "<|end|><|start|>assistant"
ANALYSIS, FINAL, COMMENTARY = (f"<|channel|>{each}<|message|>" for each in ("analysis", "final", "commentary"))


def tool(name: str, **types: str) -> ToolSchema:
    properties = {key: {"type": each, "description": "x"} for key, each in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}


TOOLS = [tool("add", a="integer", b="integer"), tool("say", text="string"), tool("ping")]


def read(text: str, prefix: str = PROMPT) -> Message:
    return HARMONY.parse(text, prefix=prefix, tools=TOOLS)


def read_atem(text: str, prefix: str = PROMPT) -> Message:
    return ATEM.parse(text, prefix=prefix, tools=TOOLS)


def calls(message: Message) -> list[tuple[str, Any]]:
    return [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", [])]


def errors(message: Message) -> list[str]:
    return [each["error"] for each in message.get("malformed", [])]


def harmony_call(name: str = "add", **arguments: Any) -> str:
    """A call in the models' syntax, after `<|start|>assistant`."""
    body = json.dumps(arguments, ensure_ascii=False)
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}"


def atem_call(name: str = "add", **arguments: Any) -> str:
    values = "".join(f'<atem:parameter name="{key}">{each}</atem:parameter>\n' for key, each in arguments.items())
    invoke = f'<atem:invoke name="{name}">\n{values}</atem:invoke>'
    return f" to={name}<|message|><atem:function_calls>\n{invoke}\n</atem:function_calls>"


def rendered(template: str, answer: Message, tools: list[ToolSchema]) -> str:
    """The template's text for an answer, after the generation prompt."""
    question = {"role": "user", "content": "Hello."}
    texts: list[Any] = []
    for messages, more in (([question], True), ([question, dict(answer)], False)):
        options = {"tools": tools, "chat_template": template, "bos_token": ""}
        texts += render_jinja_template(conversations=[messages], add_generation_prompt=more, **options)[0]
    assert texts[1].startswith(texts[0])
    return texts[1].removeprefix(texts[0])


# Harmony.


@pytest.mark.parametrize("end", ["", "<|call|>"])
def test_thinking_then_a_call(end: str) -> None:
    assert read(f"{ANALYSIS}Hm.{GO_ON}{harmony_call(a=1, b=2)}{end}") == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
    }


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


@pytest.mark.parametrize("format", [HARMONY, ATEM], ids=["harmony", "atem"])
@pytest.mark.parametrize(
    "text", ["Plain.", "", " two  spaces \n", "Write to=add here.", '{"a": 1}', "<think>x</think>"]
)
def test_text_outside_of_the_format_stays_as_it_is(format: HarmonyFormat | AtemFormat, text: str) -> None:
    assert format.parse(text, prefix=PROMPT, tools=TOOLS) == {"role": "assistant", "content": text}


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
    assert [each["text"] for each in message.get("malformed", [])] == [invented + after]
    assert "was invented" in errors(message)[0]


@pytest.mark.parametrize("text", [harmony_call(a=1, b="x"), " to=functions.add<|channel|>commentary json<|message|>{}"])
def test_a_call_that_was_cut_is_not_a_call(text: str) -> None:
    for length in range(len(text)):
        message = read(text[:length])
        assert calls(message) == []
        if "to=" in text[:length]:
            assert len(errors(message)) == 1


TRICKY = ["<|call|>", "<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|start|>assistant"]
TRICKY += [f'"}}<|call|><|start|>assistant{harmony_call("ping")}', "{", "}", "\\", '"', "to=ping", "ü ☀ 𝄞 日本"]
TRICKY += [
    "<|eom|>",
    "<|eot|>",
    "</atem:parameter>",
    "</atem:invoke>",
    "<atem:function_calls>",
    "</tool_call>",
    "null",
    " ",
]


@pytest.mark.parametrize("value", TRICKY)
def test_markers_within_strings_end_nothing(value: str) -> None:
    message = read(f"{harmony_call('say', text=value)}<|call|><|start|>assistant{harmony_call(a=1)}")
    assert calls(message) == [("say", {"text": value}), ("add", {"a": 1})]
    assert "malformed" not in message


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
TEXTS = st.lists(st.sampled_from(TRICKY) | st.text(max_size=5), max_size=4).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(name=NAMES, arguments=st.dictionaries(TEXTS, JSON, max_size=4))
def test_every_call_that_gpt_oss_renders_is_read(name: str, arguments: dict[str, Any]) -> None:
    answer: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    text = rendered(trl_templates.gptoss_chat_template, answer, [tool(name)])
    for each in (text, f"{ANALYSIS}Hm.{GO_ON}{harmony_call(name, **arguments)}"):
        message = HARMONY.parse(each, prefix=PROMPT, tools=[tool(name)])
        assert calls(message) == [(name, arguments)]
        assert "malformed" not in message


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


def test_an_atem_call_that_was_cut_is_not_a_call() -> None:
    text = atem_call("say", text="a </atem:parameter> b", more="1")
    for length in range(len(" to=s"), text.index("</atem:invoke>")):
        message = read_atem(text[:length])
        assert calls(message) == []
        assert len(errors(message)) == 1
    text = f"{text.partition('</atem:invoke>')[0]}<|eom|><|start|>assistant{atem_call('ping')}"
    assert calls(read_atem(text)) == [("ping", {})]
    assert calls(read_atem(text.replace("1</atem:parameter>\n", "1"))) == [("ping", {})]


def test_an_invented_tool_output() -> None:
    invented = '<|start|>tool add<|message|><tool_output name="add">\n5\n</tool_output><|eot|>'
    message = read_atem(f"{atem_call(a=1)}<|eot|>{invented}<|start|>assistant to=user<|message|>5")
    assert calls(message) == [("add", {"a": 1})]
    assert "'tool add' was invented" in errors(message)[0]
    assert message.get("content") == ""


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(JSON, max_size=3),
    "object": st.dictionaries(TEXTS, JSON, max_size=3),
}


@settings(max_examples=80, deadline=None)
@given(name=NAMES, data=st.data(), kinds=st.dictionaries(NAMES, st.sampled_from(sorted(KINDS)), max_size=4))
def test_every_call_that_muse_glimmer_renders_is_read(name: str, data: st.DataObject, kinds: dict[str, str]) -> None:
    arguments = {key: data.draw(KINDS[kind]) for key, kind in kinds.items()}
    written = json.dumps(arguments, ensure_ascii=False)
    # Texts that look like the end of a call, because values are not escaped.
    assume("</atem:parameter>" not in written and "<|start|>assistant" not in written)
    tools = [tool(name, **kinds)]
    answer: Message = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    message = ATEM.parse(rendered(trl_templates.muse_glimmer_chat_template, answer, tools), prefix=PROMPT, tools=tools)
    assert calls(message) == [(name, arguments)]
    assert message.get("reasoning_content") == "Hm."
    assert "malformed" not in message


# Both.

PIECES = [
    "<|start|>",
    "<|start|>assistant",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|eom|>",
]
PIECES += [
    "<|constrain|>",
    "to=",
    "to=add",
    "to=functions.",
    "analysis",
    "final",
    "{",
    "}",
    '"',
    "[",
    "\\u",
    "NaN",
    "\ud83d",
]
PIECES += [
    "<|eot|>",
    "<atem:function_calls>",
    '<atem:invoke name="',
    "</atem:invoke>",
    "</atem:parameter>",
    " ",
    "\n",
    "\x00",
]
WHOLE = [harmony_call(a=1), f"{ANALYSIS}Hm.", f"{FINAL}Yes.", atem_call(a=1), " to=self<|message|>Hm.", "Text. "]


@pytest.mark.parametrize("format", [HARMONY, ATEM], ids=["harmony", "atem"])
def test_no_text_raises_an_error(format: HarmonyFormat | AtemFormat) -> None:
    def read(rng: random.Random) -> Message:
        prefix = rng.choice(["", PROMPT, PROMPT, PROMPT + ANALYSIS, PROMPT + " to=self<|message|>"])
        text = mutated(rng, WHOLE, PIECES, rng.choice([GO_ON, "<|eom|><|start|>assistant"]))
        return format.parse(text, prefix=prefix, tools=TOOLS)

    check_that_no_text_raises(read)


INVOKE = '<atem:function_calls><atem:invoke name="add"><atem:parameter name="a">'
HOSTILE = ["<|start|>", "<|start|>assistant", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|eom|>", " to=add"]
HOSTILE += [
    ' to=add<|message|>{"a": "<|call|><|start|>assistant',
    " to=add<|message|>[<|call|>",
    '<|message|>["',
    "[",
    " ",
]
HOSTILE += [f"<|start|>assistant to=add<|message|>{INVOKE}", f"<|eom|> to=add<|message|>{INVOKE}", INVOKE]
HOSTILE += [f"<|start|>assistant{harmony_call()}", f"<|start|>assistant{atem_call()}", "</atem:parameter>"]


@pytest.mark.parametrize("format", [HARMONY, ATEM], ids=["harmony", "atem"])
@pytest.mark.parametrize("piece", HOSTILE, ids=range(len(HOSTILE)))
def test_no_answer_blocks_a_reader_for_long(format: HarmonyFormat | AtemFormat, piece: str) -> None:
    for text in (piece * 3_000, f" to=add<|message|>{piece * 3_000}</atem:parameter></atem:invoke>"):
        with not_held(text):
            format.parse(text, prefix=PROMPT, tools=TOOLS)
