"""The formats whose answers are messages in channels: harmony (gpt-oss) and ATEM (Muse Glimmer)."""

from __future__ import annotations

import re
from collections.abc import Collection

from .assistant_message import make_call
from .channel_messages import START, WRITER, ChannelFormat, ChannelMessage, Header, PartialMessage
from .text_arguments import xml_call
from .value_readers import next_end, read_json, read_json_at, shorten, skip_space

# Harmony: analysis is thinking, final and commentary are content, and a message to a recipient is a call.

_EVERYBODY = ("user", "all")  # recipients that mean the same as no recipient


def _skip_json(header: Header, text: str, start: int, names: Collection[str]) -> int:
    """Skip the JSON of a call: markers within its strings are text."""
    try:
        return start if header.recipient is None else read_json_at(text, start)[1]
    except ValueError:
        return start


def _read_harmony(message: ChannelMessage, written: str, found: PartialMessage) -> None:
    header, body = message.header, message.body or ""
    if header.recipient is not None and (header.recipient not in _EVERYBODY or header.recipient in found.names):
        call = {"name": header.recipient.removeprefix("functions.")}
        try:
            found.calls.append(make_call({**call, "arguments": read_json(body)}, tools=found.tools))
        except ValueError as error:
            found.refuse(written, str(error))
    elif header.channel == "analysis":
        found.thinking.append(body)
    elif header.channel in ("final", "commentary"):
        found.content.append(body)
    else:
        said = "no channel" if header.channel is None else f"the unknown channel {shorten(header.channel)}"
        found.refuse(written, f"a message has {said}; the channels are analysis, commentary and final")


HARMONY = ChannelFormat(
    name="harmony",
    families="gpt-oss",
    markers=("<|channel|>", "<|message|>", "<|call|>"),
    end_tokens=("<|return|>", "<|call|>"),
    ends=("<|end|>", "<|call|>", "<|return|>"),
    skip_body=_skip_json,
    read=_read_harmony,
)


# ATEM: a message to `self` is thinking, one to `user` or without a recipient is content, and any other holds calls:
#
#     <|start|>assistant to=add<|message|><atem:function_calls>
#     <atem:invoke name="add">
#     <atem:parameter name="a">1</atem:parameter>
#     </atem:invoke>
#     </atem:function_calls>

_CALLS = "<atem:function_calls>"
_INVOKE = '<atem:invoke name="'
_OPENING = re.compile(r"\s*(?:<atem:function_calls>\s*)?")
_CLOSING = re.compile(r"\s*(?:</atem:function_calls>\s*)?")
_read_invoke = xml_call(
    rf'{_INVOKE}(?P<name>[^"]{{1,256}})">',
    r'<atem:parameter name="(?P<key>[^"]{1,256})">',
    ("</atem:parameter>", "</atem:invoke>", "</atem:function_calls>"),
    begins=_INVOKE,
)
# Values are not escaped. One may hold any marker, but not reach into another message: that call was cut.
_NEXT_MESSAGE = re.compile(re.escape(START + WRITER))


def _has_calls(header: Header, names: Collection[str], text: str, start: int = 0) -> bool:
    """Return whether a message is for a tool, which may have the name of a channel."""
    if header.recipient in (None, "self", "user"):
        return header.recipient in names and text.startswith(_CALLS, start)
    return True


def _read_atem(message: ChannelMessage, written: str, found: PartialMessage) -> None:
    header, body = message.header, message.body or ""
    if not _has_calls(header, found.names, body):
        (found.thinking if header.recipient == "self" else found.content).append(body)
        return
    try:
        calls, end = _read_calls(body)
        if end < len(body):
            raise ValueError(f"not valid: {shorten(body[end:])} follows the calls")
        found.calls += [make_call(call, tools=found.tools, textual=True) for call in calls]
    except ValueError as error:
        found.refuse(written, str(error))


def _skip_calls(header: Header, text: str, start: int, names: Collection[str]) -> int:
    """Skip calls: markers within their values are text."""
    if not _has_calls(header, names, text, start):
        return start
    limit = next_end(text, _NEXT_MESSAGE, start) or len(text)
    try:
        return start + _read_calls(text[start:limit])[1]
    except ValueError:
        return start


def _read_calls(text: str) -> tuple[list[dict[str, object]], int]:
    """Read the calls with which a body begins, as `{name, arguments}` with text values. Return their end, too.

    Raises:
        ValueError: they are not complete.
    """
    calls = []
    position = _OPENING.match(text).end()  # type: ignore[union-attr]  # it matches the empty text, too
    while not calls or text.startswith(_INVOKE, position):
        reading = _read_invoke(text, position)
        calls.append(reading.payload)
        position = skip_space(text, reading.end)
    return calls, _CLOSING.match(text, position).end()  # type: ignore[union-attr]


ATEM = ChannelFormat(
    name="atem",
    families="Muse Glimmer",
    markers=("<|message|>", "<atem:function_calls>", "<atem:invoke"),
    end_tokens=("<|eot|>",),
    ends=("<|eom|>", "<|eot|>"),
    skip_body=_skip_calls,
    read=_read_atem,
)
