"""Answers written as several messages, each with a header that says for whom it is: gpt-oss's harmony, Muse's ATEM.

A model of these families writes in one turn, after `<|start|>assistant`:

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>{}

Decoded text cannot tell a special token from the same characters, so the markers are found as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...envs.core import MalformedCall, Message, ToolSchema
from .assistant_message import make_call, make_message
from .formats import KnownFormat
from .text_arguments import xml_call
from .value_readers import next_end, read_json, read_json_at, shorten, skip_space

START, CHANNEL, CONSTRAIN, BODY = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
WRITER = "assistant"


@dataclass(kw_only=True, slots=True, frozen=True)
class Header:
    """The part of a message before its body."""

    sender: tuple[str, ...] = ()  # words that are neither channel nor recipient: the writer's role, or stray text
    recipient: str | None = None
    channel: str | None = None
    problem: str = ""  # why it cannot be understood


@dataclass(kw_only=True, slots=True, frozen=True)
class ChannelMessage:
    """One message of an answer: `text[start:end]`, end marker included."""

    start: int
    end: int
    opened: bool  # with `<|start|>`; the first one was opened by the prompt
    header: Header
    body: str | None  # None: there is no `<|message|>`

    @property
    def invented(self) -> bool:
        """Whether the model wrote a message in the name of a tool or the user."""
        return self.opened and bool(self.header.sender) and self.header.sender[0] != WRITER

    @property
    def stray(self) -> str:
        """Text in the place of a header."""
        sender = self.header.sender
        return " ".join(sender[1:] if sender[:1] == (WRITER,) else sender)


def read_header(text: str) -> Header:
    """Read a header: `[assistant] [to=NAME] [<|channel|>NAME [to=NAME] [type]] [<|constrain|>type]`, in many spellings.

    Of several channels the last one counts, and a message to the assistant itself has no recipient.
    """
    before_words, *channels = [part.partition(CONSTRAIN)[0].split() for part in text.split(CHANNEL)]
    after_words = channels[-1] if channels else []
    words = [word for part in (before_words, *channels) for word in part]
    recipients = {word[3:] for word in words if word.startswith("to=")} - {WRITER}
    sender = tuple(word for word in before_words if not word.startswith("to="))
    problem = ""
    if len(recipients) > 1:
        problem = f"a message has one recipient, this one has {shorten(sorted(recipients))}"
    elif "" in recipients:
        problem = "a message has an empty recipient"
    named = after_words[:1] if not "".join(after_words[:1]).startswith("to=") else []
    channel = named[0] if named else None
    return Header(sender=sender, recipient=next(iter(recipients), None), channel=channel, problem=problem)


def opened_by_prompt(prefix: str) -> str:
    """Return the part of a header, or header and body, that the prompt has begun for the model; often empty."""
    _, found, turn = prefix.rpartition(START)
    begun = turn.removeprefix(WRITER)
    return begun if found and turn.startswith(WRITER) and begun.strip() else ""


Part = tuple[Literal["thinking", "content", "calls"], list[Any]]
"""The part of an answer that one message gives."""


def tool_names(tools: Sequence[ToolSchema]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


@dataclass(kw_only=True, slots=True, frozen=True)
class ChannelFormat(KnownFormat):
    """A format whose answers are messages in channels; an answer without any marker is plain text.

    A message that pretends to come from a tool or the user is malformed, and so is everything after it.

    Attributes:
        ends: The markers that end a message; a `<|start|>` does so too.
        skip_body: Header, text, where the body begins, names of the tools -> where to look for an end marker. Markers
            before that place are text of the body.
        read: A message with a body, and the tools -> what it adds. Raises a ValueError if it is malformed.
    """

    ends: tuple[str, ...]
    skip_body: Callable[[Header, str, int, Collection[str]], int]
    read: Callable[[ChannelMessage, Sequence[ToolSchema]], Part]

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        begun = opened_by_prompt(prefix)
        header = read_header(text)
        cut = header.recipient is not None and not header.sender  # the text is only `to=NAME`: no answer, but a header
        if (
            not begun
            and not cut
            and not any(marker in text for marker in (START, CHANNEL, BODY, CONSTRAIN, *self.ends))
        ):
            return make_message(text, None, [], [])
        whole = begun + text
        found: dict[str, list[Any]] = {"thinking": [], "content": [], "calls": []}
        malformed: list[MalformedCall] = []
        for message in self._messages(whole, tool_names(tools)):
            if message.invented:
                who = shorten(" ".join(message.header.sender))
                error = f"a message from {who} was invented; end the turn instead"
                malformed.append({"text": whole[message.start :], "error": error})
                break
            is_first = not (malformed or any(found.values()))
            try:
                kind, added = self._read(message, tools, is_first=is_first)
                found[kind] += added
            except ValueError as error:
                written = whole[max(message.start, len(begun)) : message.end]
                malformed.append({"text": written, "error": str(error)})
        thinking = "\n".join(found["thinking"]) if found["thinking"] else None
        return make_message("\n".join(found["content"]), thinking, found["calls"], malformed)

    def _read(self, message: ChannelMessage, tools: Sequence[ToolSchema], *, is_first: bool) -> Part:
        header = message.header
        if header.problem:
            raise ValueError(header.problem)
        if message.stray:
            raise ValueError(f"{shorten(message.stray)} stands where a message's header was expected")
        if message.body is not None:
            return self.read(message, tools)
        if header.recipient is not None:
            raise ValueError(f"the message to {shorten(header.recipient)} was cut before its {BODY}")
        if header == Header() and not message.opened and is_first:
            raise ValueError("an end marker stands where a message was expected")
        return "content", []

    def _messages(self, text: str, names: Collection[str]) -> Iterator[ChannelMessage]:
        """Return the messages of an answer, in order; the text begins with a header."""
        closing = re.compile("|".join(map(re.escape, (START, *self.ends))))
        marker = re.compile("|".join(map(re.escape, (START, BODY, *self.ends))))
        position = 0
        while (start := skip_space(text, position)) < len(text):
            opened = text.startswith(START, start)
            head = start + len(START) if opened else start
            found = marker.search(text, head)
            header = read_header(text[head : found.start() if found else len(text)])
            first = None
            if found and found[0] == BODY:
                first = found.end()
                expected = opened or position == 0  # else the text is broken, and its body may end anywhere
                found = closing.search(text, self.skip_body(header, text, first, names) if expected else first)
            stop = found.start() if found else len(text)
            position = found.end() if found and found[0] != START else stop
            body = None if first is None else text[first:stop]
            yield ChannelMessage(start=start, end=position, opened=opened, header=header, body=body)


# Harmony: analysis is thinking, final and commentary are content, and a message to a recipient is a call.

_EVERYBODY = ("user", "all")  # recipients that mean the same as no recipient


def _skip_json(header: Header, text: str, start: int, names: Collection[str]) -> int:
    """Skip the JSON of a call: markers within its strings are text."""
    try:
        return start if header.recipient is None else read_json_at(text, start)[1]
    except ValueError:
        return start


def _read_harmony(message: ChannelMessage, tools: Sequence[ToolSchema]) -> Part:
    recipient, channel, body = message.header.recipient, message.header.channel, message.body or ""
    if recipient is not None and (recipient not in _EVERYBODY or recipient in tool_names(tools)):
        call = {"name": recipient.removeprefix("functions."), "arguments": read_json(body)}
        return "calls", [make_call(call, tools=tools)]
    if channel == "analysis":
        return "thinking", [body]
    if channel in ("final", "commentary"):
        return "content", [body]
    said = "no channel" if channel is None else f"the unknown channel {shorten(channel)}"
    raise ValueError(f"a message has {said}; the channels are analysis, commentary and final")


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


def _read_atem(message: ChannelMessage, tools: Sequence[ToolSchema]) -> Part:
    header, body = message.header, message.body or ""
    if not _has_calls(header, tool_names(tools), body):
        return ("thinking" if header.recipient == "self" else "content"), [body]
    calls, end = _read_calls(body)
    if end < len(body):
        raise ValueError(f"not valid: {shorten(body[end:])} follows the calls")
    return "calls", [make_call(call, tools=tools, textual=True) for call in calls]


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

    Raise a ValueError if they are not complete.
    """
    calls = []
    position = _OPENING.match(text).end()  # type: ignore[union-attr]  # it matches the empty text, too
    while not calls or text.startswith(_INVOKE, position):
        call, end = _read_invoke(text, position)
        calls.append(call)
        position = skip_space(text, end)
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
