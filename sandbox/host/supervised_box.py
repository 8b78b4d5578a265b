"""SupervisedBox: the contract of a box over a connection to its guest (`guest/box.py`).

`supervised.py` has the life of a box; `client.py` waits for the answers of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from ..arguments import checked_environment, content_of
from ..base import ExecutionResult, Status
from ..box import EXEC_TIMEOUT, MAX_FILE, MAX_OUTPUT, NO_VARIABLES, Box, Capability
from ..cancellation import finish
from ..errors import SandboxError, SandboxLostError, file_error
from ..guest.folders import FolderError, Unpacker, pack, raise_error
from ..guest.protocol import MAX_PAYLOAD, Decoder, ProtocolError
from ..lifecycle import RetireReason
from ..limits import check_timeout, count_of
from .box_process import RemoteProcess
from .client import MARGIN, PATIENCE, Client, OutOfMemoryError
from .messages import Fault, decode_fault, decode_nothing, decode_program
from .supervised import SupervisedSandbox

Result = TypeVar("Result")

_MAX_INPUT = 64 << 20  # bytes of the standard input of one call
_STALL_SECONDS = 30.0  # in which no byte of a folder goes in or out: the code may have stopped the process that copies
_STALLED = "the copy was ended before its end, or stopped"
_OUTPUTS = range(1 << 10, (16 << 20) + 1)  # bytes kept of each stream


class SupervisedBox(SupervisedSandbox, Box):
    """A box behind a guest."""

    _main = "box"
    capabilities = frozenset({Capability.STREAMS, Capability.TTY, Capability.USERS})

    def clone(self) -> Self:
        return self._twin()

    def _renew(self) -> None:
        super()._renew()
        self._out_of_memory = False
        self._freezing = asyncio.Lock()

    @property
    def retire_reason(self) -> RetireReason | None:
        return RetireReason("oom" if self._out_of_memory else "lost", self._loss) if self._loss else None

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
        timeout = check_timeout(timeout)
        if count_of(max_output, "max_output") not in _OUTPUTS:
            raise ValueError(f"max_output must be from {_OUTPUTS[0]} to {_OUTPUTS[-1]} bytes, got {max_output}")
        spec = {**_spec(command, cwd, env, user), "max_output": max_output}
        started = time.perf_counter()
        try:
            result = await self._with_box(lambda box: _run(box, spec, input, timeout))
        except OutOfMemoryError as error:
            result = ExecutionResult(status=Status.OOM, stderr=f"{error}\n", state_lost=True)
        return dataclasses.replace(result, duration=time.perf_counter() - started)

    @contextlib.asynccontextmanager
    async def open(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] = NO_VARIABLES,
        user: str | int | None = None,
        tty: tuple[int, int] | None = None,
    ) -> AsyncIterator[RemoteProcess]:
        async with self._opened(_spec(command, cwd, env, user), tty) as process:
            yield process

    @contextlib.asynccontextmanager
    async def _opened(
        self, spec: Mapping[str, Any], tty: tuple[int, int] | None = None
    ) -> AsyncIterator[RemoteProcess]:
        process = await self._with_box(lambda box: self._open_program(box, spec, tty))
        try:
            yield process
        finally:
            await finish(process.release())

    async def _open_program(self, box: Client, spec: Mapping[str, Any], tty: tuple[int, int] | None) -> RemoteProcess:
        request = {"op": "open", "tty": tty}
        number, reply = box.connection.request(request, json.dumps(spec).encode(), decode_fault)
        process = RemoteProcess(box.connection, number, tty is not None, self._lost_error)
        try:
            fault = await box.in_patience(reply, PATIENCE)
        except asyncio.CancelledError:
            await finish(process.release())
            raise
        if fault is not None:
            raise _fault_error(fault, spec)
        return process

    async def write_file(self, path: str, data: bytes | str, *, user: str | int | None = None) -> None:
        content = content_of(data)
        await self._with_box(lambda box: box.write_file(path, content, _user(user)))

    async def read_file(self, path: str, *, user: str | int | None = None, limit: int = MAX_FILE) -> bytes:
        return await self._with_box(lambda box: box.read_file(path, limit, _user(user)))

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        await self._with_box(lambda box: box.ping(timeout))

    async def copy_in(self, source: str | Path, target: str, *, user: str | int = 0) -> None:
        spec = {"unpack": target, "owner": _user(user), "user": "0"}
        batches, report = pack(os.fspath(source)), bytearray()
        batch = await asyncio.to_thread(next, batches)
        async with self._opened(spec) as process:
            while batch:
                following = asyncio.ensure_future(asyncio.to_thread(next, batches, b""))
                try:
                    async with asyncio.timeout(_STALL_SECONDS):
                        await process.write(batch)
                except TimeoutError:
                    raise file_error(errno.EIO, target, _STALLED) from None
                finally:
                    batch = await finish(_result(following))
            while data := await process.read(timeout=_STALL_SECONDS):
                report += data
        _check_report(bytes(report), target)

    async def copy_out(
        self, source: str, target: str | Path, *, limit: int = 1 << 30, exclude: Sequence[str] = ()
    ) -> list[str]:
        spec = {"pack": source, "exclude": list(exclude), "user": "0"}
        with contextlib.closing(Unpacker(os.fspath(target), limit=limit)) as unpacker:
            async with self._opened(spec) as process:
                while not unpacker.at_end and (data := await process.read(timeout=_STALL_SECONDS)):
                    with _named(source):
                        await finish(asyncio.to_thread(unpacker.feed, data))
        if not unpacker.at_end:
            raise file_error(errno.EIO, source, _STALLED)
        return unpacker.refused

    @contextlib.asynccontextmanager
    async def _frozen(self) -> AsyncIterator[None]:
        """Stop every process of the box but the guest, for one snapshot at a time."""
        async with self._freezing:
            try:
                await self._with_box(lambda box: box.ask({"op": "freeze"}, b"", decode_nothing, PATIENCE))
                yield
            finally:  # also where the request was cancelled: the guest may have carried it out
                if self._box is not None:
                    with contextlib.suppress(SandboxLostError):
                        await finish(self._with_box(lambda box: box.ask({"op": "thaw"}, b"", decode_nothing, PATIENCE)))

    async def _with_box(self, request: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
        """Make a request. Give up a box that is lost.

        Raises:
            OutOfMemoryError: the box ended for want of memory.
            SandboxLostError: the box is lost for another reason.
        """
        self._require_open()
        if self._box is None:
            raise self._new_lost_error()
        try:
            return await request(self._box)
        except SandboxLostError as error:
            raise await self._lost_error(error) from error

    async def _lost_error(self, error: SandboxLostError) -> SandboxLostError:
        """Give the box up, find out why it is lost, and return the error that says so."""
        if self._box is not None:
            self._out_of_memory = await self._died_of_memory()
            self._give_up("it ran out of memory" if self._out_of_memory else str(error))
        self._require_open()
        return self._new_lost_error()

    def _new_lost_error(self) -> SandboxLostError:
        kind = OutOfMemoryError if self._out_of_memory else SandboxLostError
        return kind(f"the box is lost: {self._lost}")


async def _run(box: Client, spec: Mapping[str, Any], data: bytes, timeout: float) -> ExecutionResult:
    """Run a program to its end; the duration is for the caller to fill in."""
    text = json.dumps(spec).encode()
    if len(data) > _MAX_INPUT or len(text) + len(data) > MAX_PAYLOAD:
        raise ValueError(f"input has at most {_MAX_INPUT} bytes, got {len(data)}: write it to a file")
    header = {"op": "exec", "spec": len(text), "timeout": timeout}
    result = await box.ask(header, text + data, decode_program, timeout + MARGIN)
    if not isinstance(result, Fault):
        return result
    if result.stage != "start":
        raise _fault_error(result, spec)
    return ExecutionResult(status=Status.ERROR, stderr=f"{result.detail}\n", exit_code=126)


def _fault_error(fault: Fault, spec: Mapping[str, Any]) -> Exception:
    """Return the error for a program that was not started."""
    if fault.stage == "user":
        return ValueError(f"user={spec.get('user')!r}: {fault.detail}")
    if fault.stage == "cwd" or "command" not in spec:
        path = spec.get("pack") or spec.get("unpack") or spec.get("cwd")
        return file_error(fault.errno, str(path), fault.detail)
    return SandboxError(fault.detail)


def _spec(
    command: str | Sequence[str], cwd: str | None, env: Mapping[str, str], user: str | int | None
) -> dict[str, Any]:
    arguments = command if isinstance(command, str) else list(command)
    if not arguments or not all(isinstance(one, str) for one in arguments):
        raise TypeError(f"a command is a text, or a list of a program and its arguments, got {command!r:.200}")
    for text in [command] if isinstance(command, str) else [*command, cwd or ""]:
        if "\0" in text:
            raise ValueError(f"neither a command nor cwd can hold a NUL character, got {text!r:.200}")
    return {"command": arguments, "cwd": cwd, "env": checked_environment(env), "user": _user(user)}


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


async def _result(future: asyncio.Future[Result]) -> Result:
    return await future


def _check_report(report: bytes, path: str) -> None:
    """Check the answer of an unpacking process, which the code may have killed."""
    with _named(path):
        frames = Decoder(max_payload=0).feed(report)
        if len(frames) != 1:
            raise FolderError(errno.EIO, _STALLED)
        raise_error(frames[0][0])


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn the errors of a stream of files into those of a file in the box."""
    try:
        yield
    except FolderError as error:
        raise file_error(error.errno or errno.EIO, path, error.strerror or "") from None
    except (ProtocolError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise file_error(errno.EIO, path, f"the box sent no stream of files: {error}") from error
