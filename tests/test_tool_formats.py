"""Tool-call formats: what a model may write, and the message that it means."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import trl.chat_template_utils as trl_templates

from gymnast.envs.core import ConfigurationError, Message, ToolSchema
from gymnast.trainer import FORMATS, ChatFormat
from gymnast.trainer.tiny import CHAT_TEMPLATE, make_tiny_tokenizer
from gymnast.trainer.tool_formats import PROBE_CALL, JSONFormat, recognise

HERMES, LLAMA3 = FORMATS["hermes"], FORMATS["llama3"]
ADD: ToolSchema = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def hermes(name: str = "add", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def llama(name: str = "add", **arguments: Any) -> str:
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def calls(message: Message) -> list[tuple[str, Any]]:
    return [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", [])]


def read(format: JSONFormat, text: str, prefix: str = "") -> Message:
    return format.parse(text, prefix=prefix, tools=[ADD])


def errors(message: Message) -> list[str]:
    return [each["error"] for each in message.get("malformed", [])]


BOTH = pytest.mark.parametrize(("format", "write"), [(HERMES, hermes), (LLAMA3, llama)], ids=["hermes", "llama3"])
Write = Callable[..., str]


@BOTH
def test_one_call(format: JSONFormat, write: Write) -> None:
    message = read(format, write(a=1, b=2))
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
        ],
    }


@BOTH
@pytest.mark.parametrize("between", ["\n", "", "  \n "])
def test_several_calls(format: JSONFormat, write: Write, between: str) -> None:
    message = read(format, between.join([write(a=1), write("sub", b=2), write()]))
    assert calls(message) == [("add", {"a": 1}), ("sub", {"b": 2}), ("add", {})]
    assert [each.get("id") for each in message.get("tool_calls", [])] == ["call_0", "call_1", "call_2"]
    assert "malformed" not in message


def test_several_llama_calls_may_be_separated_by_semicolons() -> None:
    assert calls(read(LLAMA3, f"{llama(a=1)}; {llama(b=2)}")) == [("add", {"a": 1}), ("add", {"b": 2})]


def test_text_beside_calls_is_content() -> None:
    message = read(HERMES, f"Let me see.\n{hermes(a=1)}\nThen\n{hermes(b=2)}\nDone.")
    assert message.get("content") == "Let me see.\n\nThen\n\nDone."
    assert len(calls(message)) == 2
    message = read(LLAMA3, f"Let me see. <|python_tag|>{llama(a=1)} Done.")
    assert message.get("content") == "Let me see.  Done."
    assert calls(message) == [("add", {"a": 1})]


@pytest.mark.parametrize(
    "text", ["The set {1, 2}.", f"I could write {llama(a=1)}", '{"answer": 42}', "{}", "[1]", '"x"', "", " \n", "{nope"]
)
def test_answers_that_are_no_llama_calls_stay_as_they_are(text: str) -> None:
    assert read(LLAMA3, text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("text", ["Plain.", "", "</tool_call>", '{"name": "add", "arguments": {}}', " two  spaces \n"])
def test_answers_without_hermes_calls_stay_as_they_are(text: str) -> None:
    assert read(HERMES, text) == {"role": "assistant", "content": text}


@BOTH
@pytest.mark.parametrize("opened_by_template", [False, True])
def test_thinking_is_kept_apart(format: JSONFormat, write: Write, opened_by_template: bool) -> None:
    thought = f"A call such as {hermes(a=9)} or {llama(a=9)}?\n</think>\n\n{write(a=1)}"
    text, prefix = (thought, "<|im_start|>assistant\n<think>\n") if opened_by_template else (f"<think>\n{thought}", "")
    message = read(format, text, prefix)
    assert message.get("reasoning_content") == f"A call such as {hermes(a=9)} or {llama(a=9)}?"
    assert calls(message) == [("add", {"a": 1})]
    assert message.get("content") == ""


@BOTH
def test_thinking_that_was_cut_is_all_thinking(format: JSONFormat, write: Write) -> None:
    message = read(format, f"<think>I call {write(a=1)}")
    assert message == {"role": "assistant", "content": "", "reasoning_content": f"I call {write(a=1)}"}


def test_thinking_that_the_template_closed_is_not_ours() -> None:
    assert "reasoning_content" not in read(HERMES, "Yes.", "<think>\n\n</think>\n\n")


BROKEN = {
    '{"name": "add", "arguments": {"a": 1}': "not valid JSON",
    '{"name": "add", "arguments": {"a": 1}}}': "not valid JSON",
    "{'name': 'add', 'parameters': {}, \"name\": }": "not valid JSON",
    '{"name": "add", "arguments": {"a": NaN}}': "NaN is not a JSON number",
    '{"name": "add", "arguments": {"a": "\\ud800"}}': "not valid JSON",
    '{"name": "add", "arguments": ' + "[" * 100_000: "not valid JSON",
    '{"parameters": {"a": 1}}': 'needs a "name"',
    '{"name": "", "arguments": {}}': 'needs a "name"',
    '{"name": 3, "arguments": {}}': 'needs a "name"',
    '{"name": "add", "arguments": [1, 2]}': "must be a JSON object",
    '{"name": "add", "arguments": 0}': "must be a JSON object",
    '{"name": "add", "arguments": []}': "must be a JSON object",
}


@pytest.mark.parametrize("payload", BROKEN, ids=range(len(BROKEN)))
def test_malformed_hermes_calls(payload: str) -> None:
    message = read(HERMES, f"So: <tool_call>\n{payload}\n</tool_call>\n{hermes(b=2)}")
    assert len(errors(message)) == 1
    assert BROKEN[payload] in errors(message)[0]
    assert message.get("malformed", [])[0]["text"] == f"<tool_call>\n{payload}\n</tool_call>"
    assert calls(message) == [("add", {"b": 2})]
    assert message.get("content") == "So:"


@pytest.mark.parametrize("payload", BROKEN, ids=range(len(BROKEN)))
def test_malformed_llama_calls(payload: str) -> None:
    if payload.endswith("}}}"):
        return  # a whole call, and then text
    message = read(LLAMA3, payload)
    assert len(errors(message)) == 1
    assert BROKEN[payload] in errors(message)[0]
    assert calls(message) == []


@pytest.mark.parametrize("payload", ["null", "3", "[]", '"add"', ""])
def test_hermes_payloads_that_are_no_objects(payload: str) -> None:
    assert len(errors(read(HERMES, f"<tool_call>{payload}</tool_call>"))) == 1


TRICKY = ["</tool_call>", "<tool_call>", '"}} </tool_call> {"name": "x"}', "{", "}", "\\", '"', "<think>", "ü ☀ 𝄞 日本"]


@BOTH
@pytest.mark.parametrize("value", TRICKY)
def test_markers_and_braces_within_strings_end_nothing(format: JSONFormat, write: Write, value: str) -> None:
    message = read(format, f"{write(text=value)}\n{write(a=1)}")
    assert calls(message) == [("add", {"text": value}), ("add", {"a": 1})]
    assert message.get("content") == ""


def test_arguments_as_a_json_string_are_left_to_the_tools() -> None:
    assert calls(read(HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>')) == [
        ("add", '{"a": 1}')
    ]


@pytest.mark.parametrize("length", range(len("<tool_call>"), len(hermes(a=1, b="x")) - len("}\n</tool_call>") + 1))
def test_a_call_that_was_cut_is_malformed(length: int) -> None:
    message = read(HERMES, hermes(a=1, b="x")[:length])
    assert len(errors(message)) == 1
    assert calls(message) == []


def test_only_the_closing_marker_is_missing() -> None:
    assert calls(read(HERMES, hermes(a=1).removesuffix("</tool_call>"))) == [("add", {"a": 1})]
    assert calls(read(HERMES, hermes(a=1).removesuffix("</tool_call>") + hermes(b=2))) == [
        ("add", {"a": 1}),
        ("add", {"b": 2}),
    ]


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "{",
    "}",
    "[",
    '"',
    ":",
    ",",
    ";",
    "\n",
]
PIECES += [
    '{"name": "add"',
    '"parameters"',
    '"arguments"',
    "1e999",
    "-",
    "NaN",
    "\\u",
    "\\ud800",
    "ü",
    "\ud83d",
    "\x00",
]


def mutated(rng: random.Random) -> str:
    """A completion in the making: calls with pieces put in, taken out and swapped."""
    text = "".join(
        rng.choice([*[hermes(a=1), llama(b="x")] * 4, "Text. ", *PIECES]) for _ in range(rng.randrange(1, 6))
    )
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice([*PIECES, ""]) + text[start + rng.randrange(6) :]
    return text


def test_nothing_that_a_model_may_write_raises() -> None:
    rng = random.Random(0)
    templated = ChatFormat(templated_tokenizer()).tool_format
    assert templated is not None
    seen = {"tool_calls": 0, "malformed": 0, "reasoning_content": 0}
    for index in range(20_000):
        text, prefix = mutated(rng), rng.choice(["", "", "", "", "assistant\n<think>\n"])
        for each in (HERMES, LLAMA3, templated) if index % 5 == 0 else (HERMES, LLAMA3):
            message = each.parse(text, prefix=prefix, tools=[ADD])
            assert message["role"] == "assistant"
            assert isinstance(message.get("content"), str)
            json.dumps(message.get("tool_calls", []), ensure_ascii=False).encode()
            for key in seen:
                seen[key] += key in message
    assert min(seen.values()) > 1000, seen


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_time_grows_with_length_not_faster(format: JSONFormat) -> None:
    """A hostile answer must not stop the event loop: these were quadratic with a pattern that looks ahead."""
    for text in ("<tool_call>" * 10_000, '{"name": ' * 10_000, '{"name": "x"} ' * 10_000, "<|python_tag|>{" * 10_000):
        started = time.process_time()
        read(format, text)
        assert time.process_time() - started < 1.0  # measured: 0.02 to 0.1


# Recognition.


def test_recognised_by_markers_and_by_reading_what_the_template_writes() -> None:
    def render() -> str:
        return hermes("probe_tool", **PROBE_CALL["function"]["arguments"])  # type: ignore[arg-type]

    found, reason = recognise("... <tool_call> ... arguments", render)
    assert found is HERMES
    assert "markers" in reason
    found, reason = recognise("... arguments", render)
    assert found is None
    assert "hermes (its template has no '<tool_call>')" in reason
    found, reason = recognise(
        "<tool_call> arguments", lambda: "<tool_call><function=probe_tool></function></tool_call>"
    )
    assert found is None
    assert "does not read the call that the template renders" in reason


def test_markers_alone_are_not_equality() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("To call:", "In order to call:")
    assert ChatFormat(tokenizer).tool_format is HERMES


# The tokenizer's own template, and the user's parser.


def tiny_tokenizer() -> Any:
    return make_tiny_tokenizer(["x"], vocab_size=300)


@cache
def templated_tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = trl_templates.qwen3_template
    return tokenizer


def parse(chat: ChatFormat, text: str, prompt: str = "<|im_start|>assistant\n") -> Message:
    ids = chat.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    return chat.parse(chat.tokenizer.encode(prompt, add_special_tokens=False), ids, [ADD])


def test_response_template_comes_first() -> None:
    chat = ChatFormat(templated_tokenizer())
    assert chat.tool_format_reason == "the tokenizer's response_template"
    message = parse(chat, f"<think>\nHm.\n</think>\n\nSo:\n{hermes(a=1)}\n{hermes(b=2)}")
    assert calls(message) == [("add", {"a": 1}), ("add", {"b": 2})]
    assert (message.get("reasoning_content") or "").strip() == "Hm."
    assert message.get("content") == "So:"


def test_response_template_sees_only_the_answer() -> None:
    """The prompt ends with text that looks like a call; the anchor keeps it out, however near it is."""
    chat = ChatFormat(templated_tokenizer())
    prompt = f"<|im_start|>user\n{hermes(a=9)}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    message = parse(chat, "Hm.</think>Yes.", prompt)
    assert calls(message) == []
    assert (message.get("reasoning_content") or "").strip() == "Hm."
    assert message.get("content") == "Yes."


@pytest.mark.parametrize("broken", ['{"name": "add", "arguments": {"a": 1', "{]", '{"arguments": {}}', "3"])
def test_response_template_with_malformed_output(broken: str) -> None:
    message = parse(ChatFormat(templated_tokenizer()), f"<think>Hm.</think><tool_call>\n{broken}\n</tool_call>")
    assert calls(message) == []
    assert len(errors(message)) == 1
    assert message.get("reasoning_content") == "Hm."


def test_response_template_that_cannot_be_used() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = {"fields": {}}
    with pytest.raises(ConfigurationError, match="response_template cannot be used"):
        ChatFormat(tokenizer)
    tokenizer.response_template = trl_templates.llama3_template
    with pytest.raises(ConfigurationError, match="response_template does not read the call"):
        ChatFormat(tokenizer).check_tools([ADD])


def test_a_users_parser() -> None:
    def parser(text: str) -> Message:
        name, _, number = text.partition(" ")
        arguments = {"a": int(number)}  # a ValueError says: malformed
        return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}

    chat = ChatFormat(tiny_tokenizer(), tool_format=parser)
    assert calls(parse(chat, "add 3")) == [("add", {"a": 3})]
    assert "invalid literal" in errors(parse(chat, "add x"))[0]
    chat = ChatFormat(tiny_tokenizer(), tool_format=lambda text: "text")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="must return an assistant message"):
        parse(chat, "x")


def test_a_format_by_name_or_object() -> None:
    assert ChatFormat(tiny_tokenizer(), tool_format="llama3").tool_format is LLAMA3
    assert ChatFormat(tiny_tokenizer(), tool_format=LLAMA3).tool_format is LLAMA3
    with pytest.raises(ConfigurationError, match=r"unknown tool_format 'xml'; known are \['hermes', 'llama3'\]"):
        ChatFormat(tiny_tokenizer(), tool_format="xml")
    with pytest.raises(ConfigurationError, match="must be a name, a ToolFormat or a function, got 3"):
        ChatFormat(tiny_tokenizer(), tool_format=3)  # type: ignore[arg-type]


def test_vllms_parsers_need_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read is tested with vLLM, in `tests/with_vllm`."""
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(ConfigurationError, match=r"vLLM is not installed: pip install 'gymnast\[vllm\]'"):
        ChatFormat(tiny_tokenizer(), tool_format="vllm:hermes")
    with pytest.raises(ConfigurationError, match="and 'vllm:' with the name of one of vLLM's tool parsers"):
        ChatFormat(tiny_tokenizer(), tool_format="hermes2")
