"""Probes of a chat template: small conversations that it renders at start-up, to show how it ends an answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.core import ConfigurationError, Message
from ...envs.images import Image
from ...envs.tokens import Tokens
from ..tool_calls.formats import ToolFormat
from .chat_template import PROBE_TOOL, QUESTION, ChatTemplate

CONTENTS = ("Sunny.", "Rainy.")
PROBE_CALL: Any = {"name": "probe_tool", "arguments": {"city": "Zürich", "days": 3}}
_EARLIER: tuple[Message, ...] = (QUESTION, {"role": "assistant", "content": "Hi."})
UNDEFINED = (
    "the tokens of an observation are not well defined in this chat template: it does not render {what} as the answer, "
    "an end-of-turn token, and then what follows, whatever came before; use a template in which a turn's text depends "
    "neither on earlier nor on later turns, and ends with a special token (docs/tokens.md)"
)


@dataclass(kw_only=True, slots=True, frozen=True)
class TurnEnd:
    """The end of an answer, and the place where the next message begins."""

    end_id: int  # the token with which the model ends its turn
    # The text of the token that ends the answer when the conversation goes on. It is the text of `end_id`, except in
    # harmony, where `<|return|>` becomes `<|end|>`.
    anchor: str
    closing: str  # the text that template and model write between the answer and the anchor: `<|END_RESPONSE|>`
    # The end token is the first token of the next message (GLM: `<|observation|>`), so it must be added if the model
    # ended its answer with another token.
    opens_next: bool

    def tokens(
        self, template: ChatTemplate, tail: str, images: Sequence[Image] = (), what: str = "these messages"
    ) -> Tokens:
        """Return the tokens of the text after an answer, from the end token on, which it must have."""
        place = tail.find(self.anchor)  # only brackets and ids precede it, never a message's content
        tokens = Tokens([]) if place < 0 else template.encode(tail[place:], images=images)
        if tokens.ids[:1] != template.encode(self.anchor).ids:
            raise ConfigurationError(UNDEFINED.format(what=what))
        return Tokens([self.end_id]) + tokens[1:]

    def check(self, template: ChatTemplate, before: Sequence[Message], follow: Sequence[Message], what: str) -> None:
        """Raise ConfigurationError unless these messages follow the end token, rendered alike later on."""
        tools = template.probe_tools(follow)
        for more in (True, False):
            tail = template.after_answer([*before, *follow], tools=tools, more=more)
            self.tokens(template, tail, what=what)
            shown = all(str(message.get("content")) in tail for message in follow)
            later = template.after_answer([*_EARLIER, *before, *follow], tools=tools, more=more)
            if not shown or tail != later:
                raise ConfigurationError(UNDEFINED.format(what=what))


def find_turn_end(
    template: ChatTemplate, ends: Collection[int], before: Sequence[Message], follow: Sequence[Message], what: str
) -> TurnEnd:
    """Find how the template ends an answer that ends in the sentinel, the last of `before`, if `follow` comes next.

    `ends` are tokens that are known to end a turn. `follow` is one message or two tool results, with `CONTENTS`, which
    errors call `what`. Raise ConfigurationError unless the template renders them as answer, end token, rest, whatever
    comes before.
    """
    tools = template.probe_tools(follow)
    tail = template.after_answer([*before, *follow], tools=tools, more=True)
    gap = tail[: max(tail.find(CONTENTS[0]), 0)]
    ids = template.encode(gap).ids
    alone = template.encode(tail_if_rendered(template, before, tools=tools)).ids
    special, alone_special = (next((i for i in some if i in template.special_ids), None) for some in (ids, alone))
    end_id = next((i for i in ids if i in ends), special)
    anchor_id = end_id
    if end_id not in ends and alone_special in ends:
        end_id = alone_special  # harmony ends the answer with another token if nothing follows
    anchor = "" if anchor_id is None else template.decode([anchor_id])
    if end_id is None or not anchor or anchor not in gap:
        raise ConfigurationError(UNDEFINED.format(what=what))
    opens = end_id not in alone or _opens_results(template, [*before, *follow], anchor)
    if follow[0]["role"] == "tool" and end_id not in ends:
        opens = True  # Command R ends no turn after a call, so the beginning of the next one was found
    end = TurnEnd(end_id=end_id, anchor=anchor, closing=tail[: tail.index(anchor)], opens_next=opens)
    end.check(template, before, follow, what)
    return end


def _opens_results(template: ChatTemplate, messages: Sequence[Message], anchor: str) -> bool:
    """Return whether the anchor begins each of two results and ends none (Gemma 4: `<|tool_response>`)."""
    if messages[-1]["role"] != "tool":
        return False
    tail = template.after_answer(messages, tools=[PROBE_TOOL])
    first, second = (tail.find(content) for content in CONTENTS)
    return 0 <= first < second and anchor in tail[first:second] and anchor not in tail[second:]


def tail_if_rendered(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str:
    """Return `template.after_answer`; empty, too, if the template refuses the messages."""
    try:
        return template.after_answer(messages, **options)
    except ConfigurationError:
        return ""


def numbered(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with contents by which each is found in a rendered text."""
    probes: list[Message] = [{**message, "content": f"qZ{i}messageZq"} for i, message in enumerate(messages)]
    return probes


def reads_probe(tool_format: ToolFormat, probe: tuple[str, str] | None) -> bool:
    """Return whether the format reads just `PROBE_CALL` in the answer of `TurnEndings.probe_call`; true without one."""
    if probe is None:
        return True
    message = tool_format.parse(probe[1], prefix=probe[0], tools=[PROBE_TOOL])
    return [call["function"] for call in message.get("tool_calls", [])] == [PROBE_CALL] and "malformed" not in message
