"""Tools through the prompt: for models whose chat template cannot tell of tools; see `ReActFormat`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..envs.core import ConfigurationError, Message, ToolSchema
from .react import describe_tool
from .template import ChatTemplate, FromTool, Verbatim
from .turns import Turns


class PromptTools:
    """Puts tools into the prompt, and, where the format says how, their results into user's messages.

    Args:
        found: How the model calls; it may say itself what the model is told (`instructions`, `observation`: ReAct).
            Otherwise the model is shown a call as its template renders it.
        template: Tells whether there may be a system message; without, the first user's message gets the tools.
        turns: Renders the call.
    """

    def __init__(self, found: Any, template: ChatTemplate, turns: Turns) -> None:
        self._instructions = getattr(found, "instructions", None) or partial(_by_example, turns)
        self._observation = getattr(found, "observation", None)
        self._has_system = _has_system(template)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Message]:
        """An episode's first messages, with the tools."""
        if not tools:
            return list(messages)
        instructions = Verbatim(self._instructions(tools))
        role = "system" if self._has_system else "user"
        index = next((i for i, each in enumerate(messages) if each["role"] == role), None)
        if index is None:
            alone: Message = {"role": role, "content": instructions}
            return [alone, *messages]
        told: Message = {**messages[index], "content": _parts(instructions, messages[index])}
        return [*messages[:index], told, *messages[index + 1 :]]

    def observation(self, messages: Sequence[Message]) -> list[Message]:
        """New messages, with all results in one user's message, and what a user says after them in the same one."""
        results = [each for each in messages if each["role"] == "tool"]
        if not results or self._observation is None:
            return list(messages)
        told = FromTool(self._observation(results)["content"])
        others = [each for each in messages if each["role"] != "tool"]
        said = _parts(told, others.pop(0)) if others and others[0]["role"] == "user" else told
        return [{"role": "user", "content": said}, *others]


def _by_example(turns: Turns, tools: Sequence[ToolSchema]) -> str:
    example = turns.render_call("tool_name", {"key": "value"})
    assert example is not None
    syntax = f"To call a tool, write its name and its arguments exactly like this:\n\n{example[1].strip()}"
    return "\n\n".join(["You have these tools:", *map(describe_tool, tools), syntax])


def _parts(text: str, message: Message) -> list[dict[str, str]]:
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [{"type": "text", "text": text}, {"type": "text", "text": "\n\n"}, *parts]


def _has_system(template: ChatTemplate) -> bool:
    system: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    try:
        return "Be brief." in template.render(system, more=True)
    except ConfigurationError:
        return False
