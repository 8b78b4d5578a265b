"""The contract of a sandbox: read this file first.

- `Status`: how a piece of code ended.
- `ExecutionResult`: the outcome of one call.
- `FileEntry`: one line of a listing.
- `Executor`: a box that runs Python and Bash and keeps their state. `DockerExecutor` is the safe one. Its life is that
  of every `Sandbox` (`lifecycle.py`).

A *box* is one sandbox: a container, a subprocess or a script, with its sessions and its files. `Limits` (`limits.py`)
bound the resources that it may use. A failed command is a result; a broken sandbox is an exception (`errors.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from .box_image import BoxImage
from .errors import SandboxLostError
from .lifecycle import Sandbox

DEFAULT_TIMEOUT = 30.0  # seconds for one call of `python` or `bash`

WORKSPACE = "/workspace"  # the code's home and working directory; relative paths start here


class Status(StrEnum):
    """How a piece of code ended."""

    OK = "ok"
    ERROR = "error"  # an exception, or a command's exit code other than 0
    TIMEOUT = "timeout"  # interrupted; or killed, if it did not stop (`state_lost`)
    OOM = "oom"  # killed because the box was out of memory
    EXITED = "exited"  # the session itself ended: os._exit(3), or `exit 3` in the shell
    SIGNAL = "signal"  # the session was ended by a signal, such as a segmentation fault
    PROTOCOL = "protocol"  # the code tampered with the channel that carries results


@dataclass(kw_only=True, slots=True, frozen=True)
class ExecutionResult:
    """The outcome of one call of `python` or `bash`."""

    status: Status
    stdout: str = ""  # also of subprocesses and C code; invalid UTF-8 is replaced; see `dropped_bytes`
    stderr: str = ""  # with the traceback, if there is one
    value: str | None = None  # repr() of the last expression; None for Bash, or if the expression is None
    exit_code: int | None = None  # 0, an exit status, or minus the signal that ended the session; None on timeout
    duration: float = 0.0  # seconds, as the caller saw it
    dropped_bytes: int = 0  # output over `Limits.max_output`, cut from the middle, where a marker stands
    state_lost: bool = False  # the session was restarted: its variables or shell state are gone

    @property
    def ok(self) -> bool:
        """The code ran to its end without an error."""
        return self.status is Status.OK


@dataclass(kw_only=True, slots=True, frozen=True)
class FileEntry:
    """One file in a box."""

    path: str  # relative to the listed folder
    kind: Literal["file", "directory", "link", "other"]
    size: int  # bytes


class Executor(Sandbox):
    """A box that runs code and keeps its state from call to call, like a notebook beside a terminal.

        async with DockerExecutor() as box:
            result = await box.python("x = 6 * 7\\nx", timeout=5)
            assert result.value == "42"

    Calls on one box take turns; a call's timeout runs from its turn. Cancelling a call interrupts its code and leaves
    the box usable. Every method but `start` and `close` raises `SandboxClosedError` before `start` and after `close`,
    and `SandboxLostError` if the box dies or does not answer; a lost box stays lost until `reset`.

    An executor of your own implements the nine abstract methods and keeps `_state` up to date. Override the others if
    your box can do better than their defaults.
    """

    _files: Mapping[str, bytes] = MappingProxyType({})

    @abstractmethod
    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        """Run Python code in the session; names stay defined for the next call.

        After `timeout` seconds the code is interrupted (KeyboardInterrupt) and the session kept; code that does not
        stop within `Limits.grace` is killed and the session restarted (`state_lost`). Output that processes of earlier
        calls have written meanwhile comes at the front of stdout.

        Raises:
            SandboxLostError: the box died or did not answer.
            ValueError: `timeout` is not positive and finite.
        """

    @abstractmethod
    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        """Run a command in the shell session; directory, variables and functions stay.

        Background jobs go on and do not hold the call. After `timeout` seconds the command's processes are
        interrupted; a shell that does not return is killed and restarted in the same directory (`state_lost`).

        Raises:
            SandboxLostError: the box died or did not answer.
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
            SandboxFileNotFoundError: there is no such file.
            SandboxPermissionError: it is a link, or the code's user may not read it.
            SandboxFileTooLargeError: it is larger than `Limits.max_file`.
            SandboxFileError: it is not a regular file.
        """

    @abstractmethod
    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        """List the files in a folder, sorted by path; links are listed and not followed.

        Raises:
            SandboxFileError: `path` is not a folder that the code's user may read.
            SandboxFileTooLargeError: the listing is larger than `Limits.max_file`.
        """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for executors whose boxes are interchangeable, once `files` are written.

        It holds the whole configuration but `files`.
        """

    @abstractmethod
    def clone(self) -> Executor:
        """Return a new executor of the same configuration, `files` included, that is not started."""

    # With defaults.

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files that the workspace holds after `start` and `reset`, by relative path.

        A pool empties this in its clones and writes the files when it lends a box, so one box serves leases with
        different files.
        """
        return self._files

    @files.setter
    def files(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def variant(self, *, image: BoxImage | str | Path) -> Executor:
        """Return an executor that is not started, like this one but for its image.

        Raises:
            TypeError: this kind of box has no image.
        """
        raise TypeError(f"a {type(self).__name__} has no image to replace; use a DockerExecutor")

    async def offer(self, functions: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Let the code call functions outside of the box, until the next reset: the module, and the command, `tools`.

        The functions can be called while `python` or `bash` runs code, one at a time, by any process of the code. The
        first offer starts the sessions anew; a later one replaces the functions.

        Args:
            functions: Python source of the functions, for Python 3.8. Each is a signature and a docstring, and marked
                with `@_tool(name, names)`, where `names` maps its parameters to those of the call.
            answer: It is given a call, at most 1 MiB, and returns the answer, at most 4 MiB. A call is whatever bytes
                the code has sent. A function sends JSON, `{"name", "arguments"}`, and reads `{"content", "is_json"}`;
                it raises an `{"error"}` as a `ToolError`, and `"final"` ends the code. If `answer` raises, the code is
                interrupted, and the call of `python` or `bash` raises the error.

        Raises:
            TypeError: this kind of box cannot do it.
            SandboxFileError: there is no room for the module.
        """
        raise TypeError(f"code in a {type(self).__name__} cannot call functions outside; use a DockerExecutor")

    async def ping(self, *, timeout: float = 2.0) -> None:
        """Ask the box for a sign of life; by default this runs an empty piece of Python.

        Raises:
            SandboxLostError: the box did not answer within `timeout` seconds.
        """
        result = await self.python("None", timeout=timeout)
        if not result.ok:
            raise SandboxLostError(f"the box did not answer a ping within {timeout:g} s: {result.status}")
