"""Harmony, the format of gpt-oss: messages in channels, calls as messages to a recipient."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ...envs.core import Message, ToolCall, ToolSchema
from .assistant_message import make_call, read_json
from .channel_messages import BODY, CHANNEL, CONSTRAIN, START, ChannelMessage, Header, PartialMessage, parse_channels
from .formats import KnownFormat
from .value_readers import read_json_at, shorten

NAMESPACE = "functions."
ENDS = ("<|end|>", "<|call|>", "<|return|>")
_EVERYBODY = ("user", "all")  # recipients that mean the same as none


@dataclass(kw_only=True, slots=True, frozen=True)
class HarmonyFormat(KnownFormat):
    """Analysis is thinking, final and commentary are content, and a message to a recipient is a call.

    A message that pretends to come from a tool or the user is malformed, and so is everything after it.
    """

    name: str = "harmony"
    families: str = "gpt-oss"
    markers: tuple[str, ...] = ("<|channel|>", "<|message|>", "<|call|>")
    end_tokens: tuple[str, ...] = ("<|return|>", "<|call|>")

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        names = frozenset(each["function"]["name"] for each in tools)
        return parse_channels(
            text,
            prefix,
            ends=ENDS,
            markers=(START, CHANNEL, BODY, CONSTRAIN),
            skip_body=_skip_arguments,
            read=partial(_read, tools=tools, names=names),
        )


def _skip_arguments(header: Header, text: str, start: int) -> int:
    """Markers within the JSON strings of a call are its text."""
    if header.recipient is None:
        return start
    try:
        return read_json_at(text, start)[1]
    except ValueError:
        return start


def _read(
    message: ChannelMessage,
    written: str,
    found: PartialMessage,
    *,
    tools: Sequence[ToolSchema],
    names: Collection[str],
) -> None:
    header, body = message.header, message.body or ""
    if header.recipient is not None and (header.recipient not in _EVERYBODY or header.recipient in names):
        try:
            found.calls.append(_call(header.recipient.removeprefix(NAMESPACE), body, tools))
        except ValueError as error:
            found.refuse(written, str(error))
    elif header.channel == "analysis":
        found.thinking.append(body)
    elif header.channel in ("final", "commentary"):
        found.content.append(body)
    else:
        said = "no channel" if header.channel is None else f"the unknown channel {shorten(header.channel)}"
        found.refuse(written, f"a message has {said}; the channels are analysis, commentary and final")


def _call(name: str, body: str, tools: Sequence[ToolSchema]) -> ToolCall:
    return make_call({"name": name, "arguments": read_json(body)}, tools=tools)
