"""Waiting inside the box: for descriptors, for children, and for the output of a session.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

_CHUNK = 1 << 16
_EVENTS = 16  # taken from the kernel at a time
_LONGEST_WAIT = 86400.0  # seconds; the kernel refuses to wait for more than 24 days
_LARGEST_PIPE = 1 << 20  # what a pipe can hold at most, hence what was written before a reply
_DEATH_SECONDS = 2.0  # a killed process is gone long before


class Loop:
    """Waits for descriptors and for children; the supervisor's one place of waiting."""

    def __init__(self) -> None:
        self._epoll = select.epoll()  # as `selectors` would, at twice the cost in every request
        self._calls: dict[int, Callable[[], Any]] = {}
        self.exits: dict[int, int] = {}  # what waitpid() said of expected children that have ended
        self.unburied = False  # a child may have ended since the last look
        self._expected: set[int] = set()
        self.current = 0  # the id of the running request
        self.unwanted = -1  # the id of the request that the host last asked to end
        wakeup, write_end = os.pipe()
        for fd in (wakeup, write_end):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.watch(wakeup, lambda: (os.read(wakeup, _CHUNK), self.reap()))

    def _on_child(self, number: int, frame: Any) -> None:
        self.unburied = True

    @property
    def interrupted(self) -> bool:
        """The host asked to end the running request."""
        return self.current == self.unwanted

    def watch(self, fd: int, call: Callable[[], Any], events: int = select.EPOLLIN) -> None:
        self._epoll.register(fd, events)
        self._calls[fd] = call

    def unwatch(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def pump(self, deadline: float) -> None:
        """Handle what is there, or wait for it until a moment of time.monotonic(), or for some time at least."""
        seconds = min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT)
        for fd, _ in self._epoll.poll(seconds, _EVENTS):
            call = self._calls.get(fd)
            if call is not None:  # else the one before has ended the watch
                call()

    def expect(self, pid: int) -> None:
        """Keep the exit status of a child that was just started; orphans may come to be children too."""
        self.exits.pop(pid, None)  # of an earlier process with this number
        self._expected.add(pid)

    def reap(self) -> None:
        """Bury every child that has ended."""
        self.unburied = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._expected:
                self._expected.discard(pid)
                self.exits[pid] = status

    def await_exit(self, pid: int, seconds: float = _DEATH_SECONDS) -> bool:
        deadline = time.monotonic() + seconds
        while pid not in self.exits and time.monotonic() < deadline:
            self.pump(deadline)
        return pid in self.exits


class Capture:
    """One stream of a session: a pipe that we read, of which a head and a tail are kept."""

    def __init__(self, loop: Loop, limit: int) -> None:
        self.half = limit // 2
        self.head, self.tail, self.seen = bytearray(), bytearray(), 0
        self.more = False  # the last look may not have seen all that was there
        self.loop = loop
        self.fd, self.write_end = os.pipe()
        os.fchmod(self.write_end, 0o622)  # lets the code open /dev/stdout and /dev/stderr
        os.set_blocking(self.fd, False)
        loop.watch(self.fd, self.read)

    def read(self) -> int:
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            self.more = False
            return 0
        self.more = len(data) == _CHUNK
        self.seen += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half:  # seldom, as it moves the tail
            del self.tail[: -self.half]
        return len(data) + max(room, 0)

    def take(self, *, drain: bool) -> tuple[bytes, bytes, int]:
        """Head, tail, and the number of bytes dropped between them.

        What is in the pipe now is part of it. With `drain` it is looked for; otherwise the wait that has just ended saw
        it already, as whatever was written before the end of that wait was told of by the same call of the kernel.
        """
        stop = self.seen + _LARGEST_PIPE
        while (drain or self.more) and self.seen < stop and self.read():
            pass
        head, tail = bytes(self.head), bytes(self.tail[-self.half :])
        dropped = self.seen - len(head) - len(tail)
        self.head, self.tail, self.seen = bytearray(), bytearray(), 0
        return head, tail, dropped

    def close(self) -> None:
        self.loop.unwatch(self.fd)
        os.close(self.fd)
        os.close(self.write_end)
