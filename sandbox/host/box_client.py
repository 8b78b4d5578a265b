"""The requests to the guest that runs a whole box (`guest/box.py`), several at a time."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..base import ExecutionResult, Status
from ..cancellation import finish
from ..errors import SandboxError, SandboxLostError, file_error
from ..guest.protocol import MAX_PAYLOAD, PIECE
from .box_process import RemoteProcess
from .client import MARGIN, Client
from .messages import Fault, decode_fault, decode_nothing, decode_program, decode_report

MAX_INPUT = 64 << 20  # bytes of the standard input of one call
_PATIENCE = 30.0 + MARGIN  # seconds for a request that does not wait for a program


class BoxClient(Client):
    """A guest that runs programs of any user."""

    guest = "box"

    async def exec(self, spec: Mapping[str, Any], data: bytes, timeout: float) -> ExecutionResult:
        """Run a program to its end.

        Raises:
            SandboxFileError, ValueError: the directory or the user of `spec` does not exist.
        """
        text = json.dumps(spec).encode()
        if len(data) > MAX_INPUT or len(text) + len(data) > MAX_PAYLOAD:
            raise ValueError(f"input has at most {MAX_INPUT} bytes, got {len(data)}: write it to a file")
        started = time.perf_counter()
        header = {"op": "exec", "spec": len(text), "timeout": timeout}
        result = await self.ask(header, text + data, decode_program, timeout + MARGIN)
        if isinstance(result, Fault):
            if result.stage != "start":
                raise fault_error(result, spec)
            result = ExecutionResult(status=Status.ERROR, stderr=f"{result.detail}\n", exit_code=126)
        return dataclasses.replace(result, duration=time.perf_counter() - started)

    async def open(
        self,
        spec: Mapping[str, Any],
        terminal: tuple[int, int] | None,
        explain: Callable[[SandboxLostError], Awaitable[SandboxLostError]],
    ) -> RemoteProcess:
        """Start a program and return it with its streams; raises as `exec`. `explain` is as of `RemoteProcess`."""
        header = {"op": "open", "tty": terminal}
        number, reply = self.connection.request(header, json.dumps(spec).encode(), decode_fault)
        process = RemoteProcess(self, number, terminal is not None, explain)
        try:
            fault = (await self._in_patience(reply, _PATIENCE, helped=True)).content
        except asyncio.CancelledError:
            await finish(process.release())
            raise
        if fault is not None:
            raise fault_error(fault, spec)
        return process

    async def read_file(self, path: str, user: str | None, limit: int) -> bytes:
        content = bytearray()
        while True:
            piece = await self._file({"do": "read", "offset": len(content), "limit": limit}, path, user)
            content += piece
            if len(content) > limit:
                raise file_error(errno.EFBIG, path, f"it has over {limit} bytes, which is the limit of this call")
            if len(piece) < PIECE:
                return bytes(content)

    async def write_file(self, path: str, user: str | None, data: bytes) -> None:
        for offset in range(0, max(len(data), 1), PIECE):
            piece = data[offset : offset + PIECE]
            await self._file({"do": "write", "offset": offset, "limit": 0}, path, user, piece)

    async def _file(self, fields: Mapping[str, Any], path: str, user: str | None, data: bytes = b"") -> bytes:
        header = {"op": "file", "path": path, "user": user, **fields}
        answer = await self.ask(header, data, decode_report, _PATIENCE)
        if isinstance(answer, Fault):
            raise fault_error(answer, {"cwd": path, "user": user})
        return answer

    async def freeze(self) -> None:
        """Stop every process of the box but the guest, until `thaw`."""
        await self.ask({"op": "freeze"}, b"", decode_nothing, _PATIENCE)

    async def thaw(self) -> None:
        await self.ask({"op": "thaw"}, b"", decode_nothing, _PATIENCE)


def fault_error(fault: Fault, spec: Mapping[str, Any]) -> Exception:
    """Return the error for a program that was not started."""
    if fault.stage == "user":
        return ValueError(f"user={spec.get('user')!r}: {fault.detail}")
    if fault.stage == "cwd" or "command" not in spec:
        path = spec.get("pack") or spec.get("unpack") or spec.get("cwd")
        return file_error(fault.errno, str(path), fault.detail)
    return SandboxError(fault.detail)
