"""Tape: the calls of one environment on their way into a cassette, or out of it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..core import BrokenEnvironmentError, ConfigurationError
from ..episode import Outcome
from ..runtime.user_calls import source_of
from ..tools.runner import Call, CallResult
from ..tools.step_reward import StepReward
from .cassette import Cassette, append_calls, check_cassette, read_cassette
from .recorded_call import RecordedCall, address_in, digest, jsonable

Make = Callable[[], Awaitable[CallResult]]


class UnrecordedCallError(BrokenEnvironmentError):
    """A replay met a call that is not in its cassette: the episode fails. Record it again."""


class Tape:
    """Records the calls of an environment in a cassette, or answers them from one: a `Runner`.

    The key of a call holds everything that its result may depend on: the environment's class, the task's row, the seed,
    and what happened in the episode before, with all results. So a result is given only where the state is the recorded
    one. A call that runs in a replay is not recorded, but its result is part of the history of later calls.

    Args:
        environment: The environment, which keeps the state of the episode.
        record: The cassette to append to; either this
        replay: or the cassette that answers.

    Raises:
        FileNotFoundError: there is no cassette to replay.
        ValueError: both are given, or the file is no cassette.
    """

    def __init__(self, environment: StepReward, record: str | Path | None, replay: str | Path | None) -> None:
        if record is not None and replay is not None:
            raise ValueError("record= appends calls to a cassette and replay= answers from one: give one of them")
        self._environment = environment
        self._path = None if record is None else Path(record).resolve()
        self._cassette = None if replay is None else read_cassette(Path(replay).resolve())
        if self._path is not None:
            check_cassette(self._path)

    @property
    def is_replay(self) -> bool:
        """Whether no tool runs, except those marked `replay="run"`."""
        return self._cassette is not None

    def begin(self, task: Mapping[str, Any], seed: int | None) -> None:
        """Begin an episode.

        Raises:
            ConfigurationError: the row holds an object whose `repr` is its address.
        """
        for column, value in task.items():
            if (found := address_in(value)) is not None:
                raise ConfigurationError(
                    f"the row's column {column!r} holds {found[:200]}, whose address differs in every process, so no "
                    f"replay could find the row again; put text, numbers or bytes there, or give the class a __repr__ "
                    f"that tells its content"
                )
        if self._path is not None:
            append_calls(self._path)  # makes the file, so that a recording without calls can be replayed
        self._task, self._seed = digest(task), seed
        self._step: object | None = None  # that of the last call
        self._after = digest(type(self._environment).__name__, self._task, seed)
        self._in_order = asyncio.Lock()  # calls of parallel tools wait for one another: each counts for the next

    async def run(self, call: Call, make: Make) -> CallResult:
        """Return the result of a call: made and recorded, or found in the cassette.

        Raises:
            UnrecordedCallError: it is not in the cassette.
            ConfigurationError: its result has no JSON, so it cannot be recorded.
        """
        if call.kind != "tool":  # a tool may call `grade`
            return await self._run(call, make)
        async with self._in_order:
            return await self._run(call, make)

    async def _run(self, call: Call, make: Make) -> CallResult:
        described = self._described(call)
        if call.runs_in_replay:
            result = await make()
            done = _with_result(described, result)
        elif self._cassette is not None:
            done = self._find(described, self._cassette)
            _apply(done.effects, self._environment)
            result = CallResult(cast(Outcome, done.outcome), copy.deepcopy(done.content), done.traceback)
        else:
            before = _state_of(self._environment)
            result = await make()
            done = replace(_with_result(described, result), effects=_effects(before, _state_of(self._environment)))
            self._record(done, result)
        self._after = digest(done.after, done.kind, done.name, done.arguments, done.outcome, done.content)
        return result

    def _described(self, call: Call) -> RecordedCall:
        step = self._environment.current_step
        is_new_turn, self._step = step is not self._step, step  # the reward of a step is that of its own calls
        source = source_of(call.function)
        return RecordedCall(
            environment=type(self._environment).__name__,
            task=self._task,
            seed=self._seed,
            after=digest(self._after, "turn") if is_new_turn else self._after,
            kind=call.kind,
            name=call.name,
            arguments=jsonable(call.arguments),
            code=None if source is None else digest(call.schema, source),
        )

    def _find(self, call: RecordedCall, cassette: Cassette) -> RecordedCall:
        found = cassette.find(call)
        if found is None:
            raise UnrecordedCallError(f"{cassette.explain_missing(call)}. {_ADVICE[call.kind]}")
        return found

    def _record(self, call: RecordedCall, result: CallResult) -> None:
        assert self._path is not None
        try:
            if call.kind != "grade":  # a number, perhaps NumPy's
                json.dumps(result.content)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the result of {call} cannot be recorded: {error}, so a replay would give another result. Return an "
                f"image as a URL or as base64 text; or mark the tool with @tool(replay='run') if it may run again"
            ) from None
        append_calls(self._path, call)


def _with_result(call: RecordedCall, result: CallResult) -> RecordedCall:
    return replace(call, outcome=result.outcome, content=jsonable(result.content), traceback=result.traceback)


def _state_of(environment: StepReward) -> dict[str, Any]:
    """Return a copy of the attributes by which a call affects the episode."""
    return {
        "reward": environment.reward,
        "terminated": environment.terminated,
        "truncated": environment.truncated,
        "metrics": {name: jsonable(value) for name, value in environment.metrics.items()},
        "report": {name: jsonable(value) for name, value in environment.report.items()},
    }


def _effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a state: the reward's difference, new values, and changed entries of the dicts."""
    effects = {name: after[name] for name in ("terminated", "truncated") if after[name] != before[name]}
    if after["reward"] != before["reward"]:  # a difference, since a call that runs again may give another reward
        effects["reward"] = after["reward"] - before["reward"]
    for name in ("metrics", "report"):
        old, new = before[name], after[name]
        new_values = {key: value for key, value in new.items() if key not in old or old[key] != value}
        changes = {"set": new_values, "deleted": [key for key in old if key not in new]}
        if any(changes.values()):
            effects[name] = {kind: entries for kind, entries in changes.items() if entries}
    return effects


def _apply(effects: Mapping[str, Any], environment: StepReward) -> None:
    environment.terminated = effects.get("terminated", environment.terminated)
    environment.truncated = effects.get("truncated", environment.truncated)
    if "reward" in effects:
        environment.reward += effects["reward"]
    for name, entries in (("metrics", environment.metrics), ("report", environment.report)):
        changes = effects.get(name, {})
        for key in changes.get("deleted", ()):
            entries.pop(key, None)
        entries.update(copy.deepcopy(changes.get("set", {})))


_RECORD = "Record the episode again, with record="
_ADVICE = {
    "tool": f"{_RECORD}. Or mark the tool with @tool(replay='run'), if it touches nothing but the environment's "
    f"attributes and so may run again",
    "reply": _RECORD,
    "grade": f"{_RECORD}. Or set grade_in_replay = True in the class, if grade touches nothing but its attributes, and "
    f"they do not depend on tools that were not run",
}
