"""The wide contract of a sandbox: any machine-like thing in which one can run programs. `DockerBox` is the main one.

- `Box`: a machine with files and users. Three methods make one; the others have defaults.
- `Process`: a program that runs in a box, with its streams.
- `Capability`: the abilities that not every box has.

An `Executor` (`base.py`) is narrower and safer: sessions of Python and Bash for one ordinary user. A box gives whole
programs, as root if it must be, to tasks that need a computer.
"""

from __future__ import annotations

import base64
import errno
import io
import math
import os
import shlex
import tarfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType

from .base import ExecutionResult
from .box_image import BoxImage
from .errors import SandboxFileError, SandboxLostError, file_error
from .lifecycle import Sandbox
from .limits import Limits

EXEC_TIMEOUT = 60.0  # seconds for one call of `exec`
MAX_OUTPUT = 1 << 20  # bytes kept of each stream of one call of `exec`
MAX_FILE = 64 << 20  # bytes of one call of `read_file`
_PIECE = 512 << 10  # bytes of a file that one call reads
_ABSENT = 66  # the exit code of a script that does not find the file

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Capability(StrEnum):
    """An ability that not every box has."""

    STREAMS = "streams"  # `open`: a program whose streams can be read and written while it runs
    TTY = "tty"  # `open(tty=...)`: a program in a terminal
    USERS = "users"  # `user=`: programs and files of any user of the image
    SNAPSHOT = "snapshot"  # `snapshot`: the files of a box as an image
    IMAGES = "images"  # `variant(image=...)`: a box of another image


class Process(ABC):
    """A program that runs in a box. It ends with the box, and with the block in which it was opened."""

    @abstractmethod
    async def read(self, *, timeout: float = math.inf) -> bytes:
        """Return the output that has come, stderr among stdout; b"" after its end, or if none came in `timeout` s."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to standard input; `b""` closes it. Wait while the program does not read."""

    @abstractmethod
    async def wait(self, *, timeout: float = math.inf) -> int | None:
        """Return the exit code (minus the number of the signal that ended it), or None if it runs after `timeout` s."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Signal the program and the processes that it has started; nothing happens if they have ended."""

    @abstractmethod
    async def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal. TypeError if the process has none."""


class Box(Sandbox):
    """A machine in which programs run. A box of your own implements `start`, `exec` and `close`.

        async with DockerBox(image=BoxImage.named("python:3.12-slim")) as box:
            result = await box.exec(["python3", "--version"])
            assert result.ok, result.stderr

    Calls run side by side. Every method but `start` and `close` raises `SandboxClosedError` before `start` and after
    `close`, and `SandboxLostError` if the box dies or does not answer. A failed program is a result.
    """

    capabilities: frozenset[Capability] = frozenset()

    reusable = False  # the code may have changed every file

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] = NO_VARIABLES,
        user: str | int | None = None,
        timeout: float = EXEC_TIMEOUT,
        max_output: int = MAX_OUTPUT,
    ) -> ExecutionResult:
        """Run a program to its end.

        After `timeout` seconds every process that the call has started is killed, inside the box; the result holds the
        output so far.

        Args:
            command: a program and its arguments; or a text for `bash -c`, or for `sh -c` where there is no Bash.
            input: the program's standard input.
            cwd: its directory; None for the image's.
            env: its variables, beside the image's.
            user: a name or an id of the box's users; None for the image's.
            timeout: seconds.
            max_output: bytes kept of each stream; longer output loses its middle, where a marker stands.

        Raises:
            SandboxLostError: the box died or did not answer.
            SandboxFileError: there is no such directory.
            ValueError: there is no such user, or an argument is out of range.
        """

    # With defaults.

    def open(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] = NO_VARIABLES,
        user: str | int | None = None,
        tty: tuple[int, int] | None = None,
    ) -> AbstractAsyncContextManager[Process]:
        """Start a program and keep its streams; it is killed at the end of the block. Arguments as of `exec`.

        Args:
            command, cwd, env, user: as of `exec`.
            tty: the columns and rows of a terminal in which the program runs.
        """
        raise TypeError(f"{type(self).__name__} cannot keep a program's streams: it lacks Capability.STREAMS")

    def snapshot(self) -> AbstractAsyncContextManager[BoxImage]:
        """Keep the files of the box, never its processes, as an image that is removed at the end of the block."""
        raise TypeError(f"{type(self).__name__} cannot be kept as an image: it lacks Capability.SNAPSHOT")

    def variant(
        self, *, image: BoxImage | None = None, limits: Limits | None = None, network: str | None = None
    ) -> Box:
        """Return a new box, not started, that is like this one but for the arguments that are given."""
        raise TypeError(f"{type(self).__name__} has one image: it lacks Capability.IMAGES")

    async def write_file(self, path: str, data: bytes | str, *, user: str | int | None = None) -> None:
        """Write a file, and the folders above it; text is encoded as UTF-8.

        Raises:
            SandboxFileError: the user may not write there, or the box is full.
        """
        content = data.encode() if isinstance(data, str) else data
        target = shlex.quote(path)
        script = f'mkdir -p -- "$(dirname -- {target})" && cat > {target}'
        _check(await self.exec(["sh", "-c", script], input=content, user=user), path)

    async def read_file(self, path: str, *, user: str | int | None = None, limit: int = MAX_FILE) -> bytes:
        """Read a regular file; links are followed.

        Raises:
            SandboxFileNotFoundError: there is no such file.
            SandboxFileTooLargeError: it has more than `limit` bytes.
            SandboxFileError: it is not a regular file, or the user may not read it.
        """
        target, content = shlex.quote(path), bytearray()
        while True:
            piece = f"tail -c +{len(content) + 1} -- {target} | head -c {_PIECE} | base64"
            script = f"test -e {target} || exit {_ABSENT}; test -f {target} && test -r {target} && {piece}"
            result = await self.exec(["sh", "-c", script], user=user, max_output=2 * _PIECE)
            if result.exit_code == _ABSENT:
                raise file_error(errno.ENOENT, path)
            _check(result, path)
            data = base64.b64decode(result.stdout)
            content += data
            if len(content) > limit:
                raise too_large(path, limit)
            if len(data) < _PIECE:
                return bytes(content)

    async def copy_in(self, source: str | Path, target: str, *, user: str | int = 0) -> None:
        """Copy a folder of this machine, with its modes and links, into a folder of the box, which may exist.

        Args:
            source: the folder.
            target: an absolute path.
            user: the owner of the copies.

        Raises:
            SandboxFileError: it could not be written.
        """
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(source, ".", filter=lambda member: _owned_by(member, str(user)))
        place = shlex.quote(target)
        script = f"mkdir -p -- {place} && tar -xpf - -C {place}"
        _check(await self.exec(["sh", "-c", script], input=buffer.getvalue(), user=0), target)

    async def copy_out(
        self, source: str, target: str | Path, *, limit: int = 1 << 30, exclude: Sequence[str] = ()
    ) -> list[str]:
        """Copy a file, or the content of a folder, into a folder of this machine.

        Links, devices and pipes are not copied, and nothing is written outside of `target`.

        Args:
            source: an absolute path.
            target: a folder, which is made if it is missing.
            limit: bytes; more is an error.
            exclude: patterns of names that are left out.

        Returns:
            The names that were refused, with the reason.

        Raises:
            SandboxFileNotFoundError: there is no such file.
            SandboxFileTooLargeError: it has more than `limit` bytes.
        """
        os.makedirs(target, exist_ok=True)
        place, packed = shlex.quote(source), f"/tmp/.gymnast-{uuid.uuid4().hex}"
        script = f"test -e {place} || exit {_ABSENT}; if test -d {place}; then set . && cd {place}; else "
        script += f'set "$(basename -- {place})" && cd "$(dirname -- {place})"; fi && tar -cf {packed} -- "$1"'
        try:
            result = await self.exec(["sh", "-c", script], user=0)
            if result.exit_code == _ABSENT:
                raise file_error(errno.ENOENT, source)
            _check(result, source)
            content = await self.read_file(packed, user=0, limit=limit)
        finally:
            await self.exec(["rm", "-f", packed], user=0)
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:  # not a compressed one, which may grow
                if sum(member.size for member in tar) > limit:  # with the holes of files
                    raise too_large(source, limit)
                return _unpack(tar, Path(target), exclude)
        except tarfile.TarError as error:
            raise file_error(errno.EIO, source, f"the box sent no tar file: {error}") from error

    async def ping(self, *, timeout: float = 2.0) -> None:
        result = await self.exec("true", timeout=timeout)
        if not result.ok:
            raise SandboxLostError(f"the box did not answer a ping within {timeout:g} s: {result.status}")

    @property
    def key(self) -> Hashable:
        """Equal for boxes that are interchangeable before their first use; by default, for no others."""
        return id(self)

    def clone(self) -> Box:
        return self.variant()


def _check(result: ExecutionResult, path: str) -> None:
    if not result.ok:
        raise file_error(errno.EIO, path, result.stderr.strip() or f"it ended with {result.status}")


def too_large(path: str, limit: int, limit_name: str = "the limit of this call") -> SandboxFileError:
    """Return the error for a file that is larger than a limit."""
    return file_error(errno.EFBIG, path, f"it has over {limit} bytes, which is {limit_name}")


def _owned_by(member: tarfile.TarInfo, user: str) -> tarfile.TarInfo:
    member.uid, member.uname = (int(user), "") if user.isdigit() else (0, user)
    member.gid, member.gname = 0, ""
    return member


def _unpack(tar: tarfile.TarFile, target: Path, exclude: Sequence[str]) -> list[str]:
    """Write the files and folders of a tar file, which may be hostile; return the names that were refused."""
    refused = []
    for member in tar:
        parts = [part for part in member.name.split("/") if part != "."]
        if not parts or any(fnmatch(part, pattern) for part in parts for pattern in exclude):
            continue
        place = target.joinpath(*parts)
        if member.name.startswith("/") or {"", ".."} & set(parts):
            refused.append(f"{member.name}: it leaves the folder")
        elif member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif member.isreg() and (file := tar.extractfile(member)) is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read())
            place.chmod(member.mode & 0o777 | 0o600)
        else:
            refused.append(f"{'/'.join(parts)}: it is no file")
    return refused
