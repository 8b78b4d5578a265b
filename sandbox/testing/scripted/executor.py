"""ScriptedExecutor: prepared answers, for tests of code that uses an executor; it runs nothing."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Self, TypeAlias

from ...arguments import checked_files, content_of
from ...base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, RetireReason
from ...errors import SandboxClosedError, SandboxError, SandboxLostError
from ...limits import Limits, check_limits, check_timeout, size_of
from .files import MemoryFiles
from .recording import Operation, Outcome, Recording, ScriptError, copy_error, recorded_arguments

Script: TypeAlias = Sequence[ExecutionResult | SandboxError]

_SHOWN = 300  # characters of a call in an error

_HELD = ("max_file", "max_code")  # no code reaches max_code, but it may not exceed max_file
_NOT_HELD = tuple(field.name for field in fields(Limits) if field.name not in _HELD)


class ScriptedExecutor(Executor):
    """Replays a script: results written by hand, or the calls that a `Recorder` recorded.

        async with ScriptedExecutor([ExecutionResult(status=Status.OK, stdout="42\\n")]) as box:
            print((await box.python("print(6 * 7)")).stdout)

    Results written by hand answer the calls of `python` and `bash` in order, whatever the code. An error is copied and
    raised. Files live in memory. After a `SandboxLostError` the box stays lost until `reset`.

    A recording answers every call, those for files and resets too. The calls must be the recorded ones in the recorded
    order. Timeouts are not compared, as they often come from a clock.

    A clone begins the script anew, and so does `reset` of a script written by hand: every episode of a pool gets the
    same answers.

    Args:
        script: results and errors, or a recording.
        files: the content of the workspace after `start` and `reset`, by relative path; not with a recording.
        limits: only `max_file` is held, and others give a warning; not with a recording. The `files` must fit into the
            `workspace` all the same.

    Raises:
        TypeError: the script holds anything but results and errors, or a file is neither str nor bytes.
        ValueError: `files` or `limits` is given with a recording, or a file is too large or not in the workspace.
        ScriptError: by a call that the script does not answer. It ends an episode, and no model sees it.
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
                raise ValueError("a recording holds its files: leave out files=")
            if limits is not None:
                raise ValueError("a recording holds the effects of the recorded box's limits: leave out limits=")
        self._set_up(script, check_limits(limits))
        self.files = checked_files(files, self.limits)
        if limits is not None and (ignored := limits.changed(_NOT_HELD)):
            warnings.warn(
                f"ScriptedExecutor runs nothing that these limits could hold, and ignores them: {', '.join(ignored)}",
                stacklevel=2,
            )

    def _set_up(self, script: Script | Recording, limits: Limits) -> None:
        self._script, self.limits = script, limits
        self._answers = _Replay(script) if isinstance(script, Recording) else _ByHand(script, size_of(limits.max_file))
        self._turn = asyncio.Lock()

    @property
    def unused(self) -> int:
        """The number of answers that no call has asked for yet."""
        return len(self._answers.script) - self._answers.position

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
    def retire_reason(self) -> RetireReason | None:
        return self._answers.retire

    @property
    def key(self) -> Hashable:
        return (type(self), self._answers.key)

    def clone(self) -> Self:
        twin = object.__new__(type(self))  # without a second warning
        twin._set_up(self._script, self.limits)
        twin.files = self.files
        return twin

    async def _ask(self, operation: Operation, **arguments: Any) -> Any:
        if self._state != "open":
            raise SandboxClosedError(f"the box is {self._state}: use it inside `async with`, or call start() first")
        async with self._turn:
            outcome = self._answers.take(operation, arguments, self.files)
        if isinstance(outcome, SandboxError):
            raise copy_error(outcome)  # clones raise it side by side, each with its own traceback
        return outcome


class _ByHand:
    """Results written by hand, and files in memory."""

    def __init__(self, script: Script, max_file: int) -> None:
        for answer in script:
            if not isinstance(answer, ExecutionResult | SandboxError):
                raise TypeError(f"a script holds ExecutionResult and SandboxError, got {answer!r:.{_SHOWN}}")
        self.script = list(script)
        self.key: Hashable = (tuple(map(repr, self.script)), max_file)
        self.position = 0
        self.files = MemoryFiles(max_file)
        self.retire: RetireReason | None = None

    def take(self, operation: Operation, arguments: dict[str, Any], files: Mapping[str, bytes]) -> Outcome:
        if operation in ("start", "reset"):
            self.position, self.retire, self.files = 0, None, MemoryFiles(self.files.limit)
            for path, data in files.items():
                self.files.write(path, data)
            return None
        if self.retire is not None:
            raise SandboxLostError(f"{self.retire.detail}; reset() makes a new one")
        match operation:
            case "write_file":
                self.files.write(**arguments)
            case "read_file":
                return self.files.read(**arguments)
            case "list_files":
                return self.files.list(**arguments)
            case "python" | "bash":
                return self._next(operation, arguments)
        return None

    def _next(self, operation: Operation, arguments: dict[str, Any]) -> Outcome:
        if self.position == len(self.script):
            raise ScriptError(f"the script has {self.position} answers, and none for {_call(operation, arguments)}")
        outcome = self.script[self.position]
        self.position += 1
        if isinstance(outcome, SandboxLostError):
            self.retire = RetireReason("lost", str(outcome))
        return outcome


class _Replay:
    """The outcomes of a recording, for exactly the recorded calls."""

    def __init__(self, recording: Recording) -> None:
        self.script = list(recording.steps)
        self.key: Hashable = recording.to_json()
        self.position = 0
        self.retire: RetireReason | None = None

    def take(self, operation: Operation, arguments: dict[str, Any], files: Mapping[str, bytes]) -> Outcome:
        arguments, number = recorded_arguments(**arguments), self.position
        step = self.script[number] if number < len(self.script) else None
        if operation == "start" and (step is None or step.operation != "start"):
            return None  # the recorded box had been started before
        got = _call(operation, arguments)
        if step is None:
            raise ScriptError(f"the recording ends after {number} calls, and none answers {got}")
        if (step.operation, step.arguments) != (operation, arguments):
            raise ScriptError(f"call {number} was {_call(step.operation, step.arguments)}, and now it is {got}")
        self.position += 1
        self.retire = step.retire
        return step.outcome


def _call(operation: str, arguments: dict[str, Any]) -> str:
    text = f"{operation}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
