"""What a chat template writes after an answer, found by rendering probes.

An observation's text is what follows the answer in a minimal conversation: one question, one answer, the new messages.
That is well defined if the template ends every answer with one token, whatever follows, and renders what follows
alike, whatever came before. Both are checked here, once, for answers in text and for answers with calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..envs.core import ConfigurationError, Message, ToolSchema
from .call_styles import CONTENTS, PROBE_CALL, SENTINEL, CallStyle, call_styles
from .template import PROBE_TOOL, QUESTION, ChatTemplate
from .tool_formats import Conventions, ToolFormat

_REPLY: Message = {"role": "user", "content": CONTENTS[0]}
_UNDEFINED = (
    "the tokens of an observation are not well defined in this chat template: it does not render {what} as the answer, "
    "an end-of-turn token, and then what follows, whatever came before; use a template in which a turn's text depends "
    "neither on earlier nor on later turns, and ends with a special token"
)


@dataclass(kw_only=True, slots=True, frozen=True)
class TurnEnd:
    """How an answer ends, and where what follows it begins.

    Attributes:
        end_id: The token with which the model ends its turn.
        anchor: The text of the token with which the template ends the answer where a conversation goes on. It is the
            end token's, but for harmony, where `<|return|>` becomes `<|end|>`.
        closing: What the template writes between the answer and that token, and so does the model: `<|END_RESPONSE|>`.
        opens_next: The end token is the first one of what follows (GLM: `<|observation|>`), so it has to be supplied
            where an answer ended with another one.
    """

    end_id: int
    anchor: str
    closing: str
    opens_next: bool


def find_turn_end(
    template: ChatTemplate, ends: Collection[int], before: Sequence[Message], follow: Sequence[Message], what: str
) -> TurnEnd:
    """How the last message of `before`, which ends in the sentinel, is closed where `follow` comes after it.

    Args:
        template: Renders.
        ends: Tokens that are known to end a turn.
        before: A question and an answer.
        follow: One message, or two tool results, with `CONTENTS`.
        what: Names it in errors.

    Raises:
        ConfigurationError: the template does not render them as answer, end token, rest.
    """
    tools = [PROBE_TOOL] if follow[0]["role"] == "tool" else []
    tail = after_sentinel(template, [*before, *follow], tools=tools, more=True)
    first = (tail or "").find(CONTENTS[0])
    if tail is None or first < 0:
        raise ConfigurationError(_UNDEFINED.format(what=what))
    gap = template.encode(tail[:first])
    alone = _ids_alone(template, before, tools)
    special = next((each for each in gap if each in template.special_ids), None)
    alone_special = next((each for each in alone if each in template.special_ids), None)
    end_id = next((each for each in gap if each in ends), None)
    if end_id is None and alone_special in ends and special is not None:
        end_id, anchor = alone_special, template.decode([special])
    else:
        end_id = special if end_id is None else end_id
        anchor = template.decode([end_id]) if end_id is not None else ""
    if end_id is None or not anchor or anchor not in tail[:first]:
        raise ConfigurationError(_UNDEFINED.format(what=what))
    opens = end_id not in alone or _opens_results(template, [*before, *follow], tools, anchor)
    if tools and end_id not in ends:  # Command R: no end at all after a call, so the next turn's beginning was found
        opens = True
    return TurnEnd(end_id=end_id, anchor=anchor, closing=tail[: tail.index(anchor)], opens_next=opens)


def _ids_alone(template: ChatTemplate, before: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
    """The tokens after the sentinel where nothing follows the answer; none where the template refuses that."""
    try:
        return template.encode(after_sentinel(template, before, tools=tools, more=False) or "")
    except ConfigurationError:
        return []


def _opens_results(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[ToolSchema], anchor: str
) -> bool:
    """Whether each of two results begins with the end token (Gemma 4: `<|tool_response>`), and does not end with it."""
    if not tools:
        return False
    tail = after_sentinel(template, messages, tools=tools, more=False) or ""
    first, second = (tail.find(each) for each in CONTENTS)
    return 0 <= first < second and anchor in tail[first:second] and anchor not in tail[second:]


def after_sentinel(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str | None:
    """What is rendered after the sentinel; after the first, since an environment may repeat it."""
    _, found, tail = template.render(messages, **options).partition(SENTINEL)
    return tail if found else None


def numbered(messages: Sequence[Message]) -> list[Message]:
    """The messages with other contents, by which each is found in what a template renders."""
    probes: list[Message] = [{**each, "content": f"qZ{i}messageZq"} for i, each in enumerate(messages)]
    return probes


class Turns:
    """What follows an answer, for answers in text, and for answers with calls once `find_call_end` has found it.

    Args:
        template: Renders.
        ends: Tokens that are known to end a turn.

    Raises:
        ConfigurationError: what follows an answer in text is not well defined.
    """

    def __init__(self, template: ChatTemplate, ends: Collection[int]) -> None:
        self._template = template
        self._ends = ends
        what = "a message after a plain answer"
        answer: Message = {"role": "assistant", "content": SENTINEL}
        self.text_end = find_turn_end(template, ends, [QUESTION, answer], [_REPLY], what)
        self._before_text: list[Message] = [QUESTION, answer]
        self._check(self.text_end, self._before_text, [_REPLY], _EARLIER_TEXT, what)
        self.call_end: TurnEnd | None = None
        self.style = CallStyle(conventions=Conventions())
        self._takes_replies = True  # a user's message may follow results
        self._shown: set[tuple[str, ...]] = set()  # sequences of roles that are rendered whole

    def find_call_end(self, style: CallStyle) -> None:
        """Find what follows calls of this style.

        Raises:
            ConfigurationError: it is not well defined.
        """
        what = "a tool result after a call"
        if style.written and self._renders_calls(style.conventions):
            raise ConfigurationError(_UNDEFINED.format(what=what))
        results = style.results(2)
        before: list[Message] = [QUESTION, style.answer(results)]
        end = find_turn_end(self._template, {*self._ends, self.text_end.end_id}, before, results, what)
        for count in (1, 2):
            some = results[:count]
            self._check(end, [QUESTION, style.answer(some)], some, _EARLIER_TEXT, what)
        self.call_end, self.style = end, style
        self._takes_replies = self._renders([*before, *results, _REPLY])

    def _renders(self, messages: Sequence[Message]) -> bool:
        try:
            return after_sentinel(self._template, messages, tools=[PROBE_TOOL], more=True) is not None
        except ConfigurationError:
            return False

    def _renders_calls(self, conventions: Conventions) -> bool:
        for style in call_styles(conventions):
            messages: list[Message] = [QUESTION, style.answer(style.results(1))]
            try:
                shown = after_sentinel(self._template, messages, tools=[PROBE_TOOL], more=False) is not None
            except ConfigurationError:
                shown = False
            if shown:
                return not style.written
        return False

    def probe_call(self) -> tuple[str, str] | None:
        """A prompt, and the text of an answer that calls `PROBE_CALL`; None where the template renders no calls."""
        function = PROBE_CALL["function"]
        return self.render_call(function["name"], function["arguments"])

    def render_call(self, name: str, arguments: dict[str, Any]) -> tuple[str, str] | None:
        """A prompt, and the text of an answer that calls a tool; None where the template renders no calls."""
        assert self.call_end is not None
        if self.style.written:
            return None
        result = self.style.result({"role": "tool", "name": name, "content": CONTENTS[0]}, 0)
        call = self.style.call(name, arguments, result.get("tool_call_id", ""))
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        before = self._template.render([QUESTION], tools=[PROBE_TOOL], more=True)
        whole = self._template.render([QUESTION, answer, result], tools=[PROBE_TOOL])
        ids, told = self._template.encode(whole), self._template.encode(before)
        common = next((i for i, (x, y) in enumerate(zip(told, ids, strict=False)) if x != y), len(told))
        answered = self._template.decode(ids[common:])
        return self._template.decode(ids[:common]), answered.partition(self.call_end.anchor)[0]

    def in_style(self, messages: Sequence[Message]) -> list[Message]:
        """An episode's first messages, with earlier calls and results as the template takes them.

        Raises:
            ConfigurationError: the template renders no calls.
        """
        made: list[Message] = []
        for index, each in enumerate(messages):
            calls = each.get("tool_calls")
            if calls and (self.call_end is None or self.style.written):
                raise ConfigurationError(
                    f"message {index} has tool_calls, which the chat template does not render; write the call into "
                    f"its content, as the model would"
                )
            if calls:
                styled: Message = {**each, "tool_calls": self.style.adapted(calls, index)}
                made.append(styled)
            else:
                result = each["role"] == "tool" and self.call_end is not None
                made.append(self.style.result(each, index) if result else each)
        return made

    def follow_ids(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool
    ) -> tuple[TurnEnd, list[int]]:
        """How the answer ends to which these messages reply, and the tokens from its end token on.

        Raises:
            ConfigurationError: the template does not render them after an answer.
        """
        self._check_shown(messages)
        return self._follow_ids(messages, tools=tools, more=more)

    def _follow_ids(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool
    ) -> tuple[TurnEnd, list[int]]:
        results = [each for each in messages if each["role"] == "tool"]
        if not results:
            return self.text_end, self._ids_of(self.text_end, self._text_tail(messages, tools, more), "these messages")
        assert self.call_end is not None
        end, ids = self.call_end, []
        parts = self._parts(messages)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if part[0]["role"] == "tool":
                tail = self._result_tail(part, tools, more and last)
                some = self._ids_of(end, tail, "these messages")
            else:
                some = self._ids_of(self.text_end, self._text_tail(part, tools, more and last), "these messages")
            ids += some if index == 0 else some[1:]
        return end, ids

    def _parts(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """The messages in parts, each rendered in a conversation of its own; the tails are put one behind the other.

        An answer with several calls that is rendered with one only gets each result for itself, and a user's message
        that may not follow results (Mistral) is rendered behind an answer.
        """
        count = sum(each["role"] == "tool" for each in messages)
        parts: list[Sequence[Message]] = [messages[:count]] if count < len(messages) else [messages]
        if self.style.single:
            parts = [[each] for each in messages[:count]]
        others = messages[count:]
        if others and self._takes_replies:
            parts[-1] = [*parts[-1], *others]
        elif others:
            parts.append(others)
        return parts

    def _text_tail(self, messages: Sequence[Message], tools: Sequence[ToolSchema], more: bool) -> str | None:
        return after_sentinel(self._template, [*self._before_text, *messages], tools=tools, more=more)

    def _result_tail(self, messages: Sequence[Message], tools: Sequence[ToolSchema], more: bool) -> str | None:
        style = self.style
        named = [style.result(each, i) if each["role"] == "tool" else each for i, each in enumerate(messages)]
        answered = [each for each in named if each["role"] == style.result_role]
        tail = after_sentinel(self._template, [QUESTION, style.answer(answered), *named], tools=tools, more=more)
        if tail is None or not style.conventions.numbers:
            return tail
        ids = iter([each.get("tool_call_id", "") for each in answered])
        return re.sub(style.conventions.numbers, lambda match: next(ids, match[0]), tail)

    def _check_shown(self, messages: Sequence[Message]) -> None:
        """Check once for each sequence of roles that every message is in what is rendered, in order.

        Raises:
            ConfigurationError: one is not, or results do not come first.
        """
        roles = tuple(each["role"] for each in messages)
        if roles in self._shown or not roles:
            return
        if list(roles) != sorted(roles, key=lambda role: role != "tool"):
            raise ConfigurationError(f"new messages of roles {list(roles)}: the results of tools must come first")
        probes = numbered([{"role": role} for role in roles])
        text = self._template.decode(self._follow_ids(probes, tools=[PROBE_TOOL], more=True)[1])
        places = [text.find(str(each.get("content"))) for each in probes]
        if -1 in places or places != sorted(places):
            lost = [role for role, place in zip(roles, places, strict=True) if place < 0] or list(roles)
            raise ConfigurationError(
                f"the chat template does not render new messages of roles {list(roles)} one after the other: "
                f"{lost} would be lost or out of order"
            )
        self._shown.add(roles)

    def _ids_of(self, end: TurnEnd, tail: str | None, what: str) -> list[int]:
        place = -1 if tail is None else tail.find(end.anchor)  # before it come brackets and ids, never a content
        if tail is None or place < 0:
            raise ConfigurationError(_UNDEFINED.format(what=what))
        ids = self._template.encode(tail[place:])
        if ids[:1] != self._template.encode(end.anchor):
            raise ConfigurationError(_UNDEFINED.format(what=what))
        return [end.end_id, *ids[1:]]

    def _check(
        self,
        end: TurnEnd,
        before: Sequence[Message],
        follow: Sequence[Message],
        earlier: Sequence[Message],
        what: str,
    ) -> None:
        """Check that these messages follow the end token, and are rendered alike later in a conversation."""
        tools = [PROBE_TOOL] if follow[0]["role"] == "tool" else []
        for more in (True, False):
            tail = after_sentinel(self._template, [*before, *follow], tools=tools, more=more)
            self._ids_of(end, tail, what)
            shown = all(str(each.get("content")) in str(tail) for each in follow)
            later = after_sentinel(self._template, [*earlier, *before, *follow], tools=tools, more=more)
            if not shown or tail != later:
                raise ConfigurationError(_UNDEFINED.format(what=what))


_EARLIER_TEXT: tuple[Message, ...] = (QUESTION, {"role": "assistant", "content": "Hi."})


def reads_probe(found: ToolFormat, probe: tuple[str, str] | None) -> bool:
    """Whether the format reads just `PROBE_CALL` in what `Turns.probe_call` tells; nothing told, nothing wrong."""
    if probe is None:
        return True
    prefix, text = probe
    message = found.parse(text, prefix=prefix, tools=[PROBE_TOOL])
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return calls == [PROBE_CALL["function"]] and "malformed" not in message
