"""Tape: the calls of one environment on their way into a cassette, or out of it."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ..cassettes.cassette import Cassette, open_cassette
from ..cassettes.recorded_call import Kind, RecordedCall, address_in, canonical, digest, jsonable
from ..core import BrokenEnvironmentError, ConfigurationError, Environment, Message, StopReason, ToolSchema
from ..episode import Outcome
from ..runtime.threads import run_in_loop
from ..runtime.user_calls import source_of, watch_blocking
from .episode_state import EpisodeState
from .results import CallResult
from .tool import Tool

if TYPE_CHECKING:
    from .tool_env import ToolEnv

ReplayMisses = Literal["raise", "call"]

Run = Callable[[], Awaitable[CallResult]]
"""Really makes a call."""


class UnrecordedCallError(BrokenEnvironmentError):
    """A replay met a call that is not in its cassette, or could not restore the state for it: the episode fails."""


@dataclass
class _Skipped:
    """A call that was not made, since its result was in the cassette."""

    call: RecordedCall
    run: Run


class Tape:
    """Records the calls of an environment, or answers them from a cassette, or both.

    A call's key holds everything that its result may depend on: the environment's class, the task's row, the seed, and
    what happened in the episode before, with all results. So the result of a stateful tool is given only where the
    state is the recorded one. `@tool(replay="arguments")` and `@tool(replay="run")` say that a tool needs less.

    Args:
        environment: The environment, which keeps the state of the episode.
        record: The cassette to append to.
        replay: The cassette that answers.
        misses: "raise", or "call" to make a call that was not recorded. The earlier calls that a cassette has
            answered are made first, to restore the state.

    Raises:
        FileNotFoundError: there is no cassette to replay.
        ValueError: an option has no effect or is unknown, or the cassette is broken.
    """

    def __init__(
        self, environment: ToolEnv, record: str | Path | None, replay: str | Path | None, misses: ReplayMisses | None
    ) -> None:
        if misses is not None and (replay is None or misses not in get_args(ReplayMisses)):
            raise ValueError(f"replay_misses is one of {get_args(ReplayMisses)}, with replay=; got {misses!r}")
        if replay is not None and record is not None and misses != "call":
            raise ValueError("record= with replay= records the calls that are missing: add replay_misses='call'")
        self._environment = environment
        self._record = None if record is None else open_cassette(Path(record).resolve())
        self._replay = None if replay is None else open_cassette(Path(replay).resolve())
        self._misses = misses or "raise"
        if self._record is not None:
            self._record.check()
        if self._replay is not None:
            self._refresh(self._replay)

    @staticmethod
    def _refresh(cassette: Cassette) -> None:
        try:
            cassette.refresh()
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no cassette {cassette.path}: record= writes one") from None

    def begin(self, task: Mapping[str, Any], seed: int | None) -> bool:
        """Begin an episode; returns whether the environment must acquire what its tools run in.

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
        if self._record is not None:
            self._record.create()
        self._task, self._seed = digest(task), seed
        self._is_new_turn = True
        self._acquiring = asyncio.Lock()  # neighbouring parallel calls wait for the first one's acquisition
        self._after = digest(type(self._environment).__name__, self._task, seed)
        self._skipped: list[_Skipped] = []
        self._is_acquired = self._replay is None  # a replay acquires it only if a tool runs
        return self._is_acquired

    def begin_turn(self) -> None:
        """Begin a turn: the reward of a step is that of its own calls."""
        self._is_new_turn = True

    async def call(self, tool: Tool, arguments: Mapping[str, Any], run: Run) -> CallResult:
        """The result of a tool's call.

        Raises:
            UnrecordedCallError: it is not in the cassette, and misses are errors.
            ConfigurationError: the tool is marked `replay="arguments"`, and has changed the environment.
        """
        call = self._describe("tool", tool.name, arguments, tool.schema, tool.code)
        match tool.replay:
            case "run":
                result = await run()
                call = _with_result(call, result)
            case "arguments":
                return await self._by_arguments(call, run)
            case "history":
                call, result = await self._by_history(call, run)
        self._advance(call)
        return result

    async def reply(self, message: Message, run: Callable[[], Awaitable[Any]]) -> Any:
        """The environment's reply to a message without tool calls."""

        async def result() -> CallResult:
            return CallResult("ok", await run())

        call = self._describe("reply", "reply", {"message": message}, None, type(self._environment).reply)
        call, found = await self._by_history(call, result)
        self._advance(call)
        return found.content

    async def grade(self, stop: StopReason) -> float | None:
        """The environment's grade."""
        environment = self._environment
        judge = type(environment).agrade.__get__(environment)

        async def result() -> CallResult:
            return CallResult("ok", await watch_blocking(judge, stop))

        if environment.grade_in_replay:
            return (await result()).content
        call = self._describe("grade", "grade", {"stop": stop.value}, None, type(environment).agrade)
        _, found = await self._by_history(call, result)
        return found.content

    def _describe(
        self, kind: Kind, name: str, arguments: Mapping[str, Any], schema: ToolSchema | None, code: Callable[..., Any]
    ) -> RecordedCall:
        after = digest(self._after, "turn") if self._is_new_turn else self._after
        source = source_of(code)
        return RecordedCall(
            environment=type(self._environment).__name__,
            task=self._task,
            seed=self._seed,
            after=after,
            kind=kind,
            name=name,
            arguments=jsonable(arguments),
            code=None if source is None else digest(schema, source),
        )

    def _advance(self, call: RecordedCall) -> None:
        """Let the keys of later calls depend on this call and its result."""
        self._is_new_turn = False
        self._after = digest(call.after, call.kind, call.name, call.arguments, call.outcome, call.content)

    async def _by_arguments(self, call: RecordedCall, run: Run) -> CallResult:
        found = self._find(call, call.by_arguments)
        if found is None:
            await self._acquire()
            before = EpisodeState.of(self._environment)
            result = await run()
            if changed := before.effects_until(EpisodeState.of(self._environment)):
                raise ConfigurationError(
                    f"{call.name} is marked @tool(replay='arguments'), so it may not change the environment, but its "
                    f"{', '.join(changed)} changed; remove the mark"
                )
            self._record_new(_with_result(call, result), result)
            return result
        self._record_found(found)
        return _result_of(found)

    async def _by_history(self, call: RecordedCall, run: Run) -> tuple[RecordedCall, CallResult]:
        found = self._find(call, call.by_history)
        if found is not None:
            self._skipped.append(_Skipped(found, run))
            if found.effects:
                EpisodeState.of(self._environment).after(found.effects).restore(self._environment)
            self._record_found(found)
            return found, _result_of(found)
        if self._replay is not None:
            await self._catch_up()
        before = EpisodeState.of(self._environment)
        result = await run()
        effects = before.effects_until(EpisodeState.of(self._environment))
        call = replace(_with_result(call, result), effects=effects)
        self._record_new(call, result)
        return call, result

    def _find(self, call: RecordedCall, key: Any) -> RecordedCall | None:
        if self._replay is None:
            return None
        found = self._replay.find(key, call.code)
        if found is None and self._misses == "raise":
            raise UnrecordedCallError(_explain(call, self._replay))
        return found

    def _record_found(self, call: RecordedCall) -> None:
        if self._record is not None and self._record is not self._replay:
            self._record.append(call)

    def _record_new(self, call: RecordedCall, result: CallResult) -> None:
        if self._record is None:
            if self._replay is not None:
                self._replay.warn_of_lost(call)
            return
        try:
            if call.kind != "grade":  # a number, perhaps NumPy's
                json.dumps(result.content)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the result of {call} cannot be recorded: {error}, so a replay would give another result. Return an "
                f"image as a URL or as base64 text; or mark the tool with @tool(replay='run') if it may run again"
            ) from None
        self._record.append(call)

    async def _acquire(self) -> None:
        async with self._acquiring:
            if not self._is_acquired:
                await self._environment._acquire()
                self._is_acquired = True

    async def _catch_up(self) -> None:
        """Make the calls that the cassette has answered, in order, to restore the state that they leave.

        Raises:
            UnrecordedCallError: one of them gives another result than the recorded one.
        """
        environment = self._environment
        await self._acquire()
        skipped, self._skipped = self._skipped, []
        before = EpisodeState.of(environment)
        for each in skipped:
            again = _with_result(each.call, await each.run())
            if (again.outcome, again.content) != (each.call.outcome, each.call.content):
                raise UnrecordedCallError(
                    f"{each.call} was made again, to restore the state for a call that was not recorded, and gave "
                    f"another result than the recorded one: {canonical(again.content)[:200]} instead of "
                    f"{canonical(each.call.content)[:200]}"
                )
        before.restore(environment)


def tape_of(
    environment: ToolEnv, record: str | Path | None, replay: str | Path | None, misses: ReplayMisses | None
) -> Tape | None:
    """The tape of an environment with these options, which also answers for its `grade`; None without options."""
    if (record, replay, misses) == (None, None, None):
        return None
    tape = Tape(environment, record, replay, misses)
    if inspect.getattr_static(type(environment), "agrade") is not vars(Environment)["agrade"]:
        # Attributes of the object hide the methods of its class.
        vars(environment).update(agrade=tape.grade, grade=lambda stop: run_in_loop(tape.grade(stop)))
    return tape


def _with_result(call: RecordedCall, result: CallResult) -> RecordedCall:
    return replace(call, outcome=result.outcome, content=jsonable(result.content), traceback=result.traceback)


def _result_of(call: RecordedCall) -> CallResult:
    return CallResult(cast(Outcome, call.outcome), copy.deepcopy(call.content), call.traceback)


def _explain(call: RecordedCall, cassette: Cassette) -> str:
    """What is missing, the nearest recorded call and how that differs, and what to do."""
    missing = f"{call} is not in {cassette.path}"
    near = cassette.nearest(call)
    if near is None:
        return f"{missing}, which has no call of {call.environment}"
    differences = {
        "another tool": near.name != call.name,
        "other arguments": near.text != call.text,
        "another task": near.task != call.task,
        f"seed {near.seed}, not {call.seed}": near.seed != call.seed,
        "another history: other calls or results come before it": near.after != call.after,
    }
    difference = next(name for name, differs in differences.items() if differs)
    return f"{missing}. The nearest recorded call is {near}: {difference}. {_ADVICE[call.kind]}"


_RECORD = "Record this call too, with record= and replay_misses='call'"
_ADVICE: dict[Kind, str] = {
    "tool": f"{_RECORD}. Or say how the tool is replayed: @tool(replay='arguments') if its result depends on the task "
    f"and its arguments alone, @tool(replay='run') if it touches nothing but the environment's attributes",
    "reply": _RECORD,
    "grade": f"{_RECORD}. Or set grade_in_replay = True in the class, if grade touches nothing but its attributes, and "
    f"they do not depend on tools that were not run",
}
