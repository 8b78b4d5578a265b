"""Checks of tools: their schemas, and calls with valid, invalid and hostile arguments."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from ...envs.core import Message, ToolSchema
from ...envs.engine.begin_episode import first_misfit
from ...envs.episode import Episode, ToolCallRecord
from ...envs.policy import ScriptedPolicy, tool_call
from ...envs.registry import EnvironmentSource
from ...envs.tool_env.forgotten import forgotten_tools
from ..terminal.places import user_place
from ..terminal.verdicts import Verdict
from .agents import HOSTILE, nested, valid_arguments
from .subject import Subject, first_failure


def schemas(subject: Subject) -> Verdict:
    """The model can learn from the schemas which arguments to give."""
    vague = [
        f"{tool['function']['name']}({name})"
        for tool in subject.tools
        for name, schema in tool["function"]["parameters"].get("properties", {}).items()
        if not schema.keys() & {"type", "enum", "const", "anyOf", "$ref"}
    ]
    if vague:
        return Verdict(
            "schemas", "warn", f"{', '.join(vague)} may be anything: give a type hint such as int or list[str]"
        )
    short = [tool["function"]["name"] for tool in subject.tools if len(tool["function"]["description"].split()) < 3]
    if short:
        return Verdict(
            "schemas", "warn", f"the model reads no more than a word or two about {', '.join(short)}: say what it does"
        )
    names = ", ".join(tool["function"]["name"] for tool in subject.tools)
    if names:
        return Verdict("schemas", "pass", f"arguments are typed and described: {names}")
    core = subject.core()
    core.close()
    if forgotten := ", ".join(forgotten_tools(core)):
        return Verdict("schemas", "warn", f"there are no tools, but {forgotten} could be: mark each tool with @tool")
    return Verdict("schemas", "pass", "there are no tools")


def tools_of_rows(subject: Subject) -> Verdict:
    """The tools that the rows choose are there, in every row of the data set."""
    name = "rows' tools"
    source = EnvironmentSource.of(subject.environment)
    choosing = [row for row in subject.all_rows if row.get("tools") is not None]
    for chosen, first in {source.choose(row): row for row in reversed(choosing)}.items():
        misfit = subject.after_reset(
            partial(first_misfit, rows=subject.all_rows, name=chosen), {**first, "tools": None}
        )
        if misfit is None:
            continue
        row = Subject(environment=source, rows=[subject.all_rows[misfit]], timeout=subject.timeout)
        failure = first_failure(row.null_episodes)
        if failure is not None:
            return Verdict(name, "fail", f"row {misfit} (the first is 0) cannot be played, in {failure}")
    return Verdict(name, "pass", f"{len(choosing)} of {len(subject.all_rows)} rows choose tools, which are there")


def _call(subject: Subject, message: Message) -> Episode:
    """The episode of the first task in which the model makes this call, and then says nothing."""
    answers = iter([message])
    [episode] = subject.play(ScriptedPolicy(lambda messages: next(answers, "")), tasks=slice(1))
    return episode


def _record(episode: Episode) -> ToolCallRecord | None:
    return episode.tool_calls[0] if episode.tool_calls else None


def valid_calls(subject: Subject) -> Verdict:
    """Calls that fit the schema do not hang or break the environment; a `ValueError` tells the model of its mistake."""
    name, refused = "valid calls", list[str]()
    for tool in subject.tools:
        function = tool["function"]
        for seed in range(3):
            arguments = valid_arguments(function["parameters"], random.Random(seed))
            episode = _call(subject, tool_call(function["name"], **arguments))
            said = f"{function['name']}({_arguments(arguments)})"
            failure, record = first_failure([episode]), _record(episode)
            if failure is not None:
                return Verdict(name, "fail", f"{said} failed the episode, in {failure}")
            if record is not None and record.outcome == "timeout":
                return Verdict(name, "fail", f"{said} timed out: make the tool faster, or give it @tool(timeout=...)")
            if record is not None and record.outcome == "refused":
                refused.append(f"{said} {_raised(record)}")
                continue
            if record is not None and record.outcome == "exception":
                return Verdict(name, "warn", f"{said} {_raised(record)}; only the model is told")
            if record is not None and record.outcome != "ok":
                return Verdict(name, "warn", f"{said} fits the schema and was refused: {record.error}")
    advice = "3 calls of each tool, which fit its schema"
    if refused:
        advice += f"; the model was told of a mistake in {len(refused)} of them, the first: {refused[0]}"
    return Verdict(name, "pass", advice)


def _raised(record: ToolCallRecord) -> str:
    place = user_place(record.traceback or "")
    return f"raised {(record.error or '').removeprefix('Error: ')}{f', at {place}' if place else ''}"


def invalid_calls(subject: Subject) -> Verdict:
    """Wrong calls are the model's mistake: it is told, and the episode goes on."""
    name = "invalid calls"
    for said, message in _invalid(subject.tools):
        episode = _call(subject, message)
        failure = first_failure([episode])
        if failure is not None:
            return Verdict(name, "fail", f"{said} failed the episode, in {failure}; tell the model its mistake instead")
        if episode.turns and not episode.turns[0].observation and len(episode.turns) > 1:
            return Verdict(name, "fail", f"the model is told nothing about {said}")
    return Verdict(name, "pass", "an unknown tool, missing, wrong and additional arguments")


def _invalid(tools: list[ToolSchema]) -> Iterator[tuple[str, Message]]:
    if tools:
        yield "a call of an unknown tool", tool_call("no_such_tool", a=1)
    for tool in tools:
        function = tool["function"]
        properties = function["parameters"].get("properties", {})
        arguments = valid_arguments(function["parameters"], random.Random(0))
        yield f"{function['name']} with an additional argument", tool_call(function["name"], **arguments, no_such_one=1)
        if function["parameters"].get("required"):
            yield f"{function['name']} without arguments", tool_call(function["name"])
        for each in properties:
            wrong = arguments | {each: {"no": ["such", None]}}
            yield f"{function['name']} with a dict as {each}", tool_call(function["name"], **wrong)


def hostile_calls(subject: Subject) -> Verdict:
    """Arguments that are huge, nested or full of special characters do not break the environment."""
    name = "hostile calls"
    values = HOSTILE | {"deeply nested lists": nested()}
    for tool in subject.tools:
        function = tool["function"]
        arguments = valid_arguments(function["parameters"], random.Random(0))
        for kind, value in values.items():
            if not arguments:
                continue
            episode = _call(subject, tool_call(function["name"], **dict.fromkeys(arguments, value)))
            failure, record = first_failure([episode]), _record(episode)
            if failure is not None:
                return Verdict(name, "fail", f"{function['name']} with {kind} failed the episode, in {failure}")
            if record is not None and record.outcome == "timeout":
                return Verdict(
                    name, "fail", f"{function['name']} with {kind} timed out: limit the size of its arguments"
                )
    return Verdict(name, "pass", f"{len(values)} kinds of arguments for each tool")


def has_timeouts(subject: Subject) -> Verdict:
    """A tool that hangs is given up."""
    core = subject.core()
    try:
        tools = getattr(core, "tools", {})
        unlimited = [
            name for name, tool in tools.items() if getattr(core, "tool_timeout", 1) is None and tool.timeout is None
        ]
    finally:
        core.close()
    if unlimited:
        return Verdict(
            "time-outs", "warn", f"{', '.join(unlimited)} may hang for ever: set tool_timeout, or @tool(timeout=...)"
        )
    return Verdict("time-outs", "pass", "every tool has a time limit")


def servers_keep_episodes_apart(subject: Subject) -> Verdict:
    """No server of tools shows one episode what another has changed. (Asked after episodes were played.)"""
    shared = [each for each in subject.logged if "is shared by all episodes" in each]
    if shared:
        return Verdict("servers", "warn", shared[0])
    return Verdict("servers", "pass", "no server is known to share its state among episodes")


def does_not_block(subject: Subject) -> Verdict:
    """No asynchronous method blocks the event loop, which all episodes share. (Asked after the other checks.)"""
    blocking = [each for each in subject.logged if "blocked the event loop" in each]
    if blocking:
        return Verdict("blocking calls", "fail", blocking[0])
    return Verdict("blocking calls", "pass", "no async method blocked the event loop")


def _arguments(arguments: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= 100 else text[:97] + "..."
