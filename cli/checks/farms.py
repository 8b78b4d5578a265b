"""The check of reward farms: calls that pay again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import Any

from ...envs.core import Message, StopReason, ToolSchema
from ...envs.episode import Episode
from ...envs.policy import ScriptedPolicy, tool_call
from ...envs.runtime.message_text import named_text, written_arguments
from ..terminal.output import one_line
from ..terminal.verdicts import Finding
from .agents import parameters_of, valid_arguments
from .subject import Subject

TURNS = 24  # of a farmer
MOST_CALLS = 4  # rewarded calls that are tried
MOST_PARTNERS = 12  # calls that are tried in turn with each

JSON_TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}


def rewards_cannot_be_farmed(subject: Subject) -> Finding:
    """Check that an agent that repeats a rewarded call, or takes back and repeats it, earns less than an honest one."""
    tried = 0
    for task, turn, episode in _rewarded_turns(subject):
        honest = _honest_reward(subject, task)
        if honest is None:
            continue
        tried += 1
        calls = [one.message for one in episode.turns]
        for loop in _loops(calls[turn], calls, episode.tools):
            farm = _farmed(subject, task, chain(calls[:turn], cycle(loop)))
            if _pays_more(farm, honest, has_oracle=subject.oracle is not None):
                other = "the oracle" if subject.oracle is not None else "the best episode that came to its end"
                said = " and ".join(map(_written, loop))
                earned = f"{said} again and again earns {farm.reward:g} in {len(farm.turns)} turns, {other} {honest:g}"
                return Finding("warn", f"{earned} (in {episode.spec.task.id}): reward each success once")
    if tried:
        return Finding("pass", f"{tried} rewarded calls do not pay when repeated")
    if subject.oracle is not None:
        return Finding("pass", "no call is rewarded before an episode's last one")
    return Finding("skip", "no rewarded call is known with which an honest end could be compared: give --oracle")


def _rewarded_turns(subject: Subject) -> Iterator[tuple[int, int, Episode]]:
    """Yield the place of a task, the place of a rewarded turn before the last one, and its episode; one for a call."""
    seen: list[str] = []
    for episodes in (subject.oracle_episodes, subject.random_episodes):
        for task, episode in enumerate(episodes):
            for turn, one in enumerate(episode.turns[:-1]):
                if one.reward > 0 and _written(one.message) not in seen and len(seen) < MOST_CALLS:
                    seen.append(_written(one.message))
                    yield task, turn, episode


def _honest_reward(subject: Subject, task: int) -> float | None:
    """Return the oracle's reward in a task; without an oracle, the best of the episodes that came to their own end."""
    if subject.oracle is not None:
        return subject.oracle_episodes[task].reward
    played = (subject.null_episodes[task], subject.random_episodes[task])
    own = (StopReason.FINAL_ANSWER, StopReason.ENV_TERMINATED)
    return max((one.reward for one in played if one.reward is not None and one.stop in own), default=None)


def _loops(rewarded: Message, calls: Sequence[Message], tools: Sequence[ToolSchema]) -> Iterator[list[Message]]:
    """Yield the rewarded call alone, and with each call that may take it back."""
    yield [rewarded]
    first: Any = next(iter(rewarded.get("tool_calls", [])), {"function": {"name": "", "arguments": {}}})["function"]
    others = [
        _with_arguments_of(first["arguments"], tool) for tool in tools if tool["function"]["name"] != first["name"]
    ]
    for other in [*others, *calls][:MOST_PARTNERS]:
        if _written(other) != _written(rewarded):
            yield [rewarded, other]


def _with_arguments_of(given: Any, tool: ToolSchema) -> Message:
    """Return a call of another tool with the arguments of a rewarded one, where their types fit."""
    arguments = valid_arguments(tool, random.Random(0))
    given = given if isinstance(given, dict) else {}
    for name, schema in parameters_of(tool).items():
        fitting = [value for value in given.values() if JSON_TYPES.get(type(value)) == schema.get("type")]
        if name in given or fitting:
            arguments[name] = given.get(name, fitting[0] if fitting else None)
    return tool_call(tool["function"]["name"], **arguments)


def _farmed(subject: Subject, task: int, calls: Iterator[Message]) -> Episode:
    """Play a task with these calls; where a limit cuts the oracle, with as many turns as it has."""
    is_cut = subject.oracle is not None and not subject.oracle_episodes[task].stop.is_termination
    policy = ScriptedPolicy(lambda messages: next(calls))
    [episode] = subject.play(policy, tasks=slice(task, task + 1), max_turns=subject.max_turns if is_cut else TURNS)
    return episode


def _pays_more(farm: Episode, honest: float, *, has_oracle: bool) -> bool:
    """Return whether a farmer earns more than an honest agent, and not by an end that only an oracle could judge."""
    rewarded = sum(turn.reward > 0 for turn in farm.turns)
    is_farm = rewarded > 2 and (has_oracle or not farm.stop.is_termination)
    return is_farm and farm.reward is not None and farm.reward > honest + 1e-6


def _written(message: Message) -> str:
    """Return an answer as Python would write its calls."""
    functions: list[Any] = [call["function"] for call in message.get("tool_calls", [])]
    calls = [f"{function['name']}({written_arguments(function['arguments'])})" for function in functions]
    return one_line(", ".join(calls) or repr(named_text(message)), 100)
