"""TurnEndings: the text that a chat template writes after an answer, found by rendering probes.

An observation's text is what follows the answer in a minimal conversation: one question, one answer, the new messages.
That text is well defined if the template ends every answer with the same token, and renders the new messages in the
same way after any history. Both are checked here, once, for answers in text and for answers with calls.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...envs.core import ConfigurationError, Message, ToolCall, ToolSchema
from ...envs.images import images_of
from ...envs.tokens import Tokens
from ..tool_calls.call_arguments import read_arguments
from ..tool_calls.formats import Conventions
from .chat_template import PROBE_TOOL, QUESTION, SENTINEL, ChatTemplate
from .template_probe import CONTENTS, PROBE_CALL, UNDEFINED, TurnEnd, find_turn_end, numbered, tail_if_rendered

_REPLY: Message = {"role": "user", "content": CONTENTS[0]}
_ANSWERED: tuple[Message, ...] = (QUESTION, {"role": "assistant", "content": SENTINEL})
_UNFINISHED_TAG = re.compile(r"(?:<[^<>]*|\[[^\[\]]*)\Z")


@dataclass(kw_only=True, slots=True, frozen=True)
class CallStyle:
    """The form that an answer with calls and its results must have, so that the template renders them."""

    conventions: Conventions
    as_text: bool = False  # the arguments are JSON text, not objects
    single: bool = False  # only the first call is rendered, since the template refuses or drops the others
    written: bool = False  # it renders no calls: an answer's content is the text that the model wrote, calls included
    result_role: str = "tool"
    content: str | None = ""  # of an answer with calls

    def probe(self, count: int) -> tuple[list[Message], list[Message]]:
        """Return a question with an answer of at most two calls, and the results of these calls."""
        name = PROBE_CALL["name"]
        results = [
            self.result({"role": "tool", "name": name, "content": content}, index)
            for index, content in enumerate(CONTENTS[:count])
        ]
        return [QUESTION, self.answer(results)], results

    def answer(self, results: Sequence[Message]) -> Message:
        """Return an answer whose calls have these results. Its last text is the sentinel."""
        if self.written:
            return {"role": "assistant", "content": SENTINEL}
        answered: Any = results[:1] if self.single else results
        values = ["x"] * (len(answered) - 1) + [SENTINEL]
        return self.calling(
            self.call(result["name"], {"value": value}, result.get("tool_call_id", ""))
            for result, value in zip(answered, values, strict=True)
        )

    def calling(self, calls: Iterable[ToolCall]) -> Message:
        """Return an assistant message with these calls and no text."""
        message: Any = {"role": "assistant", "content": self.content, "tool_calls": list(calls)}
        return message

    def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolCall:
        written: Any = json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}

    def result(self, message: Message, index: int) -> Message:
        """Return a tool's message as the template takes it: it may look up the name or the id in the calls."""
        name = message.get("name") or "unknown"
        call_id = self._fitting_id(message.get("tool_call_id"), name, index)
        return {**message, "role": self.result_role, "name": name, "tool_call_id": call_id}

    def conversation(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with earlier calls and their results as the template takes them, with ids."""
        made: list[Message] = []
        count = 0  # of calls so far
        waiting: list[tuple[ToolCall, ToolCall]] = []  # calls without a result yet, as given and as made
        for message in messages:
            if calls := message.get("tool_calls"):
                adapted = [self._adapted(call) for call in self.with_ids(calls, count)]
                count += len(calls)
                waiting = list(zip(calls, adapted, strict=True))
                made.append({**message, "tool_calls": adapted})
            else:
                is_result = message["role"] == "tool"
                made.append(self.result(_answering(message, waiting), count) if is_result else message)
        return made

    def _adapted(self, call: ToolCall) -> ToolCall:
        function = call["function"]
        return self.call(function["name"], read_arguments(function["arguments"]), call.get("id", ""))

    def with_ids(self, calls: Sequence[ToolCall], calls_before: int) -> list[ToolCall]:
        """Return the calls of an answer, each with an id of its own that the template takes."""
        made: list[ToolCall] = []
        seen: set[str] = set()
        for index, call in enumerate(calls, start=calls_before):
            name = call["function"]["name"]
            call_id = self._fitting_id(call.get("id"), name, index)
            while call_id in seen:
                index += len(calls)
                call_id = self._fitting_id(None, name, index)
            seen.add(call_id)
            made.append({**call, "id": call_id})
        return made

    def _fitting_id(self, given: Any, name: str, index: int) -> str:
        """Return the given id of a call if the template takes it, else a new one."""
        fits = isinstance(given, str) and re.fullmatch(self.conventions.allowed_ids, given)
        return given if fits else self.conventions.call_id.format(name=name, index=index)


def call_styles(conventions: Conventions) -> Iterator[CallStyle]:
    """Return the styles to try; a style that renders more of a conversation comes first."""
    for role, single, as_text in itertools.product(conventions.result_roles, (False, True), (False, True)):
        yield CallStyle(conventions=conventions, single=single, as_text=as_text, result_role=role)
    for role in conventions.result_roles:
        yield CallStyle(conventions=conventions, written=True, result_role=role)


def _answering(result: Message, waiting: list[tuple[ToolCall, ToolCall]]) -> Message:
    """Return a result with the name and the id of its call, and take that from `waiting`: by id, or else the first."""
    if not waiting:
        return result
    given = result.get("tool_call_id")
    index = next((i for i, (call, _) in enumerate(waiting) if given and call.get("id") == given), 0)
    _, call = waiting.pop(index)
    return {**result, "name": result.get("name") or call["function"]["name"], "tool_call_id": call.get("id", "")}


class TurnEndings:
    """The text after an answer: for answers in text, and for answers with calls once `find_call_end` has found it.

    `ends` are tokens that are known to end a turn.

    Raises:
        ConfigurationError: the text after an answer in text is not well defined.
    """

    def __init__(self, template: ChatTemplate, ends: Collection[int]) -> None:
        self._template = template
        self._ends = ends
        self.text_end = find_turn_end(template, ends, _ANSWERED, [_REPLY], "a message after a plain answer")
        self.call_end: TurnEnd | None = None
        self.style = CallStyle(conventions=Conventions())
        self._takes_replies = True  # a user's message may follow results
        self._shown: set[tuple[str, ...]] = set()  # sequences of roles that are rendered whole

    def find_call_end(self, style: CallStyle) -> None:
        """Find the text after calls of this style; raise ConfigurationError if it is not well defined."""
        what = "a tool result after a call"
        calls = (other.probe(1)[0] for other in call_styles(style.conventions) if not other.written)
        if style.written and any(tail_if_rendered(self._template, call, tools=[PROBE_TOOL]) for call in calls):
            raise ConfigurationError(UNDEFINED.format(what=what))
        style = self._with_least_content(style)
        before, results = style.probe(2)
        end = find_turn_end(self._template, {*self._ends, self.text_end.end_id}, before, results, what)
        end.check(self._template, *style.probe(1), what)
        self.call_end, self.style = end, style
        replied = tail_if_rendered(self._template, [*before, *results, _REPLY], tools=[PROBE_TOOL], more=True)
        self._takes_replies = bool(replied)

    def _with_least_content(self, style: CallStyle) -> CallStyle:
        """Return the style, with content None if the template writes a turn for an empty text (DeepSeek R1)."""
        silent = replace(style, content=None)
        probes = [before + results for before, results in (style.probe(2), silent.probe(2))]
        usual, least = (len(tail_if_rendered(self._template, probe)) for probe in probes)
        return silent if 0 < least < usual else style

    def probe_call(self) -> tuple[str, str] | None:
        """Return `render_call` of `PROBE_CALL`."""
        return self.render_call(**PROBE_CALL)

    def render_call(self, name: str, arguments: dict[str, Any]) -> tuple[str, str] | None:
        """Return a prompt, and the text of an answer that calls a tool; None if the template renders no calls."""
        assert self.call_end is not None
        if self.style.written:
            return None
        result = self.style.result({"role": "tool", "name": name, "content": CONTENTS[0]}, 0)
        answer = self.style.calling([self.style.call(name, arguments, result.get("tool_call_id", ""))])
        before = self._template.render([QUESTION], tools=[PROBE_TOOL], more=True)
        whole = self._template.render([QUESTION, answer, result], tools=[PROBE_TOOL])
        ids, known = self._template.encode(whole).ids, self._template.encode(before).ids
        common = next((i for i, (x, y) in enumerate(zip(known, ids, strict=False)) if x != y), len(known))
        prompt, answered = self._template.decode(ids[:common]), self._template.decode(ids[common:])
        if common < len(known):  # both may continue with a marker, such as `<think>`, and share its first characters
            place = len(_UNFINISHED_TAG.sub("", prompt))
            prompt, answered = prompt[:place], prompt[place:] + answered
        return prompt, answered.partition(self.call_end.anchor)[0]

    def in_style(self, messages: Sequence[Message]) -> list[Message]:
        """Return an episode's first messages, with earlier calls and results as the template takes them."""
        for index, message in enumerate(messages):
            if message.get("tool_calls") and (self.call_end is None or self.style.written):
                raise ConfigurationError(
                    f"message {index} has tool_calls, which the chat template does not render; write the call into "
                    f"its content, as the model would"
                )
        return list(messages) if self.call_end is None else self.style.conversation(messages)

    def follow(self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool) -> tuple[TurnEnd, Tokens]:
        """Return the end of the answer that these messages follow, and the tokens from its end token on."""
        self._check_shown(messages)
        return self._follow(messages, tools=tools, more=more)

    def _check_shown(self, messages: Sequence[Message]) -> None:
        """Raise ConfigurationError unless all are rendered in order; checked once for each sequence of roles."""
        roles = tuple(message["role"] for message in messages)
        if roles in self._shown or not roles:
            return
        if list(roles) != sorted(roles, key=lambda role: role != "tool"):
            raise ConfigurationError(f"new messages of roles {list(roles)}: the results of tools must come first")
        probes = numbered([{"role": role} for role in roles])
        text = self._template.decode(self._follow(probes, tools=[PROBE_TOOL], more=True)[1].ids)
        places = [text.find(str(probe.get("content"))) for probe in probes]
        if -1 in places or places != sorted(places):
            lost = [role for role, place in zip(roles, places, strict=True) if place < 0] or list(roles)
            raise ConfigurationError(
                f"the chat template does not render new messages of roles {list(roles)} one after the other: "
                f"{lost} would be lost or out of order"
            )
        self._shown.add(roles)

    def _follow(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool
    ) -> tuple[TurnEnd, Tokens]:
        parts, ends, tokens = self._parts(messages), [], Tokens([])
        for index, (results, others) in enumerate(parts):
            goes_on = more and index == len(parts) - 1
            if results:
                assert self.call_end is not None
                end, tail = self.call_end, self._result_tail(results, others, tools, goes_on)
            else:
                end = self.text_end
                tail = self._template.after_answer([*_ANSWERED, *others], tools=tools, more=goes_on)
            part_tokens = end.tokens(self._template, tail, images_of([*results, *others]))
            tokens += part_tokens[1:] if ends else part_tokens
            ends.append(end)
        return ends[0], tokens

    def _parts(self, messages: Sequence[Message]) -> list[tuple[Sequence[Message], Sequence[Message]]]:
        """Return results and other messages in parts, each rendered in a separate conversation; their tails are joined.

        If the template renders only one call of an answer, each result is a part. If it allows no user message after
        results (Mistral), that message is a part, rendered after an answer in text.
        """
        count = sum(message["role"] == "tool" for message in messages)
        results, others = messages[:count], messages[count:]
        parts = [[result] for result in results] if self.style.single else [results] if results else []
        if not parts or (others and not self._takes_replies):
            parts.append([])
        return [*((part, []) for part in parts[:-1]), (parts[-1], others)]

    def _result_tail(
        self, results: Sequence[Message], others: Sequence[Message], tools: Sequence[ToolSchema], more: bool
    ) -> str:
        style = self.style
        results = [style.result(result, index) for index, result in enumerate(results)]
        tail = self._template.after_answer([QUESTION, style.answer(results), *results, *others], tools=tools, more=more)
        if not style.conventions.numbers:
            return tail
        ids = iter([result.get("tool_call_id", "") for result in results])
        return re.sub(style.conventions.numbers, lambda match: next(ids, match[0]), tail)
