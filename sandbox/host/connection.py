"""The host's connection to a supervisor: frames over a socket.

`AttachedConnection` reads the socket that an engine attaches to a container's standard streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from ..errors import SandboxLostError
from ..guest.protocol import MAX_CALL, Decoder, ProtocolError, encode, split
from ..limits import Limits, size_of
from .messages import Header, decode_retire, shown

Content = TypeVar("Content")
Decode = Callable[[Header, list[bytes]], Content]  # takes a header and the parts of the payload

_STREAM_HEADER = 8  # a stream's number, three zeros, and a u32 length, before every piece
_STDERR_TAIL = 4096  # bytes kept of the supervisor's standard error


class Connection(asyncio.Protocol):
    """Sends requests, and matches answers to them by id. Any other message ends the connection."""

    def __init__(self, limits: Limits) -> None:
        self.lost: str | None = None  # the reason why no more requests can be sent
        self.ended = False  # by the box, and not by `abort`
        self.on_end: Callable[[], None] | None = None  # called when the box has ended
        self.on_call: Callable[[int, bytes], None] | None = None  # takes calls of the code; None while no code runs
        self.received = 0  # bytes so far
        self.retire = ""  # the reason that the guest gave why the box should not be used again: a category, a detail
        self._stderr = bytearray()
        # The longest answer is a file, or the output of a call, and 1 MiB for everything else. A call of a `Box` may
        # ask for 16 MiB of each stream, whatever the limits.
        longest = max(size_of(limits.max_file), 8 * size_of(limits.max_output), 32 << 20)
        self._decoder = Decoder(max_payload=longest + (1 << 20))
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Any], Decode[Any]]] = {}  # by the id of the request
        self._next_id = 0  # of the settings
        self._loop = asyncio.get_running_loop()

    @property
    def stderr(self) -> str:
        """The end of the supervisor's own standard error. The code's output never comes here."""
        return self._stderr.decode("utf-8", "replace").strip()

    def send_raw(self, data: bytes) -> None:
        """Send bytes without a frame around them."""
        assert self._transport is not None
        self._transport.write(data)

    def request(
        self, header: dict[str, Any], payload: bytes, decode: Decode[Content]
    ) -> tuple[int, asyncio.Future[Content]]:
        """Send a request. Return its id and its answer, which fails with `SandboxLostError` if the box is lost."""
        number, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[Content] = self._loop.create_future()
        if self.lost is not None or self._transport is None:
            answer.set_exception(SandboxLostError(self.lost or "it is not connected"))
        else:
            frame = encode({**header, "id": number}, payload)
            self._waiting[number] = (answer, decode)
            self._transport.write(frame)
        return number, answer

    def interrupt(self, number: int) -> None:
        """Ask the box to end a request. The answer to that request still comes."""
        if number in self._waiting and self._transport is not None:
            self._transport.write(encode({"op": "interrupt", "id": number}))

    def answer_call(self, number: int, data: bytes) -> None:
        """Send the answer to a call of the code."""
        if self._transport is not None:
            self._transport.write(encode({"op": "answer", "call": number}, data))

    def abort(self, reason: str) -> None:
        """End the connection, and fail all requests that wait for an answer. Works from any event loop."""
        if self._loop is _running_loop():
            self._fail(reason)
            if self._transport is not None:
                self._transport.abort()
            return
        self.lost = self.lost or reason
        if self._transport is not None:
            # The connection's own loop may have ended. The box must end now nevertheless.
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no request waits in it
            self._loop.call_soon_threadsafe(self.abort, reason)

    def detach_after_fork(self) -> None:
        """In a forked child: close its copy of the connection. The box belongs to the parent."""
        if self._transport is None or self.lost is not None:
            return
        number = self._transport.get_extra_info("socket").fileno()
        if number >= 0:
            # The number stays in use: the transport still refers to it, and may close it.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number, inheritable=False)
            os.close(null)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _live_connections().add(self)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        try:
            self._receive(data)
        except ProtocolError as error:
            self.abort(f"it broke the protocol: {error}")

    def eof_received(self) -> None:
        assert self._transport is not None
        self._transport.abort()  # do not wait until requests are written that the box will never read

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError) and self.lost is None:  # a write has failed: the guest may have said why
            self._read_rest()
        self.ended = self.lost is None
        if self.ended and self.on_end is not None:
            self.on_end()
        self._fail(self.stderr or (str(exc) or repr(exc) if exc else "it has ended"))

    def _read_rest(self) -> None:
        assert self._transport is not None
        number = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            while data := os.read(number, 1 << 16):
                self.data_received(data)

    def _receive(self, data: bytes) -> None:
        for header, payload in self._decoder.feed(data):
            self._deliver(header, payload)

    def keep_stderr(self, data: bytes | memoryview) -> None:
        """Add to the end of the supervisor's standard error."""
        self._stderr += data
        del self._stderr[:-_STDERR_TAIL]

    def _deliver(self, header: Header, payload: bytes) -> None:
        if (call := header.get("call")) is not None:
            if self.on_call is None or type(call) is not int or len(payload) > MAX_CALL:
                raise ProtocolError(f"a call {shown(call)} of {len(payload)} bytes, which no running code can make")
            self.on_call(call, payload)
            return
        number, lengths = header.get("id"), header.get("lengths")
        if type(number) is not int or number not in self._waiting or not isinstance(lengths, list):
            raise ProtocolError(f"an answer to request {shown(number)}, which was not sent, or without lengths")
        waiting, decode = self._waiting[number]
        answer, retire = decode(header, split(payload, lengths)), decode_retire(header)
        self.retire = self.retire or retire
        del self._waiting[number]
        if not waiting.done():
            waiting.set_result(answer)

    def _fail(self, reason: str) -> None:
        self.lost = self.lost or reason
        for waiting, _ in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SandboxLostError(self.lost))
                waiting.exception()  # mark it as seen: its caller may be gone
        self._waiting.clear()


class AttachedConnection(Connection):
    """A connection on which the engine puts a header with the number of the stream before every piece."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._prefix = bytearray()
        self._stream, self._left = 0, 0  # of the current piece: its stream, and the bytes still to come

    def _receive(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self.lost is None:
            view = self._take_piece(view)

    def _take_piece(self, view: memoryview) -> memoryview:
        if not self._left:
            missing = _STREAM_HEADER - len(self._prefix)
            self._prefix += view[:missing]
            if len(self._prefix) == _STREAM_HEADER:
                self._stream, self._left = self._prefix[0], int.from_bytes(self._prefix[4:], "big")
                self._prefix.clear()
            return view[missing:]
        piece = view[: self._left]
        self._left -= len(piece)
        if self._stream == 1:
            super()._receive(bytes(piece))
        elif self._stream == 2:
            self.keep_stderr(piece)
        else:
            raise ProtocolError(f"the engine sent stream {self._stream}")
        return view[len(piece) :]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@cache
def _live_connections() -> weakref.WeakSet[Connection]:
    """The open connections. A forked child closes its copies, or a box would outlive its owner."""
    connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    def detach() -> None:
        for connection in list(connections):
            with contextlib.suppress(OSError):
                connection.detach_after_fork()

    os.register_at_fork(after_in_child=detach)
    return connections
