"""Tool-call formats: texts of models, and the messages that they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gymnast.envs.core import Message, ToolSchema
from gymnast.trainer import FORMATS, TextFormat

from .writers import WRITERS, calls, errors


def schema(name: str, **types: Any) -> ToolSchema:
    properties = {key: kind if isinstance(kind, dict) else {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "Tool.", "parameters": parameters}}


OPTIONAL = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
TOOLS = [
    schema("add", a="integer", b="integer", c="number", d="boolean", e="array", f="object", g=OPTIONAL),
    schema("say", text="string", code={"type": ["string", "null"]}, other={}),
]

EVERY = pytest.mark.parametrize("name", FORMATS)
CHANNELS = ("harmony", "atem")
JSON, TEXT, BRACES, PYTHON = (
    [name for name, writer in WRITERS.items() if writer.kind == kind] for kind in ("json", "text", "braces", "python")
)
NAMED = ["deepseek_v3", "deepseek_v3_1", "kimi_k2", "mistral_v11", "functionary"]  # the name stands outside of the JSON


def read(name: str, text: str, prefix: str = "") -> Message:
    return FORMATS[name].parse(text, prefix=prefix or start_of(name), tools=TOOLS)


def start_of(name: str) -> str:
    """The end of a prompt; in channels it matters."""
    return "<|start|>assistant" if name in CHANNELS else "assistant\n"


def words(message: Message) -> list[str]:
    return str(message.get("content")).split()


def test_every_format_has_a_writer() -> None:
    assert sorted(WRITERS) == sorted(FORMATS)
    python = {name for name, item in FORMATS.items() if isinstance(item, TextFormat) and item.values == "python"}
    assert python == set(PYTHON)


@EVERY
def test_one_call(name: str) -> None:
    write = WRITERS[name]
    made = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    written = (
        {"id": "functions.add:0"} if name == "kimi_k2" else {}
    )  # other formats do not write the id into every call
    answer = write.answer(write(a=1, b=2))
    assert read(name, answer) == {"role": "assistant", "content": "", "tool_calls": [{**written, **made}]}


@EVERY
def test_several_calls(name: str) -> None:
    write = WRITERS[name]
    message = read(name, write.answer(write(a=1), write("say", text="x"), write()))
    assert calls(message) == [("add", {"a": 1}), ("say", {"text": "x"}), ("add", {})]
    assert "malformed" not in message
    assert message.get("content") == ""


@pytest.mark.parametrize(
    "name", sorted(FORMATS.keys() - {*CHANNELS, "pythonic"})
)  # in these the text between calls is syntax
def test_space_between_calls(name: str) -> None:
    write = WRITERS[name]
    for between in ("\n", "  \n ") if name == "react" else ("", "\n", "  \n "):
        message = read(name, between.join([write(a=1), write(b=2)]))
        assert calls(message) == [("add", {"a": 1}), ("add", {"b": 2})]
        assert "malformed" not in message


@EVERY
def test_text_beside_calls_is_content(name: str) -> None:
    write = WRITERS[name]
    before = "Let me see." if write.text_before else ""
    message = read(name, write.answer(write(a=1), write(b=2), before=before, after="Done."))
    assert calls(message) == [("add", {"a": 1}), ("add", {"b": 2})]
    assert words(message) == [*before.split(), "Done."]
    assert "malformed" not in message


@EVERY
def test_thinking_that_the_model_or_the_prompt_opened_is_kept_apart(name: str) -> None:
    write = WRITERS[name]
    opening, closing = write.thinking
    thought = "Hm." if name in CHANNELS else f"A call such as {write(a=9)} or not?"
    written = thought + closing + write.answer(write(a=1))
    for message in (read(name, opening + written), read(name, written, start_of(name) + opening)):
        assert message.get("reasoning_content") == thought
        assert calls(message) == [("add", {"a": 1})]
        assert message.get("content") == ""


@EVERY
def test_thinking_that_was_cut_is_all_thinking(name: str) -> None:
    write = WRITERS[name]
    thought = "I call" if name in CHANNELS else f"I call {write(a=1)}"
    message = read(name, write.thinking[0] + thought)
    assert message == {"role": "assistant", "content": "", "reasoning_content": thought}


@EVERY
def test_thinking_that_the_template_closed_is_ignored(name: str) -> None:
    opening, closing = WRITERS[name].thinking
    assert read(name, "Yes.", start_of(name) + opening + closing) == {"role": "assistant", "content": "Yes."}


PLAIN = ["Plain.", "", " two  spaces \n", "The set {1, 2}, [3] and (4).", '{"answer": 42}', "{}", "[1]", '"x"', "{no"]
PLAIN += ["```json\n{}\n```", "a < b > c", "f(a=1)", "call: me", "| a |", "Zürich ☀ 𝄞\x00"]


@EVERY
def test_plain_answers_stay_as_they_are(name: str) -> None:
    for text in PLAIN:
        assert read(name, text) == {"role": "assistant", "content": text}


def test_bare_calls_count_only_at_the_beginning_of_an_answer() -> None:
    for name in ("llama3", "pythonic"):
        text = f"I could write {WRITERS[name](a=1)}"
        assert read(name, text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if isinstance(format, TextFormat)])
def test_wrappers_say_nothing(name: str) -> None:
    format = FORMATS[name]
    assert isinstance(format, TextFormat)
    for wrapper in format.wrappers:
        assert read(name, f"{wrapper}Yes.") == {"role": "assistant", "content": "Yes."}
    write = WRITERS[name]
    assert read(name, "".join([*format.wrappers, write(a=1), *format.wrappers])).get("content") == ""


# Calls that cannot be read.

OPENING = {"granite3": "<|tool_call|>", "mistral": "[TOOL_CALLS]", "command_r7b": "<|START_ACTION|>"}
OPENING |= {"command_r": "Action: ```json\n", "hermes": "<tool_call>"}
# Closing marks that may be missing. For GLM it is the only mark of a call's end; other formats have no such mark.
CLOSING = {
    "qwen3_coder": "</tool_call>",
    "seed_oss": "</seed:tool_call>",
    "gemma4": "<tool_call|>",
    "functiongemma": "<end_function_call>",
    "deepseek_v3": "<｜tool▁call▁end｜>",
    "deepseek_v3_1": "<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_end|>",
    "command_r7b": "<|END_ACTION|>",
    "command_r": "```",
    "lfm2": "<|tool_call_end|>",
    "granite3": "<|/tool_call|>",
    "hermes": "</tool_call>",
    "atem": "</atem:function_calls>",
}

BROKEN_JSON = ['{"a": 1', '{"a": }', '{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', '{"a": 1e999}', '{"a" 1}']
BROKEN_JSON += ['{"a": "\\ud800"}', '{"a": "\ud83d"}', '{"a": ' + "[" * 100_000, "[1, 2]", "0", "[]", "true", '"x"']
BROKEN_TEXT = {
    "atem": ["<atem:parameter>1</atem:parameter>", "x"],
    "qwen3_coder": ["<parameter=a\n1\n", "<parameter=>\n1\n</parameter>\n", "<a>1</a>\n", "x", '{"a": 1}'],
    "seed_oss": ["<parameter>1</parameter>", '{"a": 1}'],
    "minimax_m2": ["<parameter>1</parameter>\n", "x"],
    "glm4": ["<arg_key>a</arg_key>\n", "<arg_value>1</arg_value>", '{"a": 1}'],
}
BROKEN_BRACES = ["{a:1", "{a}", "{a:}", "{a:NaN}", "{a:1e999}", "{a:x:y}", "{a:[1}", "1", "{a:\ud800}", "{" * 10_000]
BROKEN_PYTHON = ["a=", "1", "a=x", "a=nan", "a='x", "a=1e999", "a=[1", "a=f(1)", "a=1 b=2", "a='\ud800'", "**{}"]
BROKEN = {
    **dict.fromkeys(JSON, BROKEN_JSON),
    **{name: ["x"] for name in TEXT},
    **BROKEN_TEXT,
    **dict.fromkeys(BRACES, BROKEN_BRACES),
    **dict.fromkeys(PYTHON, BROKEN_PYTHON),
}
# A half of a surrogate pair in a text value has no place in UTF-8, either.
for _name in TEXT:
    BROKEN[_name] = [*BROKEN[_name], WRITERS[_name].arguments({"a": "\ud800"})]


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_call_between_two_good_ones(name: str) -> None:
    write = WRITERS[name]
    tag = "<|python_tag|>" if name == "llama3" else ""  # without it the beginning of the next call is unknown
    good = [("add", {"a": 1}), ("add", {"b": 2})]
    for broken in BROKEN[name]:
        bad = tag + write.call("add", broken)
        message = read(name, write.answer(tag + write(a=1), bad, tag + write(b=2)))
        [error] = errors(message)
        assert error
        if name == "pythonic":  # the whole answer is one list, and a half of a pair is found in a call that can be read
            assert calls(message) == (good if "surrogate" in error else [])
            continue
        assert calls(message) == good
        malformed = message.get("malformed", [])[0]["text"]
        assert bad.strip().removesuffix("<|/tool_call|>") in malformed  # Granite has no such marker, Phi-4-mini has
        assert write(a=1) not in malformed
        assert write(b=2) not in malformed
        assert message.get("content") == ""


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma4", "kimi_k2", "mistral"])
def test_calls_behind_several_malformed_ones_are_read(name: str) -> None:
    write = WRITERS[name]
    bad = write.call("add", BROKEN[name][0])
    message = read(name, write.answer(write(a=1), bad, bad, write(b=2)))
    assert (calls(message), len(errors(message))) == ([("add", {"a": 1}), ("add", {"b": 2})], 2)


@EVERY
def test_a_call_without_a_name(name: str) -> None:
    write = WRITERS[name]
    message = read(name, write.answer(write.call("", write.arguments({"a": 1}))))
    assert calls(message) == []
    if name == "pythonic":
        return  # `[(a=1)]` does not look like a call
    assert len(errors(message)) == 1, message


@pytest.mark.parametrize("name", OPENING)
def test_payloads_that_are_not_calls(name: str) -> None:
    for payload in ('{"name": 3, "arguments": {}}', "null", "3", "[]", '"add"', "", "[3]", "{}"):
        message = read(name, f"So: {OPENING[name]}{payload}{CLOSING.get(name, '')}")
        assert len(errors(message)) == 1, message
        assert calls(message) == []
        assert words(message) == ["So:"]


@pytest.mark.parametrize("name", OPENING)
def test_a_list_with_one_bad_item(name: str) -> None:
    key, value = ("tool_name", "parameters") if name.startswith("command") else ("name", "arguments")
    items = [{key: "add", value: {"a": 1}}, {value: {}}, 3, {key: "add", value: [1]}, {key: "say", value: {}}]
    listed = json.dumps(items)
    message = read(name, OPENING[name] + listed + CLOSING.get(name, ""))
    assert calls(message) == [("add", {"a": 1}), ("say", {})]
    assert len(errors(message)) == 1
    assert errors(message)[0].count('needs a "name"') == 2
    assert errors(message)[0].count("must be a JSON object") >= 1


@EVERY
def test_a_call_that_was_cut_is_not_a_call(name: str) -> None:
    """The remaining part is text as long as it could be text, and then malformed. It is never another call."""
    if name == "react":
        return  # in ReAct an action without input is a call without arguments: tests/tool_calls/test_react.py
    write = WRITERS[name]
    whole = write("say", text="75 001", code="x")
    meant = calls(read(name, whole))
    named = whole.index("say") + len("say")
    for length in range(1, len(whole)):
        message = read(name, whole[:length])
        assert calls(message) in ([], meant), whole[:length]
        assert not (errors(message) and calls(message)), whole[:length]
        if length > named:
            assert errors(message) or calls(message), whole[:length]
        if calls(message):  # only marks are missing
            assert "x" in whole[:length].partition("75 001")[2]


@pytest.mark.parametrize("name", CLOSING)
def test_the_closing_marker_may_be_missing(name: str) -> None:
    write, closing = WRITERS[name], CLOSING[name]
    first, second = (text.removesuffix(closing) for text in (write(a=1), write(b=2)))
    assert first + closing == write(a=1)
    between = "<|eom|><|start|>assistant" if name == "atem" else "\n"
    for calls_written in ([write(a=1), second], [first, second], [first, write(b=2)]):
        message = read(name, between.join(calls_written))
        assert calls(message) == [("add", {"a": 1}), ("add", {"b": 2})]
        assert "malformed" not in message


def test_llama_calls_before_a_python_tag() -> None:
    write = WRITERS["llama3"]
    message = read("llama3", f"{write(a=1)}<|python_tag|>{write(b=2)}")
    assert calls(message) == [("add", {"a": 1}), ("add", {"b": 2})]


# Arguments.

ONE = {"a": 1, "f": {"k": [1, "x"]}}


@pytest.mark.parametrize("name", [name for name in JSON if name not in NAMED])
def test_arguments_as_text_are_read(name: str) -> None:
    text = json.dumps(ONE)
    for written in (text, json.dumps(text), text[1:-1], json.dumps(text[1:-1])):  # twice, and without braces
        if name != "react":
            written = json.dumps(written)
        elif written == text[1:-1]:  # there the arguments are text already
            continue
        assert calls(read(name, WRITERS[name].call("add", written))) == [("add", ONE)]


@pytest.mark.parametrize("name", NAMED)
def test_where_the_name_stands_outside_the_arguments_are_json(name: str) -> None:
    write = WRITERS[name]
    for text in (json.dumps(json.dumps(ONE)), json.dumps(json.dumps(json.dumps(ONE)))):
        assert calls(read(name, write.call("add", text))) == [("add", ONE)]
    for text in (json.dumps(ONE)[1:-1], "null"):
        message = read(name, write.answer(write.call("add", text)))
        assert calls(message) == []
        assert len(errors(message)) == 1


@pytest.mark.parametrize("name", JSON)
def test_python_literals_only_where_the_format_writes_them(name: str) -> None:
    write = WRITERS[name]
    literal = str({"a": 1, "d": True, "text": None, "g": "it's"})
    for text in (literal, json.dumps(literal)):
        message = read(name, write.answer(write.call("say", text)))
        if name == "react":  # models without tool support were not trained to write JSON
            assert calls(message) == [("say", {"a": 1, "d": True, "text": None, "g": "it's"})]
        else:
            assert calls(message) == []
            assert len(errors(message)) == 1
    assert calls(read(name, "{'name': 'say', 'arguments': {}}")) == []


@pytest.mark.parametrize("name", PYTHON)
def test_python_literals_and_json_in_python_calls(name: str) -> None:
    write = WRITERS[name]
    text = "text='it\\'s', code=\"x\", other=[True, None, ('a', 1.5), {\"k\": null, 'l': false}]"
    other = [True, None, ["a", 1.5], {"k": None, "l": False}]
    assert calls(read(name, write.call("say", text))) == [("say", {"text": "it's", "code": "x", "other": other})]


NUMBERS: list[tuple[str, str, Any]] = [
    ("a", "3.0", 3),
    ("a", "three", "three"),
    ("c", "2.5e3", 2500.0),
    ("c", "1e999", "1e999"),
    ("d", "true", True),
    ("e", "[1, 2]", [1, 2]),
    ("f", '{"x": null}', {"x": None}),
    ("g", "null", None),
    ("unknown", "3", "3"),
]


@EVERY
def test_text_becomes_what_the_schema_says(name: str) -> None:
    write = WRITERS[name]
    for key, text, value in NUMBERS:
        [(_, arguments)] = calls(read(name, write.answer(write(**{key: text}))))
        assert json.dumps(arguments) == json.dumps({key: value}), text  # 1 is not 1.0, nor True


@EVERY
def test_text_stays_where_the_schema_allows_it(name: str) -> None:
    write = WRITERS[name]
    for text in ("75001", "true", "null", "[1]", "1.50", " 3 "):
        for key in ("text", "code", "other", "unknown"):
            value = None if name in TEXT and (key, text) == ("code", "null") else text
            assert calls(read(name, write("say", **{key: text}))) == [("say", {key: value})]
        assert calls(read(name, write("nobody_knows_it", a=text))) == [("nobody_knows_it", {"a": text})]
