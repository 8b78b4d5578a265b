"""Tape: the calls of one environment on their way into a cassette, or out of it."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from ..core import ConfigurationError, StopReason, ToolSchema
from ..episode import ToolCallRecord
from ..images import Image
from ..json_values import plain
from ..runtime.threads import run_in_loop
from ..runtime.user_calls import source_of, watch_blocking
from ..tools.runner import Call, CallResult, InsideCall, Make
from ..tools.step_reward import StepReward
from .cassette import (
    RecordedCall,
    append_calls,
    check_cassette,
    digest,
    image_folder,
    jsonable,
    read_cassette,
    with_pictures,
)


class Tape:
    """Records the calls of an environment in a cassette, or answers them from one.

    The key of a call holds everything that its result may depend on: the environment's class, the task's row, the seed,
    and what happened in the episode before, with all results. So a result is given only where the state is the recorded
    one. A call that runs in a replay is not recorded, but its result is part of the history of later calls.
    """

    def __init__(self, environment: StepReward, record: str | Path | None, replay: str | Path | None) -> None:
        if record is not None and replay is not None:
            raise ValueError("record= appends calls to a cassette and replay= answers from one: give one of them")
        self.is_grading = False
        self.is_replay = replay is not None  # no tool runs, except those marked `replay="run"`
        self._environment = environment
        self._path = None if record is None else Path(record).resolve()
        self._cassette = None if replay is None else read_cassette(Path(replay).resolve())
        if self._path is not None:
            check_cassette(self._path)

    def begin(self, row: Mapping[str, Any], seed: int | None) -> None:
        """Begin an episode. Raises a ConfigurationError if the row holds an object that shows its address."""
        self._task = digest({column: jsonable(value, partial(_lasting, column)) for column, value in row.items()})
        if self._path is not None:
            append_calls(self._path)  # makes the file, so that a recording without calls can be replayed
        self._seed = seed
        self._step: object | None = None  # that of the last call
        self._after = digest(type(self._environment).__name__, self._task, seed)
        self._in_order = asyncio.Lock()  # calls of parallel tools wait for one another: each counts for the next

    async def tool(self, call: Call, make: Make) -> CallResult:
        """Return the result of a tool's call: made and recorded, or found in the cassette."""
        async with self._in_order:
            return await self._run(call, make)

    async def inside(self, call: Call, make: Make) -> CallResult:
        """Make a call for the code of another call, whose record holds it.

        What a replay makes again by running this call is no effect of the other one.
        """
        before = _state_of(self._environment)
        result = await make()
        if call.runs_in_replay:
            effects = _effects(before, _state_of(self._environment))
            for name, value in effects["set"].items():
                self._before[name] = self._before["reward"] + value if name == "reward" else value
        return result

    async def hook(self, call: Call, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `reply` or `grade` as `tool` does. A tool may call them, so they do not wait for it."""

        async def result() -> CallResult:
            return CallResult("ok", await make())

        return (await self._run(call, result)).content

    async def _run(self, call: Call, make: Make) -> CallResult:
        described, self._before = self._described(call), _state_of(self._environment)
        before = self._before
        if self._cassette is not None and not call.runs_in_replay:
            found = self._cassette.find(described)
            _apply(found.effects, self._environment)
            for entry in found.inside:
                name = entry["record"]["name"]
                self._cassette.warn_of_change(name, entry.get("code"), _code_inside(call, name))
            inside = [InsideCall(ToolCallRecord(**entry["record"]), entry["again"]) for entry in found.inside]
            content = with_pictures(found.content, image_folder(self._cassette.path))
            result = CallResult(found.outcome, content, found.traceback, inside=inside)
        else:
            result = await make()
        images: dict[str, Image] = {}
        content = jsonable(result.content, images=images)
        if self._path is not None and not call.runs_in_replay:
            _check_recordable(described, result.content)
            effects = _effects(before, _state_of(self._environment))
            inside = [
                {"record": asdict(made), "again": again, "code": _code_inside(call, made.name)}
                for made, again in result.inside
            ]
            done = {"outcome": result.outcome, "content": content, "traceback": result.traceback, "effects": effects}
            for image in images.values():  # before the line that names them
                image.save(image_folder(self._path))
            append_calls(self._path, replace(described, inside=inside, **done))
        self._after = digest(described.after, call.kind, call.name, described.arguments, result.outcome, content)
        return result

    def _described(self, call: Call) -> RecordedCall:
        step = self._environment.current_step
        is_new_turn, self._step = step is not self._step, step  # the reward of a step is that of its own calls
        return RecordedCall(
            environment=type(self._environment).__name__,
            task=self._task,
            seed=self._seed,
            after=digest(self._after, "turn") if is_new_turn else self._after,
            kind=call.kind,
            name=call.name,
            arguments=jsonable(call.arguments),
            code=_code(call.function, call.schema),
        )


def _code(function: Callable[..., Any], schema: ToolSchema | None) -> str | None:
    """Return the digest of all that gives a result; None if the source is not known."""
    source = source_of(function)
    return None if source is None else digest(schema, source)


def _code_inside(call: Call, name: str) -> str | None:
    tool = call.within.get(name)
    return None if tool is None else _code(tool.code, tool.schema)


def tape_grade(cls: Any) -> None:
    """Let both forms of `grade` that a class writes ask the tape, except below a form that has asked (`super()`)."""
    judge, blocking = cls.agrade, cls.grade

    @wraps(judge)
    async def agrade(self: Any, stop: StopReason) -> float | None:
        tape, make = self._tape, partial(watch_blocking, judge, self, stop)
        if tape is None or tape.is_grading:
            return await make()
        tape.is_grading = True
        arguments, runs = {"stop": stop.value}, self.grade_in_replay
        call = Call(kind="grade", name="grade", arguments=arguments, function=judge, runs_in_replay=runs)
        try:
            return await tape.hook(call, make)
        finally:
            tape.is_grading = False

    @wraps(blocking)
    def grade(self: Any, stop: StopReason) -> float | None:
        is_asked = self._tape is not None and not self._tape.is_grading
        return run_in_loop(agrade(self, stop)) if is_asked else blocking(self, stop)

    cls.agrade, cls.grade = agrade, grade


def _lasting(column: str, value: Any) -> Any:
    """Return an object in a row's column as JSON that another process would give, too."""
    text = plain(value)
    if isinstance(text, str) and re.search(r"\bat 0x[0-9a-f]+", text, re.IGNORECASE):
        raise ConfigurationError(
            f"the row's column {column!r} holds {text[:200]}, whose address differs in every process, so no replay "
            f"could find the row again; put text, numbers or bytes there, or give the class a __repr__ of its content"
        )
    return text


def _check_recordable(call: RecordedCall, content: Any) -> None:
    try:
        if call.kind != "grade":  # a number, perhaps NumPy's
            json.dumps(content, default=_only_images)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the result of {call} cannot be recorded: {error}, so a replay would give another result. Return a "
            f"picture as an Image; or mark the tool with @tool(replay='run') if it may run again"
        ) from None


def _only_images(value: Any) -> None:
    if not isinstance(value, Image):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _state_of(environment: StepReward) -> dict[str, Any]:
    """Return the attributes by which a call affects the episode, and the entries of `metrics` and `report`."""
    state = {name: getattr(environment, name) for name in ("reward", "terminated", "truncated")}
    for owner in ("metrics", "report"):
        state |= {f"{owner}.{name}": jsonable(value) for name, value in getattr(environment, owner).items()}
    return state


def _effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a state."""
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    if "reward" in changed:  # a difference, since a call that runs again may give another reward
        changed["reward"] -= before["reward"]
    return {"set": changed, "deleted": [name for name in before if name not in after]}


def _apply(effects: Mapping[str, Any], environment: StepReward) -> None:
    for name, value in effects["set"].items():
        owner, dot, entry = name.partition(".")
        if dot:
            getattr(environment, owner)[entry] = copy.deepcopy(value)
        else:
            setattr(environment, name, environment.reward + value if name == "reward" else value)
    for name in effects["deleted"]:
        owner, _, entry = name.partition(".")
        getattr(environment, owner).pop(entry, None)
