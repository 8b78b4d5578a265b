"""The requests to one running box over its connection; `supervised_executor.py` starts boxes and replaces them."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..base import ExecutionResult, FileEntry, Status
from ..errors import file_error
from ..guest.protocol import PIECE, SESSIONS
from ..lifecycle import RetireReason
from ..limits import Limits, size_of
from .client import MARGIN, Client
from .connection import Answer, Connection, Content, Decode
from .messages import Fault, Ready, decode_execution, decode_fault, decode_listing, decode_nothing, decode_report
from .outside_calls import Offer, OutsideCalls

OPERATION_SECONDS = 30.0  # for one file operation or reset
_LONGEST_PATH = 4096  # bytes, as the kernel has it


class SupervisorClient(Client):
    """A supervisor and its sessions. Requests are made one at a time.

    Args:
        connection, limits, revive: as of `Client`.
        unreported: the sessions that have lost their state, while no result has said so; shared with later boxes.
    """

    guest = "supervisor"

    def __init__(
        self, connection: Connection, limits: Limits, unreported: set[str], revive: Callable[[bool], Awaitable[bool]]
    ) -> None:
        super().__init__(connection, limits, revive)
        self.unreported = unreported
        self.has_bash = False
        self.retire = ""  # why the box should not be used again: a category, and a detail after a colon
        self._offer: Offer | None = None

    @property
    def retire_reason(self) -> RetireReason | None:
        """Why the box should be replaced; None without a reason."""
        if self.connection.lost:
            return RetireReason("lost", self.connection.lost)
        category, _, detail = self.retire.partition(": ")
        return RetireReason(category, detail) if category else None

    async def boot(self, settings: dict[str, Any], what: str, explain: Callable[[str], Exception | None]) -> Ready:
        ready = await super().boot(settings, what, explain)
        self.has_bash = ready.bash
        return ready

    async def execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        """Run code in one of the two sessions; the duration is for the caller to fill in."""
        data = source.encode("utf-8", "surrogatepass")
        problem = ""  # because of which no session could read the code
        if len(data) > size_of(self.limits.max_code):
            problem = f"the code has {len(data)} bytes, Limits.max_code is {self.limits.max_code}\n"
        elif operation == "bash" and b"\0" in data:
            problem = "bash: a command cannot hold a NUL character\n"
        if problem:
            return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)
        header = {"op": operation, "timeout": timeout}
        execution = self.ask(header, data, decode_execution, timeout + self.limits.grace + MARGIN)
        return await (
            execution if self._offer is None else OutsideCalls(self.connection, self._offer).during(execution)
        )

    async def offer(self, offer: Offer) -> None:
        fault = await self.ask({"op": "offer"}, offer.module, decode_fault, OPERATION_SECONDS)
        if fault is not None:
            raise file_error(fault.errno, "tools", fault.detail)
        self._offer = offer

    async def write_file(self, path: str, data: bytes) -> None:
        limit = size_of(self.limits.max_file)
        if len(data) > limit:
            raise file_error(errno.EFBIG, path, f"the data has {len(data)} bytes, Limits.max_file is {limit}")
        for offset in range(0, max(len(data), 1), PIECE):
            piece = data[offset : offset + PIECE]
            await self._file_operation("write", path, decode_report, {"offset": offset}, piece)

    async def read_file(self, path: str) -> bytes:
        content, limit = bytearray(), size_of(self.limits.max_file)
        while True:
            piece = await self._file_operation("read", path, decode_report, {"offset": len(content)})
            content += piece
            if len(content) > limit:
                raise file_error(errno.EFBIG, path, f"the file has over {limit} bytes, which is Limits.max_file")
            if len(piece) < PIECE:
                return bytes(content)

    async def list_files(self, path: str, recursive: bool) -> list[FileEntry]:
        return await self._file_operation("list", path, decode_listing, {"recursive": recursive})

    async def reset(self, files: Mapping[str, bytes]) -> None:
        """Clean the box in place and write the files. If this does not come to its end, the box is retired."""
        try:
            self._offer = None
            await self.ask({"op": "reset"}, b"", decode_nothing, OPERATION_SECONDS)
            if not self.retire:
                await self.write_files(files)
        except BaseException:
            self.retire = self.retire or "reset: it did not come to its end"
            self.unreported.update(SESSIONS)
            raise

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            await self.write_file(path, data)

    async def _file_operation(
        self,
        operation: str,
        path: str,
        decode: Decode[Content | Fault],
        fields: Mapping[str, object],
        data: bytes = b"",
    ) -> Content:
        if len(path.encode("utf-8", "surrogatepass")) >= _LONGEST_PATH:
            raise file_error(errno.ENAMETOOLONG, path, f"a path has less than {_LONGEST_PATH} bytes")
        header = {"op": "file", "do": operation, "path": path, "limit": size_of(self.limits.max_file), **fields}
        content = await self.ask(header, data, decode, OPERATION_SECONDS)
        if isinstance(content, Fault):
            raise file_error(content.errno, path, content.detail)
        return content

    def _note(self, operation: str, answer: Answer[Any], *, unseen: bool) -> None:
        self.retire = self.retire or answer.retire
        if unseen and isinstance(answer.content, ExecutionResult) and answer.content.state_lost:
            self.unreported.add(operation)
