"""The host's end of a box: frames over a socket or pipe to the supervisor.

`AttachedConnection` is for the socket that an engine attaches to a container's standard streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from functools import cache
from typing import Any, cast

from .errors import SandboxLostError
from .pipes import Pipes
from .protocol import Decoder, ProtocolError, encode, split

Reply = tuple[dict[str, Any], list[bytes]]  # a header, and the parts of the payload

_STREAM_HEADER = 8  # a stream's number, three zeros, and a u32 length, before every piece
_LAST_WORDS = 1.0  # seconds in which the socket may tell why a box has ended whose pipes have
_STDERR_TAIL = 4096  # bytes kept of what the supervisor says when it breaks


class Connection(asyncio.Protocol):
    """Sends requests and gives each the reply with its id; anything else that comes ends the connection."""

    def __init__(self, max_payload: int) -> None:
        self.lost: str | None = None  # why nothing can be sent any more
        self._stderr = bytearray()
        self._decoder = Decoder(max_payload=max_payload)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._next_id = 1
        self._loop = asyncio.get_running_loop()

    @property
    def stderr(self) -> str:
        """The end of what the supervisor wrote to standard error; nothing that code prints comes here."""
        return self._stderr.decode("utf-8", "replace").strip()

    def send_raw(self, data: bytes) -> None:
        """Send bytes that are no frame."""
        assert self._transport is not None
        self._transport.write(data)

    def hello(self, settings: dict[str, Any]) -> asyncio.Future[Reply]:
        """Send the settings; the reply comes when the box is ready."""
        return self._send(0, settings, b"")

    def request(self, header: dict[str, Any], payload: bytes = b"") -> tuple[int, asyncio.Future[Reply]]:
        """Send a request; returns its id and the reply to come, which fails with `SandboxLostError` if none can."""
        number = self._next_id
        self._next_id += 1
        return number, self._send(number, header, payload)

    def interrupt(self, number: int) -> asyncio.Future[Reply]:
        """Ask the box to end a request whose reply nobody awaits any more; returns the reply, to be awaited again."""
        reply: asyncio.Future[Reply] = self._loop.create_future()
        if self._transport is None or self.lost is not None:
            reply.set_exception(SandboxLostError(f"the box is gone: {self.lost}"))
        elif number not in self._waiting:  # it has come, and nobody has seen what it says of the box
            reply.set_result(({"retire": "interrupt: the answer to a cancelled call was missed"}, []))
        else:
            self._waiting[number] = reply
            self._write(encode({"op": "interrupt", "id": number}))
        return reply

    def abort(self, reason: str) -> None:
        """End the connection, and fail whoever waits for a reply; from any event loop."""
        if self._loop is _running_loop():
            self._fail(reason)
            if self._transport is not None:
                self._transport.abort()
            return
        self.lost = self.lost or reason
        if self._transport is not None:
            # Its own loop may have ended, and the box must end all the same, and now.
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        try:
            self._loop.call_soon_threadsafe(self.abort, reason)
        except RuntimeError:  # it is closed, and nobody waits there any more
            # What the loop would call to close the socket: nothing public does, and to be collected is to warn.
            transport, self._transport = self._transport, None
            with contextlib.suppress(RuntimeError):
                getattr(transport, "_call_connection_lost", lambda _: None)(None)

    def _send(self, number: int, header: dict[str, Any], payload: bytes) -> asyncio.Future[Reply]:
        reply: asyncio.Future[Reply] = self._loop.create_future()
        if self.lost is not None or self._transport is None:
            reply.set_exception(SandboxLostError(f"the box is gone: {self.lost}"))
            return reply
        frame = encode({**header, "id": number}, payload)
        self._waiting[number] = reply
        self._write(frame)
        return reply

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)

    def let_go(self) -> None:
        """In a child that was forked from this process: do not hold the box, which is its parent's."""
        if self._transport is None or self.lost is not None:
            return
        number = self._transport.get_extra_info("socket").fileno()
        if number >= 0:
            _replace(number)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _live_connections().add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._receive(data)
        except ProtocolError as error:
            self.abort(str(error))

    def eof_received(self) -> None:
        assert self._transport is not None
        self._transport.abort()  # else a request that cannot be written any more would keep the end from being seen

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self.stderr or (str(exc) or repr(exc) if exc else "it has ended"))

    def _receive(self, data: bytes) -> None:
        for header, payload in self._decoder.feed(data):
            self._deliver(header, payload)

    def _complain(self, data: bytes | memoryview) -> None:
        self._stderr += data
        del self._stderr[:-_STDERR_TAIL]

    def _deliver(self, header: dict[str, Any], payload: bytes) -> None:
        number, lengths = header.get("id"), header.get("lengths")
        if not isinstance(number, int) or number not in self._waiting or not isinstance(lengths, list):
            raise ProtocolError(f"the box sent what was not asked for: {header!r:.200}")
        parts = split(payload, lengths)
        reply = self._waiting.pop(number)
        if not reply.done():
            reply.set_result((header, parts))

    def _fail(self, reason: str) -> None:
        self.lost = self.lost or reason
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(SandboxLostError(f"the box is gone: {self.lost}"))
                reply.exception()  # nobody may be waiting for it any more
        self._waiting.clear()


class AttachedConnection(Connection):
    """A connection on which the engine marks every piece with the stream that it belongs to."""

    def __init__(self, max_payload: int) -> None:
        super().__init__(max_payload)
        self._prefix = bytearray()
        self._stream, self._left = 0, 0  # of the piece that is being received
        self._pipes: Pipes | None = None

    def use_pipes(self, requests: int, answers: int) -> None:
        """Speak over pipes from now on; the socket still tells when the box ends, and why."""
        self._pipes = Pipes(requests, answers, self._on_data, self._on_end)
        if self.lost is not None:
            self._close_pipes()

    def let_go(self) -> None:
        if self._pipes is not None:
            for number in self._pipes.descriptors:
                _replace(number)
        super().let_go()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pipes is not None and self.lost is None:
            self._pipes.read_rest()  # the box may have answered before it ended
        super().connection_lost(exc)
        self._close_pipes()

    def _write(self, frame: bytes) -> None:
        if self._pipes is not None:
            self._pipes.write(frame)
        else:
            super()._write(frame)

    def _on_data(self, data: bytes) -> None:
        if self.lost is not None:
            return
        try:
            Connection._receive(self, data)
        except ProtocolError as error:
            self.abort(str(error))

    def _on_end(self) -> None:
        self._loop.call_later(_LAST_WORDS, self.abort, "it has ended")

    def _close_pipes(self) -> None:
        if self._pipes is not None:
            self._pipes.close()
            self._pipes = None

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
            if self._pipes is not None:
                raise ProtocolError("something in the box writes to its supervisor's standard output")
            super()._receive(bytes(piece))
        elif self._stream == 2:
            self._complain(piece)
        else:
            raise ProtocolError(f"the engine sent stream {self._stream}")
        return view[len(piece) :]


def _replace(number: int) -> None:
    """Let go of what a descriptor stands for; its number stays taken, as somebody may still close it."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, number, inheritable=False)
    os.close(null)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@cache
def _live_connections() -> weakref.WeakSet[Connection]:
    """The connections that a forked child must let go of, lest a box outlives its owner's death."""
    connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    def let_go() -> None:
        for connection in list(connections):
            with contextlib.suppress(OSError):
                connection.let_go()

    os.register_at_fork(after_in_child=let_go)
    return connections
