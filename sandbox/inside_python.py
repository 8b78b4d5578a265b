"""The Python session as the supervisor sees it: a worker, its channel, and the checks of what comes from it.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from .inside_sessions import Session
from .inside_worker import serve
from .protocol import Decoder, ProtocolError, encode, split


class PythonSession(Session):
    """The worker of `inside_worker.py`, forked from the supervisor."""

    COMMANDS, REPLIES = 62, 63  # out of the way of code that closes or reuses the first few

    def start(self, fds: dict[int, int]) -> int:
        limit = self.box.settings["max_output"]
        self.decoder = Decoder(max_payload=3 * limit + (1 << 20))
        run = lambda: serve(self.COMMANDS, self.REPLIES, limit)  # noqa: E731
        return self.box.spawn(run, fds)

    def request(self, source: bytes) -> bytes:
        return encode({"nonce": self.nonce}, source)

    def feed(self, data: bytes) -> None:
        for header, payload in self.decoder.feed(data):
            if self.reply is not None or header.get("nonce") != self.nonce:
                raise ProtocolError("it answered what was not asked")
            self.reply = _checked(header, payload, self.box.settings["max_output"])

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGINT)  # the group: os.system() waits for its child whatever comes


def _checked(header: dict[str, Any], payload: bytes, limit: int) -> dict[str, Any]:
    """A worker's reply, every field of the type that it must have."""
    status, code, value, dropped = (header.get(name) for name in ("status", "code", "value", "dropped"))
    lengths = header.get("lengths")
    if status not in ("ok", "error") or type(code) is not int or type(value) is not bool:
        raise ProtocolError("a reply has a status, code or value of the wrong type")
    if type(dropped) is not int or not 0 <= dropped < 1 << 53 or type(lengths) is not list or len(lengths) != 3:
        raise ProtocolError("a reply says of its parts what cannot be")
    parts = split(payload, lengths)
    error, half = parts[2], limit // 2
    if len(error) > limit:
        parts[2], dropped = error[:half] + b"\n...\n" + error[-half:], dropped + len(error) - 2 * half
    return {"status": status, "code": code & 0xFF, "value": value, "dropped": dropped, "parts": parts}
