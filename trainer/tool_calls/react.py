"""ReAct: tools through the prompt, for models whose chat template does not know tools.

After "ReAct: Synergizing Reasoning and Acting in Language Models" (Yao et al., arXiv:2210.03629). The model writes

    Thought: what to do
    Action: tool_name
    Action Input: {"key": "value"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...envs.core import Message, ToolSchema
from .formats import KnownFormat, TextFormat
from .literals import PythonLiterals
from .spans import Span
from .value_readers import read_json_at, shorten, skip_space

_SYNTAX = """\
To use a tool, write exactly these three lines, and then stop:

Thought: what to do
Action: tool_name
Action Input: {"key": "value"}

The action is the name of one tool, and its input one JSON object with the arguments ({} where there are none).
The result comes back as `Observation: ...`. Never write an observation yourself.
You may use tools as often as you need. An answer without an action is your final answer."""

# A label begins its line. An observation may have a number and a name, which tell several results apart.
_LABEL = re.compile(
    r"^[ \t]*(?P<name>Action Input|Action|Thought|Final Answer|Observation)"
    r"(?:(?<=Observation)(?: \d{1,9})?(?: \([^()\n]{0,99}\))?)?[ \t]*:",
    re.MULTILINE,
)
_FENCE = re.compile(r"\s*```[\w-]*[ \t]*\n?")
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_FENCE_END = re.compile(r"\s*```[ \t]*(?:\r?\n|\Z)")
_SYNTAX_HINT = "write `Action: tool_name`, and on the next line `Action Input: ` with one JSON object"
_INVENTED = "an Observation was invented; stop after the Action Input and wait for the result"


@dataclass(kw_only=True, slots=True, frozen=True)
class ReActFormat(KnownFormat):
    """Calls as lines of text. `instructions` describes the syntax to the model, `observation` gives it the results."""

    name: str = "react"
    families: str = "models whose chat template does not render tools"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Return the beginning of the system prompt: the tools and how to call them."""
        return describe_tools(tools, _SYNTAX)

    def observation(self, results: Sequence[Message]) -> Message:
        """Return the user message with the results of the model's calls, in their order.

        Raises:
            ValueError: there are no results, or one has content that is not text.
        """
        if not results:
            raise ValueError("an observation needs at least one result, got none")
        if len(results) == 1:
            return {"role": "user", "content": f"Observation: {_text(results[0])}"}
        lines = []
        for number, result in enumerate(results, 1):
            name = result.get("name")
            lines.append(f"Observation {number}{f' ({name})' if name else ''}: {_text(result)}")
        return {"role": "user", "content": "\n".join(lines)}

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        # Without tools the prompt described no labels, and an answer may well have such lines.
        spans = partial(_actions, tools=tools) if tools else lambda _: iter(())
        reader = TextFormat(name=self.name, spans=spans, values="python")
        return reader.parse(text, prefix=prefix, tools=tools)


def _actions(text: str, tools: Sequence[ToolSchema]) -> Iterator[Span]:
    """Cut out the actions, up to the final answer or an observation that the model invented."""
    labels = list(_LABEL.finditer(text))
    acted = False
    for index, label in enumerate(labels):
        if label["name"] == "Final Answer":
            return
        if label["name"] == "Observation" and acted:
            yield Span(start=label.start(), end=len(text), error=_INVENTED)
            return
        if label["name"] == "Action":
            acted = True
            yield _action(text, label, labels[index + 1 : index + 3], tools)


def _action(text: str, label: re.Match[str], following: Sequence[re.Match[str]], tools: Sequence[ToolSchema]) -> Span:
    """Return the action that begins at a label, with the input that the next label may begin."""
    end = text.find("\n", label.end())
    end = len(text) if end < 0 else end
    name, arguments, error = text[label.end() : end].strip(), None, ""
    if following and following[0]["name"] == "Action Input" and not text[end : following[0].start()].strip():
        start = following[0].end()
        stop = following[1].start() if len(following) > 1 else len(text)
        arguments, length, whole = _read_input(text[start:stop])
        end = start + length
        if not arguments:
            error = "the Action Input is empty; write {} for no arguments"
        elif arguments[0] == "{" and not whole:
            written = shorten(arguments)
            error = f"the Action Input of {name!r} must be a JSON object and nothing else, got {written}"
    elif text[end:].strip() or all(tool["function"]["name"] != name for tool in tools):
        error = f"an action without an Action Input; {_SYNTAX_HINT}"
    if not name:
        error = f"the action names no tool; {_SYNTAX_HINT}"
    return Span(start=label.start(), end=end, payload={"name": name, "arguments": arguments}, error=error)


def _read_input(text: str) -> tuple[str, int, bool]:
    """Return the text of an action's input without its fence, its length with the fence, and whether it is one value.

    Args:
        text: The text between the label and the next one. Lines after the input are not part of the input.
    """
    fence = _FENCE.match(text)
    start = skip_space(text, fence.end() if fence else 0)
    end = _value_end(text, start)
    closed = (fence and _FENCE_END.match(text, end)) or _LINE_END.match(text, end) if end > start else None
    return (text[start:end], closed.end(), True) if closed else (text[start:].strip(), len(text), False)


def _value_end(text: str, start: int) -> int:
    """Return the end of the value in JSON or Python that begins at `start`; `start` if there is no complete value."""
    for read in (partial(read_json_at, text), PythonLiterals(text).value):
        with suppress(ValueError, RecursionError, MemoryError):
            return read(start)[1]
    return start


def describe_tools(tools: Sequence[ToolSchema], syntax: str) -> str:
    """Return the tools, and how to call them, as the prompt shows them."""
    texts = ["You have these tools:"]
    for function in [tool["function"] for tool in tools]:
        schema = json.dumps(function.get("parameters") or {}, ensure_ascii=False)
        description = function.get("description") or "no description"
        texts.append(f"{function['name']}: {description}\nParameters (JSON schema): {schema}")
    return "\n\n".join([*texts, syntax])


def _text(message: Message) -> str:
    """Return the text of a result, with its parts joined."""
    content = message.get("content") or ""
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        if part.get("type") != "text":
            raise ValueError(f"an observation takes text only, got a content part of type {part.get('type')!r}")
    return "".join(part["text"] for part in parts)
