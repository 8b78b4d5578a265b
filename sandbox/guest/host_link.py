"""The supervisor's end of the connection to the host: requests on standard input, answers on standard output."""

from __future__ import annotations

import collections
import os
import select
import time
from collections.abc import Callable
from typing import Any

from .loop import Loop
from .protocol import Decoder, encode

_REQUESTS, _ANSWERS = 0, 1  # descriptors
_CHUNK = 1 << 16


class Host:
    """The connection to the host. The box is shut down when the host is gone, or at `end` by time.monotonic()."""

    def __init__(
        self,
        loop: Loop,
        decoder: Decoder,
        frames: collections.deque[tuple[dict[str, Any], bytes]],
        end: float,
        shut_down: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._decoder = decoder
        self._frames = frames
        self._end = end
        self._shut_down = shut_down
        self.on_answer: Callable[[int, bytes], None] = lambda number, data: None  # to a call of the code
        for stream in (_REQUESTS, _ANSWERS):  # the box must end in time even if the host does not read
            os.set_blocking(stream, False)
        loop.watch(_REQUESTS, self._on_requests)

    def next(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        """Wait for the next request. If there is no request by the deadline, the box ends."""
        deadline = min(deadline, self._end)
        self._loop.is_idle = True
        while not self._frames:
            if time.monotonic() >= deadline:
                self._shut_down("its lifetime or idle time is over")
            self._loop.pump(deadline)
        self._loop.is_idle = False
        return self._frames.popleft()

    def reply(self, answer: dict[str, Any], parts: list[bytes]) -> None:
        """Send an answer whose payload consists of these parts."""
        answer["lengths"] = [len(part) for part in parts]
        data = memoryview(encode(answer, b"".join(parts)))
        while data:
            try:
                data = data[os.write(_ANSWERS, data) :]
            except BlockingIOError:
                self._await_room()
            except BrokenPipeError:
                self._shut_down("its owner is gone")

    def _await_room(self) -> None:
        """Wait until the host has read something. The box ends if the host dies, or when its lifetime is over."""
        if time.monotonic() >= self._end:
            self._shut_down("its lifetime is over")
        self._loop.watch(_ANSWERS, lambda: None, select.EPOLLOUT)
        self._loop.pump(self._end)
        self._loop.unwatch(_ANSWERS)

    def _on_requests(self) -> None:
        try:
            data = os.read(_REQUESTS, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._shut_down("its owner is gone")
        for header, payload in self._decoder.feed(data):
            self._take(header, payload)

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        if header["op"] == "interrupt":
            self._loop.unwanted = header["id"]
        elif header["op"] == "answer":
            self.on_answer(header["call"], payload)
        else:
            self._frames.append((header, payload))


class ConcurrentHost(Host):
    """A connection with several requests at a time: `take` gets each of them, and no answer waits for the host."""

    def __init__(self, *arguments: Any, take: Callable[[dict[str, Any], bytes], None]) -> None:
        super().__init__(*arguments)
        self._take_request = take
        self._outgoing: collections.deque[memoryview] = collections.deque()

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        self._take_request(header, payload)

    def reply(self, answer: dict[str, Any], parts: list[bytes]) -> None:
        """Send an answer as soon as the host reads."""
        answer["lengths"] = [len(part) for part in parts]
        self._outgoing.append(memoryview(encode(answer, b"".join(parts))))
        if len(self._outgoing) == 1:
            self._send()
            if self._outgoing:
                self._loop.watch(_ANSWERS, self._send, select.EPOLLOUT)

    def _send(self) -> None:
        try:
            while self._outgoing:
                rest = self._outgoing[0][os.write(_ANSWERS, self._outgoing[0]) :]
                if rest:
                    self._outgoing[0] = rest
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._shut_down("its owner is gone")
        self._loop.unwatch(_ANSWERS)
