"""The supervisor's end of the connection to the host: standard input and output, or two pipes that the host has opened.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import collections
import os
import select
import time
from collections.abc import Callable
from typing import Any

from .inside_loop import Loop
from .protocol import Decoder, encode

_CHUNK = 1 << 16


class Host:
    """Who sends requests and gets answers; the box ends when it is gone.

    Args:
        loop: where requests are waited for.
        decoder: that of the frames on standard input.
        frames: those that have come already.
        end: the moment of time.monotonic() at which the lifetime of the box is over.
        leave: ends the box, for a reason.
    """

    def __init__(
        self,
        loop: Loop,
        decoder: Decoder,
        frames: collections.deque[tuple[dict[str, Any], bytes]],
        end: float,
        leave: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._decoder = decoder
        self._frames = frames
        self._end = end
        self._leave = leave
        self._requests, self._answers = 0, 1
        loop.watch(0, self._on_requests)

    def next(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        """Wait for the next request; the box ends if none has come by then."""
        deadline = min(deadline, self._end)
        while not self._frames:
            if time.monotonic() >= deadline:
                self._leave("its lifetime or idle time is over")
            self._loop.pump(deadline)
        return self._frames.popleft()

    def reply(self, answer: dict[str, Any], parts: list[bytes]) -> None:
        """Send an answer, with a payload of so many parts."""
        answer["lengths"] = [len(part) for part in parts]
        data = memoryview(encode(answer, b"".join(parts)))
        while data:
            try:
                data = data[os.write(self._answers, data) :]
            except BlockingIOError:
                self._await_room()
            except BrokenPipeError:
                self._leave("its owner is gone")

    def offer_pipes(self, deadline: float) -> None:
        """Offer two pipes, which the host may be able to open; what follows goes over them if it has."""
        requests, theirs = os.pipe()
        ours, answers = os.pipe()
        ends = {"requests": [theirs, os.fstat(theirs).st_ino], "answers": [ours, os.fstat(ours).st_ino]}
        self.reply({"id": 0, "pipes": {"pid": os.getpid(), **ends}}, [])
        taken = self.next(deadline)[0]["taken"]
        for end in (theirs, ours):
            os.close(end)  # who writes to a pipe must not hold its other end, or would not see it end
        if not taken:
            os.close(requests)
            os.close(answers)
            return
        self._requests, self._answers = requests, answers
        os.set_blocking(answers, False)
        self._loop.watch(requests, self._on_requests)
        self._loop.unwatch(0)
        self._loop.watch(0, self._on_end)

    def _await_room(self) -> None:
        """Wait until the host has read something, unless it dies or the box's time is over."""
        if time.monotonic() >= self._end:
            self._leave("its lifetime is over")
        self._loop.watch(self._answers, lambda: None, select.EPOLLOUT)
        self._loop.pump(self._end)
        self._loop.unwatch(self._answers)

    def _on_requests(self) -> None:
        data = os.read(self._requests, _CHUNK)
        if not data:
            self._leave("its owner is gone")
        for header, payload in self._decoder.feed(data):
            if header["op"] == "interrupt":
                self._loop.unwanted = header["id"]
            else:
                self._frames.append((header, payload))

    def _on_end(self) -> None:
        """Standard input, over which nothing comes any more, has ended."""
        self._leave("its owner is gone")
