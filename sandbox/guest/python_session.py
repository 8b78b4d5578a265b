"""The Python session as the supervisor sees it: a worker, its channel, and the checks of what comes from it.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from .inside_channel import decode_reply, encode_request, new_nonce
from .inside_sessions import Session
from .inside_worker import serve


class PythonSession(Session):
    """The worker of `inside_worker.py`, forked from the supervisor."""

    COMMANDS, REPLIES = 62, 63  # out of the way of code that closes or reuses the first few

    def __init__(self, box: Any) -> None:
        super().__init__(box)
        self.errand: Callable[[], Any] | None = None  # what a worker that is being begun does before its first cell

    def begin_with(self, errand: Callable[[], Any], seconds: float) -> str:
        """Begin a worker that has something else to do first; returns what went wrong, or "".

        It costs a process less than to have another one do it.
        """
        assert not self.pid
        self.errand = errand
        try:
            self.ensure()
        finally:
            self.errand = None
        self._await_reply(seconds)
        reply, self.reply, self.nonce = self.reply, None, b""
        if reply is None:
            self.kill()
            return "it did not come to its end"
        return reply["parts"][2].decode("utf-8", "replace")

    def start(self, fds: dict[int, int]) -> int:
        self.limit: int = self.box.settings["max_output"]
        self.received = bytearray()
        errand = None
        if self.errand is not None:
            self.nonce = new_nonce()
            errand = (self.nonce, self.errand)
        return self.box.spawn(lambda: serve(self.COMMANDS, self.REPLIES, self.limit, errand), fds)

    def request(self, source: bytes) -> bytes:
        return encode_request(self.nonce, source)

    def feed(self, data: bytes) -> None:
        self.received += data
        self.reply = decode_reply(self.received, self.nonce, self.limit)
        if self.reply is not None:
            self.received.clear()

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGINT)  # the group: os.system() waits for its child whatever comes
