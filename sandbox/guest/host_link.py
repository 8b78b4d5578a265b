"""The guest's end of the connection to the host: requests on standard input, answers on standard output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .loop import Loop, Writer
from .protocol import Decoder, encode

_REQUESTS, _ANSWERS = 0, 1  # descriptors
_CHUNK = 1 << 16


def receive_settings() -> dict[str, Any]:
    """Wait for the settings. The host sends nothing else before the guest says that it is ready."""
    decoder, frames = Decoder(), []
    while not frames:
        data = os.read(_REQUESTS, _CHUNK)
        if not data:
            leave("its owner is gone")
        frames = decoder.feed(data)
    return frames[0][0]


def leave(reason: str) -> None:
    """End this process. In a container init then ends too, and the kernel kills the rest."""
    os.write(2, f"gymnast: the box ends: {reason}\n".encode())
    os._exit(0)


class Host:
    """The connection to the host. `take` gets each request; the box is shut down when the host is gone."""

    def __init__(
        self, loop: Loop, take: Callable[[dict[str, Any], bytes], None], shut_down: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._take = take
        self._shut_down = shut_down
        self._decoder = Decoder()
        os.set_blocking(_REQUESTS, False)
        self._answers = Writer(loop, _ANSWERS, lambda: shut_down("its owner is gone"))
        loop.watch(_REQUESTS, self._on_requests)

    def reply(self, answer: dict[str, Any], parts: list[bytes]) -> None:
        """Send an answer whose payload consists of these parts, as soon as the host reads."""
        answer["lengths"] = [len(part) for part in parts]
        self._answers.write(encode(answer, b"".join(parts)))

    def flush(self, end: float) -> None:
        """Wait until the host has read all answers. The box is shut down at a moment of time.monotonic()."""
        while self._answers.is_busy:
            if time.monotonic() >= end:
                self._shut_down("its lifetime is over")
            self._loop.pump(end)

    def _on_requests(self) -> None:
        try:
            data = os.read(_REQUESTS, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._shut_down("its owner is gone")
        for header, payload in self._decoder.feed(data):
            self._take(header, payload)
