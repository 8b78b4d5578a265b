"""SupervisedExecutor: the executor contract over a connection to a supervisor (`supervisor.py`), wherever that runs.

A subclass says how a supervisor is started and how it is removed (`supervised_life.py`); everything else is frames over
one connection.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from .answers import result_of
from .arguments import content_of
from .base import DEFAULT_TIMEOUT, ExecutionResult, FileEntry, Limits, Status, check_timeout, size_of
from .cancellation import finish
from .connection import Reply
from .errors import ImageError, SandboxLostError, file_error
from .supervised_life import SupervisedLife

logger = logging.getLogger("gymnast.sandbox")

MARGIN = 5.0  # seconds beyond a call's own time after which a silent box is given up
OPERATION_SECONDS = 30.0  # for one file operation or reset
_LONGEST_PATH = 4096  # bytes, as the kernel has it


class SupervisedExecutor(SupervisedLife):
    """A box behind a supervisor.

    Args:
        limits: what the box may use.
        files: what the workspace holds after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        start_timeout: seconds until the box must be ready.

    Raises:
        TypeError, ValueError: a file is none, or too large, or they do not fit into the workspace or below one another;
            or `start_timeout` is not positive and finite.
    """

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        super().__init__(limits=limits, files=files, start_timeout=start_timeout)
        self._max_code = size_of(limits.max_code)
        self._turn = asyncio.Lock()
        self._unreported: set[str] = set()  # the sessions whose state was lost in a call that nobody saw the end of

    # The contract.

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._execute("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        if self._state == "open" and self._lost is None and not self._has_bash:
            raise ImageError(f"{self.what} has no bash")
        return await self._execute("bash", command, timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = content_of(data)
        limit = size_of(self.limits.max_file)
        if len(content) > limit:
            raise file_error(errno.EFBIG, path, f"the data has {len(content)} bytes, Limits.max_file is {limit}")
        async with self._turn:
            await self._file_operation("write", path, content)

    async def read_file(self, path: str) -> bytes:
        async with self._turn:
            return await self._file_operation("read", path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        async with self._turn:
            listing = await self._file_operation("list", path, recursive=recursive)
        return [FileEntry(path=name, kind=kind, size=size) for name, kind, size in json.loads(listing)]

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        async with self._turn:
            await self._exchange({"op": "ping"}, b"", timeout)

    async def reset(self) -> None:
        async with self._turn:
            self._require_open()
            if self._lost is None and self._retire is None and self._reusable:
                try:
                    await self._reset_in_place()
                except SandboxLostError as error:
                    self._require_open()
                    logger.info("a box was lost at its reset and is replaced: %s", error)
            if self._lost is not None or self._retire is not None or not self._reusable:
                self._discard(self._lost or "it is being replaced")
                await self._open_box()
            self._unreported.clear()

    @property
    def retire_reason(self) -> str | None:
        lost = self._lost or (self._connection.lost if self._connection is not None else None)
        return f"the box is lost: {lost}" if lost else self._retire

    # How.

    async def _reset_in_place(self) -> None:
        try:
            await self._exchange({"op": "reset"}, b"", OPERATION_SECONDS)
            if self._retire is None:
                await self._put_files()
        except BaseException:
            self._retire = self._retire or "reset: it did not come to its end"
            self._unreported.update(("python", "bash"))
            raise

    async def _put_files(self) -> None:
        for path, data in self.files.items():
            await self._file_operation("write", path, data)

    async def _execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        timeout = check_timeout(timeout)
        data = source.encode("utf-8", "surrogatepass")
        problem = self._refusal(operation, data)
        async with self._turn:
            self._require_open()
            if problem:
                return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)
            started = time.perf_counter()
            patience = timeout + self.limits.grace + MARGIN
            try:
                header, parts = await self._exchange({"op": operation, "timeout": timeout}, data, patience)
            except SandboxLostError as error:
                duration = time.perf_counter() - started
                error.result = ExecutionResult(status=Status.SANDBOX_LOST, duration=duration, state_lost=True)
                raise
            header["lost"] |= operation in self._unreported
            self._unreported.discard(operation)
        return result_of(header, parts, time.perf_counter() - started)

    def _refusal(self, operation: str, data: bytes) -> str:
        """What is wrong with a piece of code that no session could even read."""
        if len(data) > self._max_code:
            return f"the code has {len(data)} bytes, Limits.max_code is {self._max_code}\n"
        if operation == "bash" and b"\0" in data:
            return "bash: a command cannot hold a NUL character\n"
        return ""

    async def _file_operation(self, operation: str, path: str, data: bytes = b"", *, recursive: bool = False) -> bytes:
        if len(path.encode("utf-8", "surrogatepass")) >= _LONGEST_PATH:
            raise file_error(errno.ENAMETOOLONG, path, f"a path has less than {_LONGEST_PATH} bytes")
        header = {"op": operation, "path": path, "recursive": recursive}
        answer, parts = await self._exchange(header, data, OPERATION_SECONDS)
        if "errno" in answer:
            raise file_error(int(answer["errno"]), path, str(answer.get("detail", "")))
        return parts[0]

    async def _exchange(self, header: dict[str, Any], payload: bytes, patience: float) -> Reply:
        """One request and its reply; a box that does not answer in time is given up."""
        self._require_open()
        if self._connection is None or self._lost is not None:
            raise SandboxLostError(f"the box is lost: {self._lost}; reset() makes a new one")
        number, reply = self._connection.request(header, payload)
        # asyncio.timeout() and shield() would do as well, and cost noticeably more in every round trip.
        alarm = asyncio.get_running_loop().call_later(patience, _expire, reply)
        try:
            answer = await reply
        except TimeoutError:
            reason = f"it did not answer within {patience:g} s"
            self._discard(reason)
            raise SandboxLostError(f"the box is lost: {reason}") from None
        except SandboxLostError as error:
            self._discard(str(error))
            raise
        except asyncio.CancelledError:
            await finish(self._interrupt(number, reply))
            raise
        finally:
            alarm.cancel()
        self._retire = self._retire or answer[0].get("retire") or None
        return answer

    async def _interrupt(self, number: int, reply: asyncio.Future[Reply]) -> None:
        """End a request whose caller has gone, so that the next finds the box at rest."""
        if self._connection is None:
            return
        if reply.cancelled():
            reply = self._connection.interrupt(number)
        try:
            async with asyncio.timeout(self.limits.grace + MARGIN):
                header, _ = await reply
            self._retire = self._retire or header.get("retire") or None
            if header.get("lost"):
                self._unreported.add(header["op"])
        except (TimeoutError, SandboxLostError) as error:
            self._discard(f"it did not end a cancelled call: {error}")


def _expire(reply: asyncio.Future[Reply]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())
