"""Recorder: wraps any executor and records its calls, for `ScriptedExecutor` to replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Self, TypeVar

from ...base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, RetireReason, State
from ...errors import SandboxClosedError, SandboxError
from .recording import Operation, Recording, ScriptError, Step, copy_error, recorded_arguments

Value = TypeVar("Value")


class Recorder(Executor):
    """Passes every call on to an executor and records the outcome.

        async with Recorder(DockerExecutor()) as box:
            await box.python("6 * 7")
        Path("recording.json").write_text(box.recording.to_json())

    A clone records on its own. To record in a lease, wrap its box: `Recorder(box)`.

    Args:
        executor: answers the calls; it may be started already.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.limits = executor.limits
        self.recording = Recording()

    async def start(self) -> None:
        await self._record("start", {}, self.executor.start)

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._record("python", {"code": code}, lambda: self.executor.python(code, timeout=timeout))

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._record("bash", {"command": command}, lambda: self.executor.bash(command, timeout=timeout))

    async def write_file(self, path: str, data: bytes | str) -> None:
        arguments = {"path": path, "data": data}
        await self._record("write_file", arguments, lambda: self.executor.write_file(path, data))

    async def read_file(self, path: str) -> bytes:
        return await self._record("read_file", {"path": path}, lambda: self.executor.read_file(path))

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        arguments = {"path": path, "recursive": recursive}
        return await self._record("list_files", arguments, lambda: self.executor.list_files(path, recursive=recursive))

    async def ping(self, *, timeout: float = 2.0) -> None:
        await self._record("ping", {}, lambda: self.executor.ping(timeout=timeout))

    async def reset(self) -> None:
        await self._record("reset", {}, self.executor.reset)

    async def close(self) -> None:
        await self.executor.close()

    @property
    def files(self) -> Mapping[str, bytes]:
        return self.executor.files

    @files.setter
    def files(self, files: Mapping[str, bytes]) -> None:
        self.executor.files = files

    @property
    def retire_reason(self) -> RetireReason | None:
        return self.executor.retire_reason

    @property
    def lifetime(self) -> float:
        return self.executor.lifetime

    @property
    def creators(self) -> int:
        return self.executor.creators

    @property
    def state(self) -> State:
        return self.executor.state

    @property
    def key(self) -> Hashable:
        return (type(self), self.executor.key)

    def clone(self) -> Self:
        return type(self)(self.executor.clone())

    async def _record(
        self, operation: Operation, arguments: dict[str, Any], call: Callable[[], Awaitable[Value]]
    ) -> Value:
        step = Step(operation=operation, arguments=recorded_arguments(**arguments), ended=False)
        self.recording.steps.append(step)  # before the call, as calls are replayed in the order in which they began
        try:
            value = await call()
        except Exception as error:
            if isinstance(error, SandboxError) and not isinstance(error, SandboxClosedError | ScriptError):
                step.outcome, step.ended = copy_error(error), True
            else:
                self.recording.steps.remove(step)  # the box did not get the call
            raise
        else:
            step.outcome, step.ended = value if isinstance(value, ExecutionResult | bytes | list) else None, True
            return value
        finally:
            step.retire = self.executor.retire_reason
