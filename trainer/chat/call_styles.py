"""How calls and results have to look so that a chat template renders them, and the probes for `turn_endings.py`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.core import Message, ToolCall
from ..tool_calls.call_arguments import read_arguments
from ..tool_calls.formats import Conventions, ToolFormat
from .chat_template import PROBE_TOOL

SENTINEL = "qZ7answerZq"  # letters and a digit only, so that no template or JSON escape changes it
CONTENTS = ("Sunny.", "Rainy.")
PROBE_CALL: Any = {
    "type": "function",
    "function": {"name": "probe_tool", "arguments": {"city": "Zürich", "days": 3}},
}


@dataclass(kw_only=True, slots=True, frozen=True)
class CallStyle:
    """How an answer with calls and its results have to look so that the template renders them.

    Attributes:
        conventions: The form that the family's templates require.
        as_text: The arguments are JSON text, not objects.
        single: Only the first call is rendered, since the template refuses or drops the others.
        written: The template renders no calls: an answer's content is the text that the model wrote, calls included.
        result_role: The role of a tool's result.
        content: The content of an answer with calls.
    """

    conventions: Conventions
    as_text: bool = False
    single: bool = False
    written: bool = False
    result_role: str = "tool"
    content: str | None = ""

    def id_of(self, name: str, index: int) -> str:
        return self.conventions.call_id.format(name=name, index=index)

    def answer(self, results: Sequence[Message], value: Any = SENTINEL) -> Message:
        """An assistant message whose calls these results answer; the last argument of the last call is `value`."""
        if self.written:
            return {"role": "assistant", "content": value}
        answered: Any = results[:1] if self.single else results
        calls = [
            self.call(each["name"], {"value": value if each is answered[-1] else "x"}, each.get("tool_call_id", ""))
            for each in answered
        ]
        return self.calling(calls)

    def calling(self, calls: Sequence[ToolCall]) -> Message:
        """An assistant message with these calls and no text."""
        message: Any = {"role": "assistant", "content": self.content, "tool_calls": list(calls)}
        return message

    def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolCall:
        written: Any = json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}

    def conversation(self, messages: Sequence[Message]) -> list[Message]:
        """Messages with earlier calls and their results as the template takes them, with ids."""
        made: list[Message] = []
        count = 0  # of calls so far
        waiting: list[tuple[ToolCall, ToolCall]] = []  # calls without a result yet, as given and as made
        for each in messages:
            calls = each.get("tool_calls")
            if calls:
                adapted = self.adapted(calls, count)
                count += len(calls)
                waiting = list(zip(calls, adapted, strict=True))
                styled: Message = {**each, "tool_calls": adapted}
                made.append(styled)
            else:
                made.append(self.result(_answering(each, waiting), count) if each["role"] == "tool" else each)
        return made

    def adapted(self, calls: Sequence[ToolCall], calls_before: int) -> list[ToolCall]:
        """Calls of an earlier answer, with arguments and ids as the template takes them."""
        made: list[ToolCall] = []
        for call in self.with_ids(calls, calls_before):
            arguments: Any = call["function"]["arguments"]
            if isinstance(arguments, str):
                arguments = read_arguments(arguments)
            made.append(self.call(call["function"]["name"], arguments, call.get("id", "")))
        return made

    def result(self, message: Message, index: int) -> Message:
        """A tool's message as the template takes it, with a name and an id that it may look up in the calls."""
        name = message.get("name") or "unknown"
        call_id = self.fitting_id(message.get("tool_call_id"), name, index)
        return {**message, "role": self.result_role, "name": name, "tool_call_id": call_id}

    def results(self, count: int) -> list[Message]:
        """Results of the probe tool, with `CONTENTS`."""
        name = PROBE_TOOL["function"]["name"]
        return [self.result({"role": "tool", "name": name, "content": CONTENTS[i % 2]}, i) for i in range(count)]

    def fitting_id(self, given: Any, name: str, index: int) -> str:
        """The id of a call as the template takes it: the given one if it fits."""
        fits = isinstance(given, str) and re.fullmatch(self.conventions.allowed_ids, given)
        return given if fits else self.id_of(name, index)

    def with_ids(self, calls: Sequence[ToolCall], calls_before: int) -> list[ToolCall]:
        """The calls of an answer, each with an id of its own."""
        made: list[ToolCall] = []
        seen: set[str] = set()
        for index, call in enumerate(calls, start=calls_before):
            name = call["function"]["name"]
            call_id = self.fitting_id(call.get("id"), name, index)
            while call_id in seen:
                index += len(calls)
                call_id = self.id_of(name, index)
            seen.add(call_id)
            made.append({**call, "id": call_id})
        return made


def _answering(result: Message, waiting: list[tuple[ToolCall, ToolCall]]) -> Message:
    """A result with the name and the id of its call, which is taken from `waiting`: by id, or else the next call."""
    if not waiting:
        return result
    given = result.get("tool_call_id")
    index = next((i for i, (call, _) in enumerate(waiting) if given and call.get("id") == given), 0)
    _, call = waiting.pop(index)
    return {**result, "name": result.get("name") or call["function"]["name"], "tool_call_id": call.get("id", "")}


def call_styles(conventions: Conventions) -> Iterator[CallStyle]:
    """The styles to try; a style that renders more of a conversation comes first."""
    for role, single, as_text in itertools.product(conventions.result_roles, (False, True), (False, True)):
        yield CallStyle(conventions=conventions, single=single, as_text=as_text, result_role=role)
    for role in conventions.result_roles:
        yield CallStyle(conventions=conventions, written=True, result_role=role)


def reads_probe(found: ToolFormat, probe: tuple[str, str] | None) -> bool:
    """Whether the format reads just `PROBE_CALL` in the answer of `TurnEndings.probe_call`; true without a probe."""
    if probe is None:
        return True
    message = found.parse(probe[1], prefix=probe[0], tools=[PROBE_TOOL])
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return calls == [PROBE_CALL["function"]] and "malformed" not in message


def claims_probe(found: ToolFormat, probe: tuple[str, str]) -> bool:
    """Whether the format takes the answer of `TurnEndings.probe_call` for a malformed call."""
    return "malformed" in found.parse(probe[1], prefix=probe[0], tools=[PROBE_TOOL])
