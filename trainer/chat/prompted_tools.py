"""Describes tools in the prompt, for models whose chat template does not render tools; see `ReActFormat`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from ...envs.core import ConfigurationError, Message, ToolSchema
from ...envs.images import images_of
from ...envs.runtime.message_text import named_text
from ..tool_calls.formats import ToolFormat
from ..tool_calls.react import describe_tools
from .chat_template import ChatTemplate, FromTool, Verbatim
from .turn_endings import TurnEndings


class PromptedFormat(ToolFormat, Protocol):
    """A tool format that describes the tools to the model itself, as `ReActFormat` does."""

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Return the beginning of the system message: the tools, and how to call them."""
        ...

    def observation(self, results: Sequence[Message]) -> Message:
        """Return the user's message with the results of the model's calls."""
        ...


class PromptTools:
    """Puts tools into the prompt, and, where the format says how, their results into user's messages.

    If the template has no system message, the tools go into the first user's message. A tool format that does not
    describe tools itself (`PromptedFormat`) is shown by a call, as the template renders it.
    """

    def __init__(self, found: Any, template: ChatTemplate, endings: TurnEndings) -> None:
        instructions = getattr(found, "instructions", None)
        self._instructions = (
            partial(_by_example, endings) if instructions is None else lambda tools: [instructions(tools)]
        )
        self._observation = getattr(found, "observation", None)
        self._has_system = _has_system(template)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Message]:
        """Return an episode's first messages, with the tools."""
        runs = itertools.groupby(messages, key=lambda message: message["role"] == "tool")
        messages = list(itertools.chain.from_iterable(self.observation(list(run)) for _, run in runs))
        if not tools:
            return messages
        role = "system" if self._has_system else "user"
        if all(message["role"] != role for message in messages):
            messages = [{"role": role}, *messages]
        index = next(i for i, message in enumerate(messages) if message["role"] == role)
        prompt: Message = {**messages[index], "content": _parts(self._instructions(tools), messages[index])}
        return [*messages[:index], prompt, *messages[index + 1 :]]

    def observation(self, messages: Sequence[Message]) -> list[Message]:
        """Return the new messages, with all results and the user's next message in one user's message."""
        results = [message for message in messages if message["role"] == "tool"]
        if not results or self._observation is None:
            return list(messages)
        told = [{**result, "content": named_text(result)} for result in results]
        text = FromTool(self._observation(told)["content"])
        others = [message for message in messages if message["role"] != "tool"]
        said: Any = others.pop(0) if others and others[0]["role"] == "user" else {}
        pictures = [{"type": "image", "image": image} for image in images_of(results)]
        return [{"role": "user", "content": _parts([text], said, pictures)}, *others]


def _by_example(endings: TurnEndings, tools: Sequence[ToolSchema]) -> list[str]:
    """Describe the tools, and show a call as the model has to write it, with control tokens."""
    example = endings.render_call("tool_name", {"key": "value"})
    assert example is not None
    syntax = "To call a tool, write its name and its arguments exactly like this:\n\n"
    return [describe_tools(tools, syntax), Verbatim(example[1].strip())]


def _parts(texts: Sequence[str], message: Message, pictures: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return texts and pictures, followed by a message's content, as content parts."""
    content = message.get("content")
    said = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    parts = [*({"type": "text", "text": text} for text in texts), *pictures]
    return [*parts, {"type": "text", "text": "\n\n"}, *said] if said else parts


def _has_system(template: ChatTemplate) -> bool:
    system: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    try:
        return "Be brief." in template.render(system, tools=template.least_tools, more=True)
    except ConfigurationError:
        return False
