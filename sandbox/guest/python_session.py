"""The Python session: the supervisor's side of a worker (`python_worker.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from . import processes
from .python_worker import decode_reply, encode_request, serve
from .session import Session, SessionHost, new_nonce

_DELIVERY_SECONDS = 0.5  # far more than a process needs to take a signal; a stopped one does not take it


class PythonSession(Session):
    """A worker, forked from the supervisor, that keeps its variables and imports."""

    COMMANDS, REPLIES = 62, 63  # out of the way of code that closes or reuses the first few

    def __init__(self, box: SessionHost) -> None:
        super().__init__(box)
        self._setup: Callable[[], Any] | None = None  # what a worker that is being started does before its first cell

    def start_with(self, setup: Callable[[], Any], seconds: float) -> str:
        """Start a worker that calls `setup` before its first cell; return the error of that call, or "".

        A process of its own for `setup` would make each reset longer by a fork.
        """
        assert not self.pid
        self._setup = setup
        try:
            self.ensure()
        finally:
            self._setup = None
        self._await_reply(seconds, processes.now())
        reply, self.reply, self.nonce = self.reply, None, b""
        if reply is None:
            self.kill()
            return "it did not end in time"
        return reply.error.decode("utf-8", "replace")

    def start(self, fds: dict[int, int]) -> int:
        self.limit: int = self.box.settings["max_output"]
        self.received = bytearray()
        setup = None
        if self._setup is not None:
            self.nonce = new_nonce()
            setup = (self.nonce, self._setup)
        return self.box.spawn(lambda: serve(self.COMMANDS, self.REPLIES, self.limit, setup), fds)

    def request(self, source: bytes) -> bytes:
        return encode_request(self.nonce, source)

    def feed(self, data: bytes) -> None:
        self.received += data
        self.reply = decode_reply(self.received, self.nonce, self.limit)
        if self.reply is not None:
            self.received.clear()

    def interrupt(self, began: processes.Moment) -> None:
        """Interrupt the worker, then the processes that its cell has started: os.system() waits for its child anyway.

        Children may end only once the worker has taken its interruption. If both happen at once, Python's `Popen.wait`
        loses the child's exit status: it has reaped the child and is interrupted before it has stored the status.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGINT)
        processes.await_delivery(self.pid, signal.SIGINT, min(_DELIVERY_SECONDS, self.box.settings["grace"] / 4))
        super().interrupt(began)
