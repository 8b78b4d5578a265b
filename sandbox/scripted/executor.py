"""ScriptedExecutor: answers that were given beforehand, for tests of what uses an executor; no code runs."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Self, TypeAlias

from .arguments import checked_files, content_of
from .base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, Limits, State, check_timeout, size_of
from .errors import SandboxClosedError, SandboxError, SandboxLostError
from .memory_files import MemoryFiles
from .recording import Ending, Operation, Outcome, Recording, ScriptError, Step, portable, recorded_arguments

Script: TypeAlias = Sequence[ExecutionResult | SandboxError]

_SHOWN = 300  # characters of a call in an error

_HELD = ("max_file", "max_code")  # the second is never reached, but may not exceed the first
_NOT_HELD = tuple(field.name for field in fields(Limits) if field.name not in _HELD)


class ScriptedExecutor(Executor):
    """Replays a script: results by hand, or what a `Recorder` has recorded.

        async with ScriptedExecutor([ExecutionResult(status=Status.OK, stdout="42\\n")]) as box:
            print((await box.python("print(6 * 7)")).stdout)

    Results by hand answer the calls of `python` and `bash`, whatever these say, in order; an error is raised, as a new
    one of the nearest kind of ours. Files live in memory. `reset` and `clone` begin the script anew, so every episode
    of a pool meets the same one; after a `SandboxLostError` the box stays lost until then.

    A recording answers every call, files and resets too, in the order in which the calls were made, and each must be
    the recorded one; timeouts are not compared, as they often come from a clock. A call that was cancelled waits to
    be cancelled. The n-th clone replays the recording of the n-th clone; where no clones were recorded, each begins
    the script anew.

    Args:
        script: results and errors, or a recording.
        files: what the workspace holds after `start` and `reset`, by relative path; for results by hand only.
        limits: of these, `max_file` counts, for results by hand only; setting another is answered with a warning. The
            `files` must fit into the `workspace` all the same.

    Raises:
        TypeError: the script holds something that is neither result nor error, or a file is none.
        ValueError: `files` or `limits` is given with a recording, a recorded call is still running, or a file is too
            large or not in the workspace.
        ScriptError: by a call to which the script has no answer; it ends an episode, no model gets to see it.
    """

    def __init__(
        self,
        script: Script | Recording,
        *,
        files: Mapping[str, bytes | str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        if isinstance(script, Recording):
            if files:
                raise ValueError("a recording answers for the files too: leave out files=")
            if limits is not None:
                raise ValueError("a recording holds what the recorded box's limits have done: leave out limits=")
        self._set_up(script, files, limits or Limits())
        if limits is not None and (ignored := limits.changed(_NOT_HELD)):
            warnings.warn(
                f"ScriptedExecutor runs nothing that these limits could hold, and ignores them: {', '.join(ignored)}",
                stacklevel=2,
            )

    def _set_up(self, script: Script | Recording, files: Mapping[str, bytes | str] | None, limits: Limits) -> None:
        self._script, self.files, self.limits = script, checked_files(files, limits), limits
        if isinstance(script, Recording):
            self._source: _Answers | _Replay = _Replay(script)
            self._key: Hashable = script.to_json()
        else:
            self._source = _Answers(script, self.files, limits)
            self._key = self._source.key
        self._state: State = "new"
        self._turn = asyncio.Lock()
        self._clones = 0

    @property
    def unused(self) -> int:
        """The answers that were not asked for yet."""
        return self._source.unused

    async def start(self) -> None:
        if self._state != "new":
            raise SandboxClosedError(f"a box is started once, and this one is {self._state}")
        self._state = "open"
        try:
            await self._ask("start")
        except BaseException:
            self._state = "closed"
            raise

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        check_timeout(timeout)
        return await self._ask("python", code=code)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        check_timeout(timeout)
        return await self._ask("bash", command=command)

    async def write_file(self, path: str, data: bytes | str) -> None:
        await self._ask("write_file", path=path, data=content_of(data))

    async def read_file(self, path: str) -> bytes:
        return await self._ask("read_file", path=path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        return list(await self._ask("list_files", path=path, recursive=recursive))

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        await self._ask("ping")

    async def reset(self) -> None:
        await self._ask("reset")

    async def close(self) -> None:
        self._state = "closed"

    @property
    def retire_reason(self) -> str | None:
        return self._source.retire

    @property
    def state(self) -> State:
        return self._state

    @property
    def key(self) -> Hashable:
        return (type(self), self._key)

    def clone(self) -> Self:
        twin = object.__new__(type(self))  # without a second warning
        if not isinstance(self._script, Recording) or not self._script.clones:
            twin._set_up(self._script, self.files, self.limits)
            return twin
        if self._clones == len(self._script.clones):
            raise ScriptError(f"the recording has {self._clones} clones, and now another one is asked for")
        twin._set_up(self._script.clones[self._clones], None, self.limits)
        twin._key = self._key
        self._clones += 1
        return twin

    async def _ask(self, operation: Operation, **arguments: Any) -> Any:
        if self._state != "open":
            raise SandboxClosedError(f"the box is {self._state}: use it inside `async with`, or call start() first")
        step = self._source.take(operation, arguments)
        async with self._turn:
            if step.outcome is Ending.CANCELLED:
                await asyncio.Event().wait()
            self._source.retire = step.retire
        if isinstance(step.outcome, SandboxError):
            raise portable(step.outcome)  # a new one: clones raise it side by side, each with its own traceback
        return None if isinstance(step.outcome, Ending) else step.outcome


class _Answers:
    """Results by hand, and files in memory."""

    def __init__(self, script: Script, files: Mapping[str, bytes], limits: Limits) -> None:
        for answer in script:
            if not isinstance(answer, ExecutionResult | SandboxError):
                raise TypeError(f"a script holds ExecutionResult and SandboxError, got {answer!r:.{_SHOWN}}")
        self.script, self.base_files = tuple(script), files
        self.max_file = size_of(limits.max_file)
        self.retire: str | None = None
        self._begin()

    @property
    def unused(self) -> int:
        return len(self.script) - self.position

    @property
    def key(self) -> Hashable:
        return (tuple(map(repr, self.script)), tuple(sorted(self.base_files.items())), self.max_file)

    def _begin(self) -> None:
        self.position = 0
        self.files = MemoryFiles(self.max_file)
        for path, data in self.base_files.items():
            self.files.write(path, data)

    def take(self, operation: Operation, arguments: dict[str, Any]) -> Step:
        if operation == "reset":
            self._begin()
            return Step(operation=operation, arguments=arguments, outcome=Ending.DONE)
        try:
            if self.retire is not None:
                raise SandboxLostError(f"{self.retire}; reset() makes a new one")
            outcome = self._outcome(operation, arguments)
        except SandboxError as error:
            if isinstance(error, ScriptError):
                raise
            outcome = error
        retire = self.retire
        if isinstance(outcome, SandboxLostError) and retire is None:
            retire = f"the box is lost: {outcome}"
        return Step(operation=operation, arguments=arguments, outcome=outcome, retire=retire)

    def _outcome(self, operation: Operation, arguments: dict[str, Any]) -> Outcome:
        match operation:
            case "write_file":
                self.files.write(**arguments)
            case "read_file":
                return self.files.read(**arguments)
            case "list_files":
                return self.files.list(**arguments)
            case "python" | "bash":
                if self.position == len(self.script):
                    raise ScriptError(
                        f"the script has {self.position} answers, and none for {_call(operation, arguments)}"
                    )
                self.position += 1
                return self.script[self.position - 1]
        return Ending.DONE


class _Replay:
    """A recording, in which every call must find itself."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.position = 0
        self.retire: str | None = None

    @property
    def unused(self) -> int:
        return len(self.recording.steps) - self.position

    def take(self, operation: Operation, arguments: dict[str, Any]) -> Step:
        arguments = recorded_arguments(**arguments)
        steps, number = self.recording.steps, self.position
        if operation == "start" and not (number < len(steps) and steps[number].operation == "start"):
            return Step(operation="start", arguments={}, outcome=Ending.DONE)  # it was recorded on a started box
        got = _call(operation, arguments)
        if number == len(steps):
            raise ScriptError(f"the recording ends after {number} calls, and none answers {got}")
        step = steps[number]
        if (step.operation, step.arguments) != (operation, arguments):
            raise ScriptError(f"call {number} was {_call(step.operation, step.arguments)}, and now it is {got}")
        if step.outcome is Ending.RUNNING:
            raise ScriptError(f"call {number}, {got}, was still running when the recording was taken")
        self.position += 1
        return step


def _call(operation: str, arguments: dict[str, Any]) -> str:
    text = f"{operation}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
