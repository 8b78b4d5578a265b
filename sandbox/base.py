"""The contract of a sandbox: read this file first.

- `Status`: how a piece of code ended.
- `ExecutionResult`: what came of it.
- `FileEntry`: one line of a listing.
- `Limits`: what a box may use.
- `Executor`: a box that runs Python and Bash and keeps their state. `DockerExecutor` is the safe one.

A failed command is a result; a broken sandbox is an exception (`errors.py`).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from .quantities import amount_of, count_of, size_of

DEFAULT_TIMEOUT = 30.0  # seconds for one call of `python` or `bash`

WORKSPACE = "/workspace"  # the code's home and working directory; relative paths start here


class Status(StrEnum):
    """How a piece of code ended."""

    OK = "ok"
    ERROR = "error"  # an exception, or a command's exit code other than 0
    TIMEOUT = "timeout"  # interrupted, or killed where it would not be interrupted (`state_lost`)
    OOM = "oom"  # killed because the box was out of memory
    EXITED = "exited"  # the session itself ended: os._exit(3), or `exit 3` in the shell
    SIGNAL = "signal"  # the session was ended by a signal, such as a segmentation fault
    PROTOCOL = "protocol"  # the code tampered with the channel that results come through
    SANDBOX_LOST = "sandbox_lost"  # the box is gone; only in `SandboxLostError.result`


@dataclass(kw_only=True, slots=True, frozen=True)
class ExecutionResult:
    """What came of one call of `python` or `bash`."""

    status: Status
    stdout: str = ""  # also of subprocesses and C code; invalid UTF-8 is replaced; see `dropped_bytes`
    stderr: str = ""  # with the traceback, if there is one
    value: str | None = None  # repr() of the last expression; None for Bash, or where that is None
    exit_code: int | None = None  # 0, an exit status, or minus the signal that ended the session; None on timeout
    duration: float = 0.0  # seconds, as the caller saw it
    dropped_bytes: int = 0  # output over `Limits.max_output`, cut from the middle, where a marker stands
    state_lost: bool = False  # variables or shell state from before are gone: the session was begun afresh

    @property
    def ok(self) -> bool:
        """The code ran to its end without an error."""
        return self.status is Status.OK


@dataclass(kw_only=True, slots=True, frozen=True)
class FileEntry:
    """One file in a box."""

    path: str  # relative to the folder that was listed
    kind: Literal["file", "directory", "link", "other"]
    size: int  # bytes


_KINDS: dict[str, Callable[[Any, str], float]] = {  # how each of `Limits` is read
    **dict.fromkeys(("memory", "workspace", "tmp", "shm", "max_output", "max_file", "max_code"), size_of),
    **dict.fromkeys(("pids", "max_inodes", "open_files"), count_of),
    **dict.fromkeys(("grace", "idle", "lifetime"), partial(amount_of, unit="seconds")),
    "cpus": partial(amount_of, unit="cores"),
}


@dataclass(kw_only=True, slots=True, frozen=True)
class Limits:
    """What a box may use. Sizes are bytes or text such as "512m".

    Raises:
        TypeError: a limit is of another type than it is declared with; numbers of NumPy are numbers too.
        ValueError: a limit is out of range, or the limits contradict one another.
    """

    memory: int | str = "512m"  # all processes and in-memory files together; there is no swap
    cpus: float = 1.0
    pids: int = 128  # processes and threads, with about five of our own
    workspace: int | str = "128m"  # of `/workspace`
    tmp: int | str = "64m"  # of `/tmp`
    shm: int | str = "16m"  # of `/dev/shm`
    max_inodes: int = 32768  # files and folders in `/workspace`, and again in `/tmp`
    open_files: int = 1024  # descriptors of one process
    max_output: int | str = "1m"  # kept of each of stdout, stderr and value: half head, half tail
    max_file: int | str = "32m"  # one `write_file`, `read_file` or `list_files`
    max_code: int | str = "4m"  # one `python` or `bash` call; more is an error result
    grace: float = 0.5  # seconds between the interruption at a timeout, which is repeated once, and the kill
    idle: float = 3600.0  # seconds without a call after which a box ends itself
    lifetime: float = 6 * 3600.0  # seconds after which a box ends itself, and a running call with it

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = _KINDS[field.name](value, f"Limits.{field.name}")
            if not 0 < number < math.inf:
                raise ValueError(f"Limits.{field.name} must be positive and finite, got {value!r}")
            if not isinstance(value, str):  # a number of NumPy would not pass the channel to the supervisor
                object.__setattr__(self, field.name, number)
        if self.cpus < 0.01:  # an engine takes what rounds to 0 for no limit
            raise ValueError(f"Limits.cpus must be at least 0.01, the least that can be held, got {self.cpus}")
        if size_of(self.memory) < 64 << 20:
            raise ValueError(f"Limits.memory must be at least 64m, which Python itself needs, got {self.memory!r}")
        if self.pids < 16:
            raise ValueError(f"Limits.pids must be at least 16, five of which are the box's own, got {self.pids}")
        if self.open_files < 64:
            raise ValueError(f"Limits.open_files must be at least 64, got {self.open_files}")
        if size_of(self.max_file) > 64 << 20:
            raise ValueError(f"Limits.max_file must be at most 64m, one message's size, got {self.max_file!r}")
        if not 1024 <= size_of(self.max_output) <= 16 << 20:
            raise ValueError(f"Limits.max_output must be from 1k to 16m, got {self.max_output!r}")
        if size_of(self.max_code) > size_of(self.max_file):
            raise ValueError(f"Limits.max_code={self.max_code!r} must not exceed max_file={self.max_file!r}")
        # Full in-memory files leave a box in which every new process is killed at once, and no reset can start.
        in_memory = size_of(self.workspace) + size_of(self.tmp) + size_of(self.shm)
        if in_memory > size_of(self.memory) // 2:
            raise ValueError(
                f"Limits.workspace + tmp + shm = {in_memory / 2**20:g}m must be at most half of "
                f"memory={self.memory!r}: these files live in memory; raise memory or lower them"
            )

    def changed(self, names: Iterable[str]) -> list[str]:
        """Those of the named limits that differ from the default."""
        standard = Limits()
        return [name for name in names if getattr(self, name) != getattr(standard, name)]


State = Literal["new", "open", "closed"]  # before `start`, up to `close`, and after that


class Executor(ABC):
    """A box that runs code and keeps its state from call to call, like a notebook beside a terminal.

        async with DockerExecutor() as box:
            result = await box.python("x = 6 * 7\\nx", timeout=5)
            assert result.value == "42"

    Calls on one box take turns; a call's timeout runs from its turn. Cancelling a call interrupts its code and leaves
    the box usable. Every method but `start` and `close` raises `SandboxClosedError` outside of these two, and
    `SandboxLostError` when the box dies or does not answer; a lost box stays lost until `reset`.
    """

    _pool: Any = None  # the pool that belongs to this recipe, see `pool_of`

    @abstractmethod
    async def start(self) -> None:
        """Make the box ready. On failure or cancellation nothing is left behind.

        Raises:
            EngineError: there is no engine, or it refused; or the box ended before it was ready.
            ImageError: the image, or what else the box is made of, is missing or unfit.
            SandboxTimeoutError: the box was not ready in time.
            SandboxClosedError: the executor was started before.
        """

    @abstractmethod
    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        """Run Python code in the session; names stay defined for the next call.

        After `timeout` seconds the code is interrupted (KeyboardInterrupt) and the session kept; code that does not
        give way within `Limits.grace` is killed and the session begun afresh (`state_lost`). What processes of earlier
        calls have written meanwhile comes at the front of stdout.

        Raises:
            SandboxLostError: the box died; the error's `result` holds what is known.
            ValueError: `timeout` is not positive and finite.
        """

    @abstractmethod
    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        """Run a command in the shell session; directory, variables and functions stay.

        Background jobs go on and do not hold the call. After `timeout` seconds the command's processes are
        interrupted; a shell that does not return is killed and begun afresh in the same directory (`state_lost`).

        Raises:
            SandboxLostError: the box died; the error's `result` holds what is known.
            ImageError: the image has no Bash.
            ValueError: `timeout` is not positive and finite.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file, and the folders above it, as the code's user; text is encoded as UTF-8.

        Raises:
            SandboxFileError: the code's user may not write there, or the box is full.
            SandboxFileTooLargeError: `data` is larger than `Limits.max_file`.
        """

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """Read a regular file as the code's user; a symbolic link, a device or a pipe is refused.

        Raises:
            SandboxFileNotFoundError: there is none.
            SandboxPermissionError: it is a link, or the code's user may not read it.
            SandboxFileTooLargeError: it is larger than `Limits.max_file`.
            SandboxFileError: it is no regular file.
        """

    @abstractmethod
    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        """The files in a folder, sorted by path; links are listed and not followed.

        Raises:
            SandboxFileError: `path` is no folder that the code's user may read.
            SandboxFileTooLargeError: the listing is larger than `Limits.max_file`.
        """

    @abstractmethod
    async def ping(self, *, timeout: float = 2.0) -> None:
        """Ask the box for a sign of life.

        Raises:
            SandboxLostError: there was none within `timeout` seconds.
        """

    @abstractmethod
    async def reset(self) -> None:
        """Make the box as it was after `start`: no process, file, variable or directory crosses.

        A box that is lost, or that `retire_reason` speaks against, is replaced by a new one.

        Raises:
            EngineError, ImageError, SandboxTimeoutError: as `start`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything, on cancellation too; closing twice does nothing."""

    @property
    @abstractmethod
    def retire_reason(self) -> str | None:
        """Why the box should be replaced rather than reused, or None; asked by pools between leases.

        Up to its first colon the text is a category, by which pools count: "memory: 40 MiB are still in use".
        """

    @property
    def lifetime(self) -> float:
        """Seconds from its start after which the box ends itself; pools replace it well before."""
        return math.inf

    @property
    def creators(self) -> int:
        """How many boxes of this kind are best started at a time; more would only wait for one another."""
        return 2 * (os.cpu_count() or 1)

    @property
    @abstractmethod
    def state(self) -> State:
        """Where the executor is in its life."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for executors of the same configuration, whose boxes are interchangeable."""

    @abstractmethod
    def clone(self) -> Executor:
        """A new executor of the same configuration, not started."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def check_timeout(seconds: float, name: str = "timeout") -> float:
    """The argument `name`, if it is a time that one can wait.

    Raises:
        TypeError: it is no number.
        ValueError: it is not positive and finite.
    """
    number = amount_of(seconds, name, "seconds")
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a positive number of seconds, got {seconds!r}")
    return number
