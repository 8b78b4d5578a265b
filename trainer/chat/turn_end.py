"""TurnEnd: how a chat template ends one answer, found by rendering a probe."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.core import ConfigurationError, Message, ToolSchema
from .call_styles import CONTENTS, SENTINEL
from .chat_template import PROBE_TOOL, ChatTemplate

UNDEFINED = (
    "the tokens of an observation are not well defined in this chat template: it does not render {what} as the answer, "
    "an end-of-turn token, and then what follows, whatever came before; use a template in which a turn's text depends "
    "neither on earlier nor on later turns, and ends with a special token (docs/tokens.md)"
)


@dataclass(kw_only=True, slots=True, frozen=True)
class TurnEnd:
    """How an answer ends, and where what follows it begins.

    Attributes:
        end_id: The token with which the model ends its turn.
        anchor: The text of the token that ends the answer when the conversation goes on. It is the text of `end_id`,
            except in harmony, where `<|return|>` becomes `<|end|>`.
        closing: The text that template and model write between the answer and the anchor: `<|END_RESPONSE|>`.
        opens_next: The end token is the first token of the next message (GLM: `<|observation|>`), so it must be added
            if the model ended its answer with another token.
    """

    end_id: int
    anchor: str
    closing: str
    opens_next: bool


def find_turn_end(
    template: ChatTemplate, ends: Collection[int], before: Sequence[Message], follow: Sequence[Message], what: str
) -> TurnEnd:
    """How the template ends the last message of `before`, which ends in the sentinel, if `follow` comes next.

    Args:
        template: Renders the messages.
        ends: Tokens that are known to end a turn.
        before: A question and an answer.
        follow: One message, or two tool results, with `CONTENTS`.
        what: Names the messages in errors.

    Raises:
        ConfigurationError: the template does not render them as answer, end token, rest.
    """
    tools = template.probe_tools(follow)
    tail = after_sentinel(template, [*before, *follow], tools=tools, more=True)
    first = (tail or "").find(CONTENTS[0])
    if tail is None or first < 0:
        raise ConfigurationError(UNDEFINED.format(what=what))
    gap = template.encode(tail[:first]).ids
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
        raise ConfigurationError(UNDEFINED.format(what=what))
    opens = end_id not in alone or _opens_results(template, [*before, *follow], anchor)
    if follow[0]["role"] == "tool" and end_id not in ends:
        opens = True  # Command R ends no turn after a call, so the beginning of the next one was found
    return TurnEnd(end_id=end_id, anchor=anchor, closing=tail[: tail.index(anchor)], opens_next=opens)


def _ids_alone(template: ChatTemplate, before: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
    """The tokens after the sentinel if nothing follows the answer; empty if the template refuses that."""
    try:
        return template.encode(after_sentinel(template, before, tools=tools, more=False) or "").ids
    except ConfigurationError:
        return []


def _opens_results(template: ChatTemplate, messages: Sequence[Message], anchor: str) -> bool:
    """Whether each of two results begins with the end token (Gemma 4: `<|tool_response>`), and does not end with it."""
    if messages[-1]["role"] != "tool":
        return False
    tail = after_sentinel(template, messages, tools=[PROBE_TOOL], more=False) or ""
    first, second = (tail.find(each) for each in CONTENTS)
    return 0 <= first < second and anchor in tail[first:second] and anchor not in tail[second:]


def after_sentinel(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str | None:
    """The rendered text after the first sentinel, which an environment may repeat."""
    _, found, tail = template.render(messages, **options).partition(SENTINEL)
    return tail if found else None


def numbered(messages: Sequence[Message]) -> list[Message]:
    """The messages with contents by which each is found in a rendered text."""
    probes: list[Message] = [{**each, "content": f"qZ{i}messageZq"} for i, each in enumerate(messages)]
    return probes
