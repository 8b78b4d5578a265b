"""TurnEndings: the text that a chat template writes after an answer, found by rendering probes.

An observation's text is what follows the answer in a minimal conversation: one question, one answer, the new messages.
That text is well defined if the template ends every answer with the same token, and renders the new messages in the
same way after any history. Both are checked here, once, for answers in text and for answers with calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ...envs.core import ConfigurationError, Message, ToolSchema
from ...envs.tokens import Tokens
from ..tool_calls.formats import Conventions
from .call_styles import CONTENTS, PROBE_CALL, SENTINEL, CallStyle, call_styles
from .chat_template import PROBE_TOOL, QUESTION, ChatTemplate
from .turn_end import UNDEFINED, TurnEnd, after_sentinel, find_turn_end, numbered

_REPLY: Message = {"role": "user", "content": CONTENTS[0]}


class TurnEndings:
    """What follows an answer, for answers in text, and for answers with calls once `find_call_end` has found it.

    Args:
        template: Renders the probes.
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
        self._check(self.text_end, self._before_text, [_REPLY], what)
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
            raise ConfigurationError(UNDEFINED.format(what=what))
        style = self._with_least_content(style)
        results = style.results(2)
        before: list[Message] = [QUESTION, style.answer(results)]
        end = find_turn_end(self._template, {*self._ends, self.text_end.end_id}, before, results, what)
        for count in (1, 2):
            some = results[:count]
            self._check(end, [QUESTION, style.answer(some)], some, what)
        self.call_end, self.style = end, style
        self._takes_replies = self._renders([*before, *results, _REPLY])

    def _with_least_content(self, style: CallStyle) -> CallStyle:
        """The style, with content None if the template writes a separate turn for an empty text (DeepSeek R1)."""
        silent = replace(style, content=None)
        try:
            tails = [
                after_sentinel(self._template, [QUESTION, each.answer(results := each.results(2)), *results])
                for each in (style, silent)
            ]
        except ConfigurationError:
            return style
        return silent if tails[0] and tails[1] and len(tails[1]) < len(tails[0]) else style

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
        answer = self.style.calling([call])
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
        """An episode's first messages, with earlier calls and results as the template takes them.

        Raises:
            ConfigurationError: the template renders no calls.
        """
        for index, each in enumerate(messages):
            if each.get("tool_calls") and (self.call_end is None or self.style.written):
                raise ConfigurationError(
                    f"message {index} has tool_calls, which the chat template does not render; write the call into "
                    f"its content, as the model would"
                )
        return list(messages) if self.call_end is None else self.style.conversation(messages)

    def follow(self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool) -> tuple[TurnEnd, Tokens]:
        """Return the end of the answer that these messages follow, and the tokens from its end token on.

        Raises:
            ConfigurationError: the template does not render them after an answer.
        """
        self._check_shown(messages)
        return self._follow(messages, tools=tools, more=more)

    def _follow(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool
    ) -> tuple[TurnEnd, Tokens]:
        parts, ends, tokens = self._parts(messages), [], Tokens([])
        for index, part in enumerate(parts):
            goes_on = more and index == len(parts) - 1
            if part and part[0]["role"] == "tool":
                assert self.call_end is not None
                end, tail = self.call_end, self._result_tail(part, tools, goes_on)
            else:
                end, tail = self.text_end, self._text_tail(part, tools, goes_on)
            some = self._tokens_of(end, tail)
            tokens += some[1:] if ends else some
            ends.append(end)
        return ends[0], tokens

    def _parts(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """The messages in parts, each rendered in a separate conversation; their tails are concatenated.

        If the template renders only one call of an answer, each result is a part. If it allows no user message after
        results (Mistral), that message is a part, rendered after an answer in text.
        """
        count = sum(each["role"] == "tool" for each in messages)
        if not count:
            return [messages]
        parts: list[Sequence[Message]] = [messages[:count]]
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
        """Check once for each sequence of roles that every message is rendered, in order.

        Raises:
            ConfigurationError: one is not, or results do not come first.
        """
        roles = tuple(each["role"] for each in messages)
        if roles in self._shown or not roles:
            return
        if list(roles) != sorted(roles, key=lambda role: role != "tool"):
            raise ConfigurationError(f"new messages of roles {list(roles)}: the results of tools must come first")
        probes = numbered([{"role": role} for role in roles])
        text = self._template.decode(self._follow(probes, tools=[PROBE_TOOL], more=True)[1].ids)
        places = [text.find(str(each.get("content"))) for each in probes]
        if -1 in places or places != sorted(places):
            lost = [role for role, place in zip(roles, places, strict=True) if place < 0] or list(roles)
            raise ConfigurationError(
                f"the chat template does not render new messages of roles {list(roles)} one after the other: "
                f"{lost} would be lost or out of order"
            )
        self._shown.add(roles)

    def _tokens_of(self, end: TurnEnd, tail: str | None, what: str = "these messages") -> Tokens:
        # Only brackets and ids precede the anchor, never a message's content.
        place = -1 if tail is None else tail.find(end.anchor)
        if tail is None or place < 0:
            raise ConfigurationError(UNDEFINED.format(what=what))
        tokens = self._template.encode(tail[place:])
        if tokens.ids[:1] != self._template.encode(end.anchor).ids:
            raise ConfigurationError(UNDEFINED.format(what=what))
        return Tokens([end.end_id]) + tokens[1:]

    def _check(self, end: TurnEnd, before: Sequence[Message], follow: Sequence[Message], what: str) -> None:
        """Check that these messages follow the end token, and are rendered alike later in a conversation."""
        tools = self._template.probe_tools(follow)
        for more in (True, False):
            tail = after_sentinel(self._template, [*before, *follow], tools=tools, more=more)
            self._tokens_of(end, tail, what)
            shown = all(str(each.get("content")) in str(tail) for each in follow)
            later = after_sentinel(self._template, [*_EARLIER_TEXT, *before, *follow], tools=tools, more=more)
            if not shown or tail != later:
                raise ConfigurationError(UNDEFINED.format(what=what))


_UNFINISHED_TAG = re.compile(r"(?:<[^<>]*|\[[^\[\]]*)\Z")
_EARLIER_TEXT: tuple[Message, ...] = (QUESTION, {"role": "assistant", "content": "Hi."})
