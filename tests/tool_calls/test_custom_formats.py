"""Formats from elsewhere: the tokenizer's response template, a user's parser, vLLM's; recognition, and ids of calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import trl.chat_template_utils as trl_templates

from gymnast.envs.core import ConfigurationError, Message, ToolSchema
from gymnast.envs.tokens import Tokens
from gymnast.trainer import FORMATS, ChatFormat, TextFormat, recognise_tool_format, tagged
from gymnast.trainer.testing.tiny import CHAT_TEMPLATE, make_tiny_tokenizer
from gymnast.trainer.tool_calls import named_json

from .writers import WRITERS, calls, errors

hermes = WRITERS["hermes"]
ADD: ToolSchema = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def tiny_tokenizer() -> Any:
    return make_tiny_tokenizer(["x"], vocab_size=300)


@cache
def templated_tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = trl_templates.qwen3_template
    return tokenizer


def parse(chat: ChatFormat, text: str, prompt: str = "<|im_start|>assistant\n") -> Message:
    ids = chat.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    return chat.parse(Tokens(chat.tokenizer.encode(prompt, add_special_tokens=False)), ids, [ADD])


# Recognition.


def test_recognised_by_markers_and_by_reading_what_the_template_writes() -> None:
    found = recognise_tool_format(tiny_tokenizer())
    assert found.format is FORMATS["hermes"]
    assert "markers ['<tool_call>', 'arguments'] and a call it rendered" in found.reason
    assert "the template has no '<|START_ACTION|>'" in found.looked_for["command_r7b"]

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("tool_call>", "a_call>")
    found = recognise_tool_format(tokenizer)
    assert found.format is None
    assert "no format reads the call that the chat template renders, '<a_call>" in found.reason
    assert found.looked_for["hermes"] == "the template has no '<tool_call>'"

    tokenizer.chat_template = "{# like <tool_call> with arguments #}" + tokenizer.chat_template
    assert recognise_tool_format(tokenizer).looked_for["hermes"] == "the template has no '<tool_call>'"

    tokenizer.chat_template = CHAT_TEMPLATE.replace('{"name": \' ~', '{"nom": \' ~')
    assert tokenizer.chat_template != CHAT_TEMPLATE
    found = recognise_tool_format(tokenizer)
    assert found.format is None
    assert "it does not read the call that the template renders" in found.looked_for["hermes"]


# The tokenizer's own template.


def test_response_template_comes_first() -> None:
    chat = ChatFormat(templated_tokenizer())
    assert chat.recognition.reason == "the tokenizer's response_template"
    answer = hermes.answer(hermes(a=1), hermes(b=2), before="<think>\nHm.\n</think>\n\nSo:")
    message = parse(chat, answer)
    assert calls(message) == [("add", {"a": 1}), ("add", {"b": 2})]
    assert (message.get("reasoning_content") or "").strip() == "Hm."
    assert message.get("content") == "So:"


def test_response_template_sees_only_the_answer() -> None:
    """The prompt ends with text that looks like a call. The anchor keeps it out, however near it is."""
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


# Formats and parsers of users.


def test_a_users_parser() -> None:
    def parser(text: str) -> Message:
        name, _, number = text.partition(" ")
        arguments = {"a": int(number)}  # a ValueError says: malformed
        return {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
        }

    chat = ChatFormat(tiny_tokenizer(), tool_format=parser)
    assert calls(parse(chat, "add 3")) == [("add", {"a": 3})]
    assert "invalid literal" in errors(parse(chat, "add x"))[0]
    chat = ChatFormat(tiny_tokenizer(), tool_format=lambda text: "text")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="must return an assistant message"):
        parse(chat, "x")


def test_a_format_by_name_or_object() -> None:
    hermes = FORMATS["hermes"]
    assert ChatFormat(tiny_tokenizer(), tool_format="hermes").tool_format is hermes
    assert ChatFormat(tiny_tokenizer(), tool_format=hermes).tool_format is hermes
    with pytest.raises(ConfigurationError, match=r"unknown tool_format 'xml'; known are \['apertus', 'apriel', "):
        ChatFormat(tiny_tokenizer(), tool_format="xml")
    with pytest.raises(ConfigurationError, match="unknown tool_format 'Hermes'; did you mean 'hermes'"):
        ChatFormat(tiny_tokenizer(), tool_format="Hermes")
    for wrong in (3, TextFormat):
        with pytest.raises(ConfigurationError, match="must be a name, a ToolFormat or a function, got "):
            ChatFormat(tiny_tokenizer(), tool_format=wrong)  # type: ignore[arg-type]


def test_a_format_of_your_own() -> None:
    own = TextFormat(
        name="own",
        spans=tagged("[[", "]]", named_json(r"(?P<name>\w+)\("), optional=r"\)"),
        payload="{name: name, arguments: arguments}",
    )
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "'<tool_call>\\n{\"name\": ' ~ call.name | tojson ~ ', \"arguments\": ' ~ arguments ~ '}\\n</tool_call>'",
        "'[[' ~ call.name ~ '(' ~ arguments ~ ')]]'",
    )
    assert tokenizer.chat_template != CHAT_TEMPLATE
    chat = ChatFormat(tokenizer, tool_format=own)
    chat.check_tools([ADD])
    assert calls(parse(chat, 'So: [[add({"a": 1})]]')) == [("add", {"a": 1})]
    with pytest.raises(ConfigurationError, match="'own' does not read the call"):
        ChatFormat(tiny_tokenizer(), tool_format=own)
    with pytest.raises(ValueError, match=r"payload='\{name' is not a JMESPath expression"):
        TextFormat(name="own", spans=own.spans, payload="{name")


class Slashes:
    """Describes the tools itself, so the template need not render them."""

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        if not text.startswith("/"):
            return {"role": "assistant", "content": text}
        function: Any = {"name": text[1:], "arguments": {}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        return "Write " + " or ".join("/" + tool["function"]["name"] for tool in tools)

    def observation(self, results: Sequence[Message]) -> Message:
        return {"role": "user", "content": "\n".join(f"> {result.get('content')}" for result in results)}


def test_a_format_that_describes_tools_itself() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    )
    chat = ChatFormat(tokenizer, tool_format=Slashes())
    chat.check_tools([ADD])
    prompt = tokenizer.decode(chat.prompt_tokens([{"role": "user", "content": "Go."}], [ADD]).ids)
    assert prompt.startswith("<|im_start|>system\nWrite /add")
    assert calls(parse(chat, "/add")) == [("add", {})]
    result: Message = {"role": "tool", "name": "add", "content": "3"}
    observed = tokenizer.decode(chat.observation_tokens([result], ended_by=chat.end_id, last=True).ids)
    assert observed == "<|im_start|>user\n> 3<|im_end|>"

    class Half:
        parse, instructions = Slashes.parse, Slashes.instructions

    with pytest.raises(
        ConfigurationError, match=r"instructions\(tools\) and observation\(results\), got .* instructions"
    ):
        ChatFormat(tokenizer, tool_format=Half())


@pytest.mark.parametrize("wrong", [{"name": "add"}, {"function": {"name": "add"}}, "add", {"function": "add"}])
def test_wrong_calls_of_a_users_parser(wrong: Any) -> None:
    message: Any = {"role": "assistant", "tool_calls": [wrong]}
    chat = ChatFormat(tiny_tokenizer(), tool_format=lambda text: message)
    with pytest.raises(TypeError, match="must return tool calls such as"):
        parse(chat, "x")


def test_recognition_never_raises() -> None:
    tokenizer = tiny_tokenizer()
    for template in ("{{ 1 // 0 }}", {"rag": CHAT_TEMPLATE}, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"):
        tokenizer.chat_template = template
        found = recognise_tool_format(tokenizer)
        assert found.format is None
        assert found.problem


def read_as(name: str, text: str) -> Message:
    return FORMATS[name].parse(text, prefix="", tools=[ADD])


def test_ids_that_the_model_wrote() -> None:
    texts = {
        "hermes": '<tool_call>{"id": "a1", "name": "add", "arguments": {}}</tool_call>',
        "granite3": '<|tool_call|>[{"name": "add", "arguments": {}, "id": "a1"}]',
        "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {}, "id": "a1"}]',
        "mistral_v11": "[TOOL_CALLS]add[CALL_ID]a1[ARGS]{}",
        "command_r7b": '<|START_ACTION|>[{"tool_call_id": "a1", "tool_name": "add", "parameters": {}}]<|END_ACTION|>',
    }
    for name, text in texts.items():
        assert [call.get("id") for call in read_as(name, text).get("tool_calls", [])] == ["a1"], name
    assert read_as("command_r7b", texts["command_r7b"].replace('"a1"', "0")).get("tool_calls", [])[0].get("id") == "0"
    assert "id" not in read_as("hermes", texts["hermes"].replace('"a1"', "null")).get("tool_calls", [])[0]


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    chat = ChatFormat(tiny_tokenizer())
    written = json.dumps({"id": "mine", "name": "add", "arguments": {}})
    ids = chat.tokenizer.encode(f"{hermes(a=1)}<tool_call>{written}</tool_call>{hermes(b=2)}", add_special_tokens=False)
    message = chat.parse(Tokens([]), ids, [ADD], calls_before=3)
    assert [call.get("id") for call in message.get("tool_calls", [])] == ["call_3", "mine", "call_5"]


def test_vllms_parsers_need_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their reading is tested with vLLM, in `tests/with_vllm`."""
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(ConfigurationError, match="needs the extra `vllm` of gymnast-rl"):
        ChatFormat(tiny_tokenizer(), tool_format="vllm:hermes")
    with pytest.raises(ConfigurationError, match="and 'vllm:' with the name of one of vLLM's tool parsers"):
        ChatFormat(tiny_tokenizer(), tool_format="hermes2")
