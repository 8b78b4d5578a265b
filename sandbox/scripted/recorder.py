"""Recorder: any executor, with a recording of what passes, for `ScriptedExecutor` to replay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Self, TypeVar

from .base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, State
from .errors import SandboxClosedError, SandboxError
from .recording import Ending, Operation, Recording, ScriptError, Step, portable, recorded_arguments

Value = TypeVar("Value")


class Recorder(Executor):
    """Passes every call on to an executor and keeps what came of it.

        async with Recorder(DockerExecutor()) as box:
            await box.python("6 * 7")
        Path("cassette.json").write_text(box.recording.to_json())

    Args:
        executor: what answers; it may have been started.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
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
    def retire_reason(self) -> str | None:
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
        """A recorder of the executor's clone; its recording is among `recording.clones`."""
        other = type(self)(self.executor.clone())
        self.recording.clones.append(other.recording)
        return other

    async def _record(
        self, operation: Operation, arguments: dict[str, Any], call: Callable[[], Awaitable[Value]]
    ) -> Value:
        step = Step(operation=operation, arguments=recorded_arguments(**arguments))
        self.recording.steps.append(step)  # now: calls are replayed in the order in which they were made
        try:
            value = await call()
            step.outcome = value if isinstance(value, ExecutionResult | bytes | list) else Ending.DONE
            return value
        except asyncio.CancelledError:
            step.outcome = Ending.CANCELLED
            raise
        except SandboxError as error:
            if not isinstance(error, SandboxClosedError | ScriptError):
                step.outcome = portable(error)
            raise
        finally:
            step.retire = self.executor.retire_reason
            if step.outcome is Ending.RUNNING:  # an argument was wrong, or the box was not in use: no answer of a box
                self.recording.steps.remove(step)
