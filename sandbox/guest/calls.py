"""The way out of a box: the code calls functions of the host over a socket that each of its processes can reach.

A call is a u32 length and so many bytes, and so is its answer. The supervisor passes both on and reads neither. There
is one call at a time, and only while the host's request to run code is answered; other callers wait.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from .loop import Loop, Writer
from .protocol import MAX_CALL

_CHUNK = 1 << 16
_WAITING = 16  # callers that may wait for their turn; further ones wait until they can connect
_LENGTH = 4  # bytes


class Calls:
    """The socket in a folder that the code can read but, in a container, not change. `forward` sends a call on."""

    def __init__(self, loop: Loop, folder: str, forward: Callable[[int, bytes], None]) -> None:
        self.folder = folder
        self._loop = loop
        self._forward = forward
        self._listener: socket.socket | None = None
        self._caller: Writer | None = None
        self._number = 0  # of the last call, so that an answer that is late finds no other one
        self._received = bytearray()

    def open(self, module: bytes) -> bool:
        """Write the module `tools` and the command `tools`, and return whether the socket is new.

        OSError if the box is full, or the code has put something in the way; `close` then removes the rest.
        """
        is_new = self._listener is None
        if is_new:
            os.mkdir(self.folder)
        for name, mode in (("tools.py", 0o644), ("tools", 0o755), ("", 0o755)):
            path = os.path.join(self.folder, name)
            if name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                with open(path, "xb") as file:  # a new one: code may have put a pipe, or a link, in its place
                    file.write(module)
            os.chmod(path, mode)
        if is_new:
            path = os.path.join(self.folder, "socket")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.setblocking(False)
            self._listener.bind(path)
            os.chmod(path, 0o666)
            self._listener.listen(_WAITING)
        return is_new

    def close(self) -> None:
        """Remove all of it. No process of the code is running."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for name in ("tools.py", "tools", "socket"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def begin(self) -> None:
        """Take calls from now on."""
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), self._accept)

    def end(self) -> None:
        """Take no more calls, and drop the open one."""
        if self._listener is not None:
            self._drop()
            self._loop.unwatch(self._listener.fileno())

    def answer(self, number: int, data: bytes) -> None:
        """Pass an answer on, unless its caller is gone."""
        if self._caller is not None and number == self._number:
            self._caller.write(len(data).to_bytes(_LENGTH, "big") + data, self._next)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            caller, _ = self._listener.accept()
        except OSError:  # the caller is gone
            return
        self._caller = Writer(self._loop, caller.detach())
        self._loop.unwatch(self._listener.fileno())
        self._loop.watch(self._caller.fd, self._read)

    def _read(self) -> None:
        assert self._caller is not None
        try:
            data = os.read(self._caller.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        size = int.from_bytes(self._received[:_LENGTH], "big")
        left = _LENGTH + size - len(self._received)
        if not data or size > MAX_CALL or (len(self._received) >= _LENGTH and left < 0):
            self._next()
        elif len(self._received) >= _LENGTH and left == 0:
            self._loop.unwatch(self._caller.fd)
            self._number += 1
            call = bytes(self._received[_LENGTH:])
            self._received.clear()
            self._forward(self._number, call)

    def _next(self) -> None:
        self._drop()
        self.begin()

    def _drop(self) -> None:
        if self._caller is not None:
            self._caller.drop()
            self._caller.close()
            self._caller = None
        self._received.clear()  # forked workers would inherit it
