"""ScriptedExecutor: prepared answers, for tests of code that uses an executor; it runs nothing."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Self

from ..arguments import checked_files, content_of
from ..base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry
from ..errors import SandboxError, SandboxLostError
from ..lifecycle import RetireReason
from ..limits import check_timeout, size_of
from .memory_files import MemoryFiles

_SHOWN = 300  # characters of a call in an error


class ScriptError(SandboxError, AssertionError):
    """A scripted executor got a call that its script does not answer: the caller or the script has changed."""


class ScriptedExecutor(Executor):
    """Answers from a script of results and errors.

        async with ScriptedExecutor([ExecutionResult(status=Status.OK, stdout="42\n")]) as box:
            print((await box.python("print(6 * 7)")).stdout)

    The script answers the calls of `python` and `bash` in order, whatever the code. An error is copied and raised.
    Files live in memory, with the default limits. After a `SandboxLostError` the box stays lost until `reset`.

    A clone begins the script anew, and so does `reset`: every episode of a pool gets the same answers.

    Args:
        script: results and errors.
        files: the content of the workspace after `start` and `reset`, by relative path.

    Raises:
        TypeError: the script holds anything but results and errors, or a file is neither str nor bytes.
        ValueError: a file is too large or not in the workspace.
        ScriptError: by a call that the script does not answer. It ends an episode, and no model sees it.
    """

    def __init__(
        self, script: Sequence[ExecutionResult | SandboxError], *, files: Mapping[str, bytes | str] | None = None
    ) -> None:
        for answer in script:
            if not isinstance(answer, ExecutionResult | SandboxError):
                raise TypeError(f"a script holds ExecutionResult and SandboxError, got {answer!r:.{_SHOWN}}")
        self.files = checked_files(files, self.limits)
        self._script = list(script)
        self._begin_script()

    def _begin_script(self) -> None:
        self._position = 0
        self._retire: RetireReason | None = None
        self._memory = MemoryFiles(size_of(self.limits.max_file))
        for path, data in self.files.items():
            self._memory.write(path, data)

    @property
    def unused(self) -> int:
        """The number of answers that no call has asked for yet."""
        return len(self._script) - self._position

    async def start(self) -> None:
        self._begin()
        self._begin_script()  # with the files that a pool has changed

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        check_timeout(timeout)
        return self._answer(f"python(code={code!r})")

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        check_timeout(timeout)
        return self._answer(f"bash(command={command!r})")

    async def write_file(self, path: str, data: bytes | str) -> None:
        data = content_of(data)
        self._open_files().write(path, data)

    async def read_file(self, path: str) -> bytes:
        return self._open_files().read(path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        return self._open_files().list(path, recursive=recursive)

    async def offer(self, functions: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._open_files()  # it runs no code, so nothing calls them

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        self._open_files()

    async def reset(self) -> None:
        self._require_open()
        self._begin_script()

    async def close(self) -> None:
        self._state = "closed"

    @property
    def retire_reason(self) -> RetireReason | None:
        return self._retire

    @property
    def key(self) -> Hashable:
        return (type(self), tuple(map(repr, self._script)))

    def clone(self) -> Self:
        twin = copy.copy(self)
        twin._state = "new"
        twin._begin_script()
        return twin

    def _open_files(self) -> MemoryFiles:
        self._require_open()
        if self._retire is not None:
            raise SandboxLostError(f"{self._retire.detail}; reset() makes a new one")
        return self._memory

    def _answer(self, call: str) -> ExecutionResult:
        self._open_files()
        if not self.unused:
            call = call if len(call) <= _SHOWN else call[:_SHOWN] + "..."
            raise ScriptError(f"the script has {self._position} answers, and none for {call}")
        outcome = self._script[self._position]
        self._position += 1
        if isinstance(outcome, SandboxLostError):
            self._retire = RetireReason("lost", str(outcome))
        if isinstance(outcome, SandboxError):
            raise copy.copy(outcome)  # clones raise it side by side, each with its own traceback
        return outcome
