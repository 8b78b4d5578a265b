"""ATEM, the format of Muse Glimmer: messages to recipients, calls as XML whose values are text."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ...envs.core import Message, ToolSchema
from .assistant_message import make_call
from .channel_messages import BODY, START, WRITER, ChannelMessage, Header, PartialMessage, parse_channels
from .formats import KnownFormat
from .text_arguments import xml_call
from .value_readers import next_end, shorten, skip_space

ENDS = ("<|eom|>", "<|eot|>")
_CALLS = "<atem:function_calls>"
_CHANNELS = ("self", "user")
_OPENING = re.compile(r"\s*(?:<atem:function_calls>\s*)?")
_CLOSING = re.compile(r"\s*(?:</atem:function_calls>\s*)?")
_INVOKE = '<atem:invoke name="'
_read_invoke = xml_call(
    rf'{_INVOKE}(?P<name>[^"]{{1,256}})">',
    r'<atem:parameter name="(?P<key>[^"]{1,256})">',
    parameter_close="</atem:parameter>",
    call_close="</atem:invoke>",
    outer_close="</atem:function_calls>",
    outer_open=_INVOKE,
)
# Values are not escaped. One may hold any marker, but not reach into another message: that call was cut.
_NEXT_MESSAGE = re.compile(re.escape(START + WRITER))


@dataclass(kw_only=True, slots=True, frozen=True)
class AtemFormat(KnownFormat):
    """A message to `self` is thinking, one to `user` or without a recipient is content, and any other holds calls.

    A message that pretends to come from a tool or the user is malformed, and so is everything after it. A call is

        <|start|>assistant to=add<|message|><atem:function_calls>
        <atem:invoke name="add">
        <atem:parameter name="a">1</atem:parameter>
        </atem:invoke>
        </atem:function_calls>
    """

    name: str = "atem"
    families: str = "Muse Glimmer"
    markers: tuple[str, ...] = ("<|message|>", "<atem:function_calls>", "<atem:invoke")
    end_tokens: tuple[str, ...] = ("<|eot|>",)

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        names = frozenset(each["function"]["name"] for each in tools)
        return parse_channels(
            text,
            prefix,
            ends=ENDS,
            markers=(START, BODY),
            skip_body=partial(_skip_calls, names=names),
            read=partial(_read, tools=tools, names=names),
        )


def _has_calls(header: Header, names: Collection[str], text: str, start: int = 0) -> bool:
    """Whether a message is for a tool; one may have the name of a channel."""
    if header.recipient is None or header.recipient in _CHANNELS:
        return header.recipient in names and text.startswith(_CALLS, start)
    return True


def _read(
    message: ChannelMessage,
    written: str,
    found: PartialMessage,
    *,
    tools: Sequence[ToolSchema],
    names: Collection[str],
) -> None:
    header, body = message.header, message.body or ""
    if not _has_calls(header, names, body):
        (found.thinking if header.recipient == "self" else found.content).append(body)
        return
    try:
        read, end = _read_calls(body)
        if end < len(body):
            raise ValueError(f"not valid: {shorten(body[end:])} follows the calls")
        found.calls += [make_call(each, tools=tools, textual=True) for each in read]
    except ValueError as error:
        found.refuse(written, str(error))


def _skip_calls(header: Header, text: str, start: int, *, names: Collection[str]) -> int:
    """Markers within the values of a call are its text."""
    if not _has_calls(header, names, text, start):
        return start
    limit = next_end(text, _NEXT_MESSAGE, start) or len(text)
    try:
        return start + _read_calls(text[start:limit])[1]
    except ValueError:
        return start


def _read_calls(text: str) -> tuple[list[dict[str, object]], int]:
    """The calls with which a body begins, as `{name, arguments}` with text values, and where they end.

    Raises:
        ValueError: they are not complete.
    """
    calls = []
    position = _end(_OPENING, text, 0)
    while not calls or text.startswith(_INVOKE, position):
        reading = _read_invoke(text, position)
        calls.append(reading.payload)
        position = skip_space(text, reading.end)
    return calls, _end(_CLOSING, text, position)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where what the pattern matches at `start` ends; it matches the empty text, too."""
    found = pattern.match(text, start)
    assert found is not None
    return found.end()
