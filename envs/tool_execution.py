"""Calling tools: concurrently, each in its own time; their errors are told to the model.

Only an error that says that the environment itself is broken ends the episode: see `breaking`.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import pydantic_core

from ..sandbox.cancellation import finish
from ..sandbox.errors import SandboxError, SandboxFileError
from .core import BrokenEnvironmentError, ConfigurationError, MalformedCall, Message, ToolCall
from .episode import Outcome, ToolCallRecord, plain
from .threads import being_cancelled, call_function
from .tools import ArgumentError, Tool

PART_TYPES = frozenset({"text", "image", "image_url", "audio", "input_audio", "video", "file"})
MEDIA_TYPES = frozenset({"image", "audio", "video"})
MEDIA_SOURCES = frozenset({"url", "path", "base64"})

Item = TypeVar("Item")


async def call_tools(
    calls: Sequence[ToolCall], tools: Mapping[str, Tool], *, timeout: float | None, max_chars: int | None
) -> tuple[list[Message], list[ToolCallRecord]]:
    """Run the calls of one turn and return their result messages and records, both in call order.

    The calls before a final tool run concurrently; the final one runs alone, after them. Once it has succeeded the
    episode is over, so calls that follow it are not run.

    Raises:
        BrokenEnvironmentError, ConfigurationError, SandboxError: a tool found the environment broken, see
            `breaking`; the calls beside it are cancelled.
    """
    if len(calls) == 1:
        message, record = await _of_its_own(_call(calls[0], tools, timeout, max_chars))
        return [message], [record]
    results: list[tuple[Message, ToolCallRecord]] = []
    ended = False
    for segment in _split_at_final(calls, tools):
        if ended:
            reason = "the episode ended before this call"
            results += [refuse(call, reason, known=call["function"]["name"] in tools) for call in segment]
            continue
        results += await _side_by_side([_call(call, tools, timeout, max_chars) for call in segment])
        ended = results[-1][1].ends_episode
    return [message for message, _ in results], [record for _, record in results]


def _split_at_final(calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> list[list[ToolCall]]:
    """Runs of calls that may go on side by side: each final call is a run of its own."""
    segments: list[list[ToolCall]] = [[]]
    for call in calls:
        found = tools.get(call["function"]["name"])
        if found is not None and found.final:
            segments += [[call], []]
        else:
            segments[-1].append(call)
    return [segment for segment in segments if segment]


async def _of_its_own(call: Coroutine[Any, Any, Item]) -> Item:
    """Await one call in a task of its own: what a tool does to its task is not done to the episode's.

    It may swallow a cancellation, or leave a mark of one behind, as a TaskGroup does in Python 3.11.
    """
    episode = asyncio.current_task()
    assert episode is not None
    marks = episode.cancelling()
    try:
        # Cancelled meanwhile, the episode hands that on to the call, and goes on only when the call has ended.
        return await asyncio.create_task(call)
    finally:
        if episode.cancelling() > marks:  # whatever the call made of it
            raise asyncio.CancelledError


async def _side_by_side(calls: Sequence[Coroutine[Any, Any, Item]]) -> list[Item]:
    """Await calls concurrently; what one of them raises cancels the others and is raised as it is.

    Of several errors a `ConfigurationError` goes first, and none that a call raised because it was cancelled.
    No TaskGroup: in Python 3.11 it leaves a mark of cancellation on the task in which a child of it has failed.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    ended: set[asyncio.Task[Item]] = set()  # by themselves
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await finish(_ended(tasks))
    causes = [task for task in tasks if task in ended and not task.cancelled()]
    errors = [error for task in causes if (error := task.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, ConfigurationError))
    return [task.result() for task in tasks]


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _call(
    call: ToolCall, tools: Mapping[str, Tool], timeout: float | None, max_chars: int | None
) -> tuple[Message, ToolCallRecord]:
    name = call["function"]["name"]
    tool = tools.get(name)
    if tool is None:
        return _result(call, "unknown", _unknown(name, tools), max_chars=max_chars)
    limit = timeout if tool.timeout is None else tool.timeout
    deadline = asyncio.timeout(None if limit == math.inf else limit)
    started = time.perf_counter()
    outcome: Outcome = "ok"
    try:
        arguments = tool.check_arguments(call["function"]["arguments"])
        async with deadline:
            value = await call_function(tool.function, **arguments)
        content = render(value)
    except ArgumentError as error:
        outcome, content = "bad_arguments", f"Error: {error}"
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a tool are the tool's failure, not ours
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            raise
        broken = breaking(error)
        if broken is error:
            raise
        if broken is not None:
            raise broken from broken.__cause__  # without the group that it came in
        if isinstance(error, TimeoutError) and deadline.expired():
            outcome, content = "timeout", f"Error: {name} did not finish within {limit:g} s."
        else:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            outcome, content = "exception", f"Error: {text}"
    seconds = time.perf_counter() - started
    ended = tool.final and outcome == "ok"
    return _result(call, outcome, content, max_chars=max_chars, seconds=seconds, ends_episode=ended)


def breaking(error: BaseException) -> BaseException | None:
    """The error, or the one in a group, that says that the environment is broken, so that no reward would be true.

    A sandbox that is lost, or that cannot be had, breaks it; a file that cannot be read in one is an ordinary error.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(breaking, error.exceptions)), None)
    broken = isinstance(error, BrokenEnvironmentError | ConfigurationError | SandboxError)
    return error if broken and not isinstance(error, SandboxFileError) else None


def refuse(call: ToolCall, reason: str, *, known: bool) -> tuple[Message, ToolCallRecord]:
    """The result message and the record of a call that is not run; `known`: there is a tool of that name."""
    return _result(call, "not_run" if known else "unknown", f"Error: not run, {reason}.")


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    near = difflib.get_close_matches(name, tools, n=3)
    hint = f"Did you mean {' or '.join(repr(each) for each in near)}? " if near else ""
    return f"Error: there is no tool {name!r}. {hint}The tools are: {', '.join(tools) or 'none'}."


def _result(
    call: ToolCall,
    outcome: Outcome,
    content: Any,
    *,
    max_chars: int | None = None,
    seconds: float = 0.0,
    ends_episode: bool = False,
) -> tuple[Message, ToolCallRecord]:
    name = call["function"]["name"]
    content = cut(_encodable(content), max_chars)  # errors too: they may repeat what the model wrote
    message: Message = {"role": "tool", "name": name, "content": content}
    if "id" in call:
        message["tool_call_id"] = call["id"]
    record = ToolCallRecord(
        name=name,
        call_id=call.get("id"),
        outcome=outcome,
        seconds=seconds,
        ends_episode=ends_episode,
        error=None if outcome == "ok" else str(content),
    )
    return message, record


def render(value: Any) -> str | list[dict[str, Any]]:
    """A tool's result as message content: text as it is, a list of content parts as parts, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_part(item) for item in value):
        return value
    return pydantic_core.to_json(value, inf_nan_mode="constants", fallback=plain).decode()


def _is_part(item: Any) -> bool:
    if not isinstance(item, Mapping) or item.get("type") not in PART_TYPES:
        return False
    kind = item["type"]
    if kind == "text":
        return isinstance(item.get("text"), str)
    # A part carries its payload: a listing such as [{"type": "file", "name": ...}] is no list of parts.
    return kind in item or (kind in MEDIA_TYPES and not MEDIA_SOURCES.isdisjoint(item))


def _encodable(content: Any) -> Any:
    """Content without lone surrogates, which neither a tokenizer nor JSON can take."""
    if isinstance(content, str):
        return content if content.isascii() else content.encode("utf-8", "replace").decode()
    return [{**part, "text": _encodable(part["text"])} if part["type"] == "text" else part for part in content]


def with_text_of(malformed: Sequence[MalformedCall], message: Message) -> Message:
    """The message with what could not be read as a tool call put back into its content, where it is not there yet."""
    content = message.get("content") or ""
    parts: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    known = "\n".join(part["text"] for part in parts if part["type"] == "text")
    texts = [each["text"] for each in malformed if each["text"] not in known]
    if isinstance(content, list):
        whole: Any = [*content, *({"type": "text", "text": text} for text in texts)]
    else:
        whole = "\n".join(filter(None, [content, *texts]))
    return {**message, "content": whole, "malformed": []}


def cut(content: str | list[dict[str, Any]], max_chars: int | None) -> Any:
    """The content with at most `max_chars` characters of text kept, head and tail, and a marker where it was cut."""
    if max_chars is None:
        return content
    if isinstance(content, str):
        return cut_text(content, max_chars)
    left = max_chars
    parts = []
    for part in content:
        if part["type"] == "text":
            text = cut_text(part["text"], left)
            left = max(0, left - len(text))
            part = {**part, "text": text}
        parts.append(part)
    return parts


def cut_text(text: str, max_chars: int) -> str:
    """Text of which the head and the tail are kept when it is too long; the marker says how much is missing."""
    if len(text) <= max_chars:
        return text
    head = (max_chars + 1) // 2
    tail = max_chars - head
    missing = len(text) - max_chars
    return f"{text[:head]}\n[... {missing} characters cut ...]\n{text[len(text) - tail :]}"
