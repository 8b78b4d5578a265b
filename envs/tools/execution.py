"""Runs tool calls one after the other, each within its time limit. The model sees a tool's errors.

Only an error that marks the environment as broken ends the episode; see `breaking`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...sandbox.cancellation import finish
from ...sandbox.errors import SandboxError, SandboxFileError
from ..core import BrokenEnvironmentError, ConfigurationError, Message, ToolCall
from ..episode import Outcome, ToolCallRecord, traceback_of
from ..runtime.user_calls import being_cancelled, call_function, within
from ..runtime.whereabouts import running_tool
from .arguments import ArgumentError, checked_arguments
from .results import cut, encodable, render
from .runner import Call, CallResult, InsideCall, Runner
from .tool import Tool, unknown_tool

SLOW_CALLS = 5  # the calls of one turn may take as long as this many calls that time out

logger = logging.getLogger("gymnast.envs")
_logged: weakref.WeakKeyDictionary[Any, set[type[BaseException]]] = weakref.WeakKeyDictionary()

Item = TypeVar("Item")

# The calls that the code of the running call has made.
_inside: ContextVar[list[InsideCall] | None] = ContextVar("gymnast_calls_inside", default=None)


@dataclass(kw_only=True, slots=True, frozen=True)
class CallRules:
    """The tools, the limits and the runner of calls."""

    tools: Mapping[str, Tool]
    is_final: Callable[[ToolCall], bool]  # whether a call of a known tool ends the episode if it succeeds
    timeout: float | None  # seconds for a tool without a limit of its own
    max_chars: int | None  # of a result that the model sees
    runner: Runner | None = None  # wraps each call whose arguments fit
    within: Mapping[str, Tool] = field(default_factory=dict)  # the tools of code in a call; see `call_within`


async def call_tools(calls: Sequence[ToolCall], rules: CallRules) -> tuple[list[Message], list[ToolCallRecord]]:
    """Run the calls of one turn and return their result messages and records, both in call order.

    They run one after the other; only neighbouring calls of parallel tools run at the same time. Once a final call has
    succeeded the episode is over, so the calls after it are not run. Nor are calls after `SLOW_CALLS` times the longest
    time limit of a tool: many slow calls would exceed `step_timeout`, and the episode would fail. An error that breaks
    the environment is raised; see `breaking`. It cancels the calls beside it.
    """
    results: list[tuple[Message, ToolCallRecord]] = []
    seconds = 0.0  # spent in calls of tools that have a time limit
    # A tool with the limit `math.inf` keeps its time itself. One without any limit makes this infinite.
    limits = [tool.timeout or rules.timeout or math.inf for tool in rules.tools.values() if tool.timeout != math.inf]
    longest = max(limits, default=0.0)
    for group in _groups(calls, rules):
        reason = ""
        if any(record.ends_episode for _, record in results):
            reason = "the episode ended before this call"
        elif seconds > SLOW_CALLS * longest:
            reason = "the calls of this turn took too long; try again"
        started = time.perf_counter()
        if reason:
            results += [refuse(call, reason, known=call["function"]["name"] in rules.tools) for call in group]
        else:
            results += [made[1:] for made in await _side_by_side([_made(call, rules) for call in group])]
        found = [rules.tools.get(call["function"]["name"]) for call in group]
        if any(tool is not None and tool.timeout != math.inf for tool in found):
            seconds += time.perf_counter() - started
    return [message for message, _ in results], [record for _, record in results]


def _groups(calls: Sequence[ToolCall], rules: CallRules) -> list[list[ToolCall]]:
    """Return the calls in their order; neighbouring calls of parallel tools are in one group. A final call is alone."""
    groups: list[list[ToolCall]] = []
    before = False
    for call in calls:
        found = rules.tools.get(call["function"]["name"])
        parallel = found is not None and found.parallel and not rules.is_final(call)
        if parallel and before:
            groups[-1].append(call)
        else:
            groups.append([call])
        before = parallel
    return groups


async def _side_by_side(calls: Sequence[Coroutine[Any, Any, Item]]) -> list[Item]:
    """Await calls at the same time. An error in one of them cancels the others and is raised.

    Each runs in a task of its own, which protects the episode's task: a tool may swallow a cancellation, or leave its
    task marked as cancelled, as a TaskGroup does in Python 3.11 after a child has failed. If several raise, a
    `ConfigurationError` is preferred. Errors that follow from the cancellation are dropped.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    ended: set[asyncio.Task[Item]] = set()  # before the cancellation
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        if len(ended) < len(tasks):
            for task in tasks:
                task.cancel()
            await finish(_ended(tasks))
    causes = [task for task in tasks if task in ended and not task.cancelled()]
    errors = [error for task in causes if (error := task.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, ConfigurationError))
    return [task.result() for task in tasks]


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)  # which marks the errors as seen, or asyncio logs them


async def call_within(call: ToolCall, rules: CallRules) -> tuple[CallResult, ToolCallRecord]:
    """Run a call that the code of the running call makes; return its result and record, which are part of that call's.

    `max_chars` cuts the record, and not the result.
    """
    outer, started = _inside.get(), time.perf_counter()
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    size, limit = len(json.dumps(arguments)), rules.max_chars or math.inf
    shown = arguments if size <= limit else {"cut": f"{size} characters of arguments"}
    try:
        result, _, record = await _made(call, rules)
    except asyncio.CancelledError:
        error = "the code that made this call ended before it did"
        record = ToolCallRecord(name=name, call_id=None, outcome="timeout", error=error, arguments=shown)
        record.seconds = time.perf_counter() - started
        if outer is not None:
            outer.append(InsideCall(record, None))
        raise
    record.arguments = shown
    if outer is not None:
        found = rules.tools.get(name)
        outer.append(InsideCall(record, call if found is not None and found.replay == "run" else None))
    return result, record


async def _made(call: ToolCall, rules: CallRules) -> tuple[CallResult, Message, ToolCallRecord]:
    name = call["function"]["name"]
    tool = rules.tools.get(name)
    if tool is None:
        result = CallResult("unknown", f"Error: {unknown_tool(name, rules.tools)}")
        return result, *_result(call, result.outcome, result.content, max_chars=rules.max_chars)
    started, final = time.perf_counter(), False
    try:
        arguments = checked_arguments(name, call["function"]["arguments"], tool.validator)
    except BaseException as error:
        result = _caught(tool, error)
    else:
        final = rules.is_final({**call, "function": {"name": name, "arguments": arguments}})
        was_run = False

        async def run() -> CallResult:
            nonlocal was_run
            was_run = True
            _inside.set(inside := [])
            found = await _run(tool, arguments, tool.timeout or rules.timeout or math.inf, final=final)
            return found._replace(inside=inside)

        runs = tool.replay == "run"
        made = Call("tool", name, arguments, tool.code, schema=tool.schema, runs_in_replay=runs, within=rules.within)
        result = await (run() if rules.runner is None else rules.runner(made, run))
        if not was_run:  # a replay
            for inside in filter(None, (inside.again for inside in result.inside)):
                await _made(inside, replace(rules, tools=rules.within, runner=None))
    message, record = _result(call, result.outcome, result.content, max_chars=rules.max_chars)
    record.seconds, record.traceback = time.perf_counter() - started, result.traceback
    record.inside = [inside.record for inside in result.inside]
    record.ends_episode = (final and result.outcome == "ok") or any(inside.ends_episode for inside in record.inside)
    return result, message, record


async def _run(tool: Tool, arguments: Mapping[str, Any], limit: float, *, final: bool) -> CallResult:
    late = TimeoutError(f"{tool.name} did not finish within {limit:g} s.")
    try:
        with running_tool(tool.name):
            value = await within(limit, late, call_function(tool.function, **arguments))
    except BaseException as error:
        if error is late:
            return CallResult("timeout", f"Error: {late}")
        return _caught(tool, error)
    try:
        content = render(value)
        return CallResult("ok", content, is_json=isinstance(content, str) and not isinstance(value, str))
    except (TypeError, ValueError, OSError) as error:
        if final:  # the answer is judged: the model must not give another
            raise ConfigurationError(f"{tool.name}: {error}") from None
        return _caught(tool, error)


def _caught(tool: Tool, error: BaseException) -> CallResult:
    """Return what the model is told about an exception of a tool; one that breaks the episode is raised again."""
    if isinstance(error, ArgumentError):
        return CallResult("bad_arguments", f"Error: {error}")
    # SystemExit and KeyboardInterrupt of a tool are the tool's failure, not ours.
    if isinstance(error, asyncio.CancelledError) and being_cancelled():
        raise error
    broken = breaking(error)
    if broken is error:
        raise error
    if broken is not None:
        raise broken from broken.__cause__  # without the group that it came in
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, ValueError | SandboxFileError):  # the usual ways to tell the model about its mistake
        return CallResult("refused", f"Error: {text}", encodable(traceback_of(error)))
    return CallResult("exception", f"Error: {text}", _tell_the_author(tool, error))


def breaking(error: BaseException) -> BaseException | None:
    """Return the error that marks the environment as broken, so that any reward would be wrong; None if there is none.

    It is the error itself, or one in an exception group. A sandbox that is lost or cannot be leased breaks the
    environment; a file that cannot be read in a sandbox does not.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(breaking, error.exceptions)), None)
    broken = isinstance(error, BrokenEnvironmentError | ConfigurationError | SandboxError)
    return error if broken and not isinstance(error, SandboxFileError) else None


def refuse(call: ToolCall, reason: str, *, known: bool) -> tuple[Message, ToolCallRecord]:
    """Return the result message and the record of a call that is not run; `known`: there is a tool of that name."""
    return _result(call, "not_run" if known else "unknown", f"Error: not run, {reason}.")


def _tell_the_author(tool: Tool, error: BaseException) -> str:
    """Return the traceback of an exception; it is logged once for each tool and type, since it may be a bug."""
    text = encodable(traceback_of(error))
    kind = type(error)
    if kind not in _logged.setdefault(tool.code, set()):
        _logged[tool.code].add(kind)
        logger.warning(
            "tool %r raised %s. The model is told, and the episode goes on. If this is meant for the model, raise a "
            "ValueError; this is logged once for each type.\n%s",
            tool.name,
            kind.__name__,
            text.rstrip(),
        )
    return text


def _result(
    call: ToolCall, outcome: Outcome, content: Any, *, max_chars: int | None = None
) -> tuple[Message, ToolCallRecord]:
    name = call["function"]["name"]
    content = cut(encodable(content), max_chars)  # errors too: they may repeat the model's text
    message: Message = {"role": "tool", "name": name, "content": content}
    if "id" in call:
        message["tool_call_id"] = call["id"]
    error = None if outcome == "ok" else str(content)
    return message, ToolCallRecord(name=name, call_id=call.get("id"), outcome=outcome, error=error)
