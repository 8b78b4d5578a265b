"""The Python session as the supervisor sees it: a worker, its channel, and the checks of what comes from it.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import os
import signal

from .inside_channel import decode_reply, encode_request
from .inside_sessions import Session
from .inside_worker import serve


class PythonSession(Session):
    """The worker of `inside_worker.py`, forked from the supervisor."""

    COMMANDS, REPLIES = 62, 63  # out of the way of code that closes or reuses the first few

    def start(self, fds: dict[int, int]) -> int:
        self.limit: int = self.box.settings["max_output"]
        self.received = bytearray()
        return self.box.spawn(lambda: serve(self.COMMANDS, self.REPLIES, self.limit), fds)

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
