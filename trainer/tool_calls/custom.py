"""Tool formats from elsewhere: the tokenizer's own response template, a user's function, or plain text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jmespath
from transformers.utils.chat_parsing.response_templates import load_response_template

from ...envs.core import ConfigurationError, MalformedCall, Message, ToolSchema
from .assistant_message import make_call, make_message, split_thinking

ToolParser = Callable[[str], Message]
"""A user's own parser: text of one turn -> assistant message. It raises a ValueError if it cannot read the turn."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ResponseTemplateFormat:
    """The tokenizer's own `response_template`.

    Raises:
        ConfigurationError: transformers cannot load it.
    """

    tokenizer: Any
    payload: str = "{name: function.name, arguments: function.arguments, id: id}"
    name: str = "response_template"

    def __post_init__(self) -> None:
        try:
            load_response_template(self.tokenizer.response_template)
        except ValueError as error:
            raise ConfigurationError(f"the tokenizer's response_template cannot be used: {error}") from error

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        try:
            parsed = self.tokenizer.parse_response(text, prefix=prefix, tools=list(tools) or None)
            found = parsed.get("tool_calls") or []
            calls = [make_call(jmespath.search(self.payload, call), tools=tools) for call in found]
            content = parsed.get("content") or ""
            content.encode()
        except Exception as error:  # the template's own code runs here, and may raise anything
            thinking, content = split_thinking(text, prefix)
            malformed: list[MalformedCall] = [{"text": content, "error": str(error) or type(error).__name__}]
            return make_message(content, thinking, [], malformed)
        thinking = parsed.get("reasoning_content") or parsed.get("thinking")
        return make_message(content, thinking, calls, [])


@dataclass(kw_only=True, slots=True, frozen=True)
class CallableFormat:
    """A user's own parser."""

    parser: ToolParser
    name: str = "custom"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        try:
            message = self.parser(text)
        except ValueError as error:
            return make_message(text, None, [], [{"text": text, "error": str(error) or type(error).__name__}])
        if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
            raise TypeError(f"tool_format must return an assistant message (a dict), got {message!r}")
        for call in message.get("tool_calls") or []:
            function: Any = call.get("function") if isinstance(call, dict) else None
            named = isinstance(function, dict) and isinstance(function.get("name"), str)
            if not named or "arguments" not in function:
                form = "{'function': {'name': str, 'arguments': dict}}"
                raise TypeError(f"tool_format must return tool calls such as {form}, got {call!r}")
        return {"content": "", **message, "role": "assistant"}


@dataclass(kw_only=True, slots=True, frozen=True)
class PlainFormat:
    """No calls: the answer is text, perhaps with thinking before it."""

    name: str = "plain"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        thinking, content = split_thinking(text, prefix)
        return make_message(content, thinking, [], [])
