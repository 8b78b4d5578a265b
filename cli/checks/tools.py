"""Checks of tools: their schemas, and calls with valid, invalid and hostile arguments."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from ...envs.core import Message, ToolSchema
from ...envs.engine.begin_episode import first_misfit
from ...envs.episode import ToolCallRecord
from ...envs.policy import tool_call
from ...envs.registry import EnvironmentSource
from ...envs.runtime.places import at_place
from ...envs.tool_env.forgotten import forgotten_tools
from ...envs.tool_env.tool_env import ToolEnv
from ..terminal.output import one_line
from ..terminal.verdicts import Finding
from .agents import hostile_values, parameters_of, valid_arguments
from .subject import Subject, first_failure


def schemas(subject: Subject) -> Finding:
    """Check that the model can learn from the schemas which arguments to give."""
    vague = [
        f"{tool['function']['name']}({name})"
        for tool in subject.tools
        for name, schema in parameters_of(tool).items()
        if not schema.keys() & {"type", "enum", "const", "anyOf", "$ref"}
    ]
    if vague:
        return Finding("warn", f"{', '.join(vague)} may be anything: give a type hint such as int or list[str]")
    short = [tool["function"]["name"] for tool in subject.tools if len(tool["function"]["description"].split()) < 3]
    if short:
        advice = f"the model reads no more than a word or two about {', '.join(short)}: say what it does"
        return Finding("warn", advice)
    if names := ", ".join(tool["function"]["name"] for tool in subject.tools):
        return Finding("pass", f"arguments are typed and described: {names}")
    with subject.made() as environment:
        kind = type(environment.unwrapped)
    if issubclass(kind, ToolEnv) and (forgotten := forgotten_tools(kind, ToolEnv)):
        return Finding("warn", f"there are no tools, but {', '.join(forgotten)} could be: mark each tool with @tool")
    return Finding("skip", "there are no tools")


def tools_of_rows(subject: Subject) -> Finding:
    """Check that the tools that the rows choose are there, in every row of the data set."""
    source = EnvironmentSource.of(subject.environment)
    choosing = [row for row in subject.all_rows if row.get("tools") is not None]
    for chosen, first in {source.choose(row): row for row in reversed(choosing)}.items():
        look = partial(first_misfit, rows=subject.all_rows, name=chosen)
        misfit = subject.after_reset(look, {**first, "tools": None})
        if misfit is None:
            continue
        row = Subject(environment=source, rows=[subject.all_rows[misfit]], timeout=subject.timeout)
        if failure := first_failure(row.null_episodes):
            return Finding("fail", f"row {misfit} (the first is 0) cannot be played, in {failure}")
    if not choosing:
        return Finding("skip", "no row has a column 'tools'")
    return Finding("pass", f"{len(choosing)} of {len(subject.all_rows)} rows choose tools, which are there")


def valid_calls(subject: Subject) -> Finding:
    """Check that calls that fit the schema do not hang or break the environment.

    A `ValueError` of a tool tells the model of its mistake.
    """
    refused = []
    for tool in subject.tools:
        for seed in range(3):
            arguments = valid_arguments(tool, random.Random(seed))
            name = tool["function"]["name"]
            given = one_line(", ".join(f"{parameter}={value!r}" for parameter, value in arguments.items()), 100)
            call = f"{name}({given})"
            episode = subject.call(tool_call(name, **arguments))
            if failure := first_failure([episode]):
                return Finding("fail", f"{call} failed the episode, in {failure}")
            for record in episode.tool_calls[:1]:
                match record.outcome:
                    case "ok":
                        pass
                    case "timeout":
                        advice = f"{call} timed out: make the tool faster, or give it @tool(timeout=...)"
                        return Finding("fail", advice)
                    case "refused":
                        refused.append(f"{call} {_raised(record)}")
                    case "exception":
                        return Finding("warn", f"{call} {_raised(record)}; only the model is told")
                    case _:
                        return Finding("warn", f"{call} fits the schema and was refused: {record.error}")
    advice = "3 calls of each tool, which fit its schema"
    if refused:
        advice += f"; the model was told of a mistake in {len(refused)} of them, the first: {refused[0]}"
    return Finding("pass", advice)


def _raised(record: ToolCallRecord) -> str:
    return f"raised {(record.error or '').removeprefix('Error: ')}{at_place(record.traceback)}"


def invalid_calls(subject: Subject) -> Finding:
    """Check that a wrong call is the model's mistake: it is told, and the episode goes on."""
    for call, message in _invalid(subject.tools):
        episode = subject.call(message)
        if failure := first_failure([episode]):
            return Finding("fail", f"{call} failed the episode, in {failure}; tell the model its mistake instead")
        if episode.turns and not episode.turns[0].observation and len(episode.turns) > 1:
            return Finding("fail", f"the model is told nothing about {call}")
    return Finding("pass", "an unknown tool, missing, wrong and additional arguments")


def _invalid(tools: list[ToolSchema]) -> Iterator[tuple[str, Message]]:
    yield "a call of an unknown tool", tool_call("no_such_tool", a=1)
    for tool in tools:
        name, arguments = tool["function"]["name"], valid_arguments(tool, random.Random(0))
        yield f"{name} with an additional argument", tool_call(name, **arguments, no_such_one=1)
        if tool["function"]["parameters"].get("required"):
            yield f"{name} without arguments", tool_call(name)
        for parameter in parameters_of(tool):
            wrong = arguments | {parameter: {"no": ["such", None]}}
            yield f"{name} with a dict as {parameter}", tool_call(name, **wrong)


def hostile_calls(subject: Subject) -> Finding:
    """Check that arguments that are huge, nested or full of special characters do not break the environment."""
    values = hostile_values()
    for tool in filter(parameters_of, subject.tools):
        name = tool["function"]["name"]
        for kind, value in values.items():
            episode = subject.call(tool_call(name, **dict.fromkeys(parameters_of(tool), value)))
            if failure := first_failure([episode]):
                return Finding("fail", f"{name} with {kind} failed the episode, in {failure}")
            if any(record.outcome == "timeout" for record in episode.tool_calls[:1]):
                return Finding("fail", f"{name} with {kind} timed out: limit the size of its arguments")
    return Finding("pass", f"{len(values)} kinds of arguments for each tool")


def has_timeouts(subject: Subject) -> Finding:
    """Check that a tool that hangs is given up."""
    with subject.made() as environment:
        core = environment.unwrapped
        has_none = isinstance(core, ToolEnv) and core.tool_timeout is None
        unlimited = [name for name, tool in core.tools.items() if tool.timeout is None] if has_none else []
    if unlimited:
        advice = f"{', '.join(unlimited)} may hang for ever: set tool_timeout, or @tool(timeout=...)"
        return Finding("warn", advice)
    return Finding("pass", "every tool has a time limit")


def servers_keep_episodes_apart(subject: Subject) -> Finding:
    """Check that no server of tools shows one episode what another has changed. Asked after episodes were played."""
    for warning in subject.warnings:
        if "is shared by all episodes" in warning:
            return Finding("warn", warning)
    return Finding("pass", "no server is known to share its state among episodes")


def does_not_block(subject: Subject) -> Finding:
    """Check that no async method blocks the event loop, which all episodes share. Asked after the other checks."""
    for warning in subject.warnings:
        if "blocked the event loop" in warning:
            return Finding("fail", warning)
    return Finding("pass", "no async method blocked the event loop")
