"""vLLM's tool parsers as tool formats: `tool_format="vllm:hermes"`.

They are functions of text and need no engine. vLLM has to be installed; it is imported when a parser is asked for.
A parser passes over a call that it cannot read, and the call would count as plain text. So the chat template shows how
a call begins: text that begins so and was not read is a malformed call.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...envs.core import ConfigurationError, Message, ToolCall, ToolSchema
from ..tool_calls.assistant_message import make_call, make_message, split_thinking
from ..tool_calls.value_readers import read_json
from ..vllm import check_vllm
from .chat_template import PROBE_TOOL, QUESTION, ChatTemplate
from .template_probe import reads_probe

VLLM_PREFIX = "vllm:"
_NAME = PROBE_TOOL["function"]["name"]


def vllm_tool_format(
    name: str, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, probe: tuple[str, str]
) -> VLLMToolFormat:
    """Return the tool parser that vLLM's `--tool-call-parser` takes by this name, if it fits the chat template.

    `probe` is a prompt, and the answer that calls `PROBE_CALL`, as the template renders it. Raise a ConfigurationError
    if vLLM is missing or has no such parser, or the parser does not fit the model.
    """
    check_vllm()
    given = f"tool_format={VLLM_PREFIX + name!r}"
    known = _manager().list_registered()
    if name not in known:
        near = get_close_matches(name, known)
        advice = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
        raise ConfigurationError(f"{given}: vLLM has no tool parser of this name; {advice}")
    # A malformed call is an answer like any other, but the parsers log a stack trace for each.
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    # Every parser reads the vocabulary when it is made, which takes long unless it is kept.
    tokenizer = import_module("vllm.tokenizers.hf").get_cached_tokenizer(tokenizer)
    found = VLLMToolFormat(name, tokenizer, template, probe)
    if problem := found.problem():
        fitting = [other for other in known if not VLLMToolFormat(other, tokenizer, template, probe).problem()]
        advice = f"parsers that fit: {', '.join(fitting)}" if fitting else "none of vLLM's parsers fits this model"
        raise ConfigurationError(f"{given}: the parser {problem}; {advice}")
    return found


class VLLMToolFormat:
    """One of vLLM's tool parsers as a `ToolFormat`."""

    def __init__(
        self, name: str, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, probe: tuple[str, str]
    ) -> None:
        self.name = VLLM_PREFIX + name
        self._parser_name = name
        self._tokenizer = tokenizer
        self._probe = probe
        self._beginning = _beginning(split_thinking(probe[1], probe[0])[1], template)

    def problem(self) -> str:
        """Return why the parser cannot be used with this tokenizer and template; empty if it can."""
        try:
            self._parser([PROBE_TOOL])
        except Exception as error:  # vLLM's own code may raise anything here, for example if a token is missing
            return f"cannot be used with this tokenizer: {error}"
        reads = reads_probe(self, self._probe)
        return "" if reads else f"does not read the call that the chat template renders, {self._probe[1]!r}"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        thinking, text = split_thinking(text, prefix)
        extract = self._parser(tools)
        try:
            found = extract(text)
        except Exception as error:  # the parser's own code runs here, and may raise anything
            content, calls, errors = "", [], [str(error) or type(error).__name__]
        else:
            calls, errors = _read_calls(found.tool_calls)
            content = found.content or ("" if calls else text)  # some parsers drop text that looks like a call
        starts = self._beginnings(text, tools)
        arguments = [json.dumps(call["function"]["arguments"], ensure_ascii=False) for call in calls]
        within = sum(len(self._beginnings(written, tools)) for written in arguments)
        if not errors and len(starts) - within > len(calls):
            errors = [f"vLLM's tool parser {self._parser_name!r} could not read it"]
        if not errors:
            return make_message(content, thinking, calls, [])
        start = min(starts, default=0)
        return make_message(text[:start], thinking, calls, [{"text": text[start:], "error": "; ".join(errors)}])

    def _parser(self, tools: Sequence[ToolSchema]) -> Callable[[str], Any]:
        """Return vLLM's function from a text to content and calls. Use it for one text: some parsers keep a state."""
        request = _request(json.dumps(list(tools)))
        parser = _manager().get_tool_parser(self._parser_name)(self._tokenizer, request.tools)
        return lambda text: parser.extract_tool_calls(text, request)

    def _beginnings(self, text: str, tools: Sequence[ToolSchema]) -> list[int]:
        """Return the places of the text where calls begin."""
        names = "|".join(re.escape(tool["function"]["name"]) for tool in tools) or "(?!)"
        pattern = self._beginning.replace(_NAME, f"(?:{names})")
        return [match.start() for match in re.finditer(pattern, text)]


def _manager() -> Any:
    return import_module("vllm.tool_parsers").ToolParserManager


@lru_cache(maxsize=64)
def _request(tools: str) -> Any:
    """Return the request that a parser asks for its tools, from their schemas as JSON."""
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    return protocol.ChatCompletionRequest(messages=[], tools=json.loads(tools) or None)


def _read_calls(found: Sequence[Any]) -> tuple[list[ToolCall], list[str]]:
    """Return vLLM's calls as ours, and the errors of calls that cannot be read (arguments that are not an object)."""
    calls: list[ToolCall] = []
    errors = []
    for call in found:
        try:
            arguments = read_json(call.function.arguments)
            calls.append(make_call({"name": call.function.name, "arguments": arguments}))
        except ValueError as error:
            errors.append(str(error))
    return calls, errors


def _beginning(probe: str, template: ChatTemplate) -> str:
    """Return how a call begins, as a regular expression in which `probe_tool` stands for the name of any tool.

    It is the first tag (`<tool_call>`) that does not occur in plain answers. If there is none: all text before the
    tool's name, however it is spaced. If that is punctuation only (`[`), the name belongs to it.
    """
    plain = template.render([QUESTION, {"role": "assistant", "content": "Hello."}], tools=template.least_tools)
    before, after = re.split(f"{_NAME}|city", probe)[0], probe.partition(_NAME)[2]
    for tag in re.findall(r"<[^<>\s]+>|\[[A-Z_]+\]", before):
        if tag not in plain:
            return re.escape(tag)
    named = re.search(r"\w", before)
    pieces = re.findall(r"\w+|[^\w\s]", before if named else before + _NAME + after[:1])
    return r"\s*".join(map(re.escape, pieces))
