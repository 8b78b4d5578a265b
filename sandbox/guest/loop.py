"""The event loop of both guests: it waits for descriptors, for children, and for output."""

from __future__ import annotations

import collections
import math
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from .protocol import joined

_CHUNK = 1 << 16
_MOST = 1 << 18  # bytes written at a time
_EVENTS = 16  # taken from the kernel at a time
_LONGEST_WAIT = 86400.0  # seconds; the kernel refuses to wait for more than 24 days
_LARGEST_PIPE = 1 << 20  # bytes that a pipe can hold: so much output may come before a reply and be still unread
_DEATH_SECONDS = 2.0  # far more than a killed process needs to end


class Loop:
    """Waits for descriptors and for children."""

    def __init__(self) -> None:
        self._epoll = select.epoll()  # `selectors` uses it too, at twice the cost in each call
        self._calls: dict[int, Callable[[], Any]] = {}
        self.exits: dict[int, int] = {}  # the wait statuses of expected children that have ended
        self.unreaped = False  # whether a child may have ended since the last reap()
        self._expected: set[int] = set()
        self.current = 0  # the id of the running request
        self.check: Callable[[bool], float] = lambda is_idle: math.inf  # called by `pump`; returns seconds to the next
        self.is_idle = False  # no request is running
        self._next_check = 0.0
        self.unwanted = -1  # the id of the request that the host asked to interrupt last
        wakeup, write_end = os.pipe()
        for fd in (wakeup, write_end):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.watch(wakeup, lambda: (os.read(wakeup, _CHUNK), self.reap()))

    def _on_child(self, number: int, frame: Any) -> None:
        self.unreaped = True

    @property
    def interrupted(self) -> bool:
        """Whether the host asked to interrupt the running request."""
        return self.current == self.unwanted

    def watch(self, fd: int, call: Callable[[], Any], events: int = select.EPOLLIN) -> None:
        """Have `pump` call a function whenever a descriptor can be read."""
        self._epoll.register(fd, events)
        self._calls[fd] = call

    def unwatch(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def pump(self, deadline: float) -> None:
        """Wait for events until a moment of time.monotonic(), or for less, and handle them."""
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + self.check(self.is_idle)
        seconds = min(max(0.0, min(deadline, self._next_check) - now), _LONGEST_WAIT)
        for fd, _ in self._epoll.poll(seconds, _EVENTS):
            call = self._calls.get(fd)
            if call is not None:  # None if an earlier event of this round ended the watch
                call()

    def expect(self, pid: int) -> None:
        """Keep the wait status of this child when it ends. Those of orphans, which become children too, are dropped."""
        self.exits.pop(pid, None)  # of an earlier process with this id
        self._expected.add(pid)

    def is_unreaped(self, pid: int) -> bool:
        """Whether an expected child still has its process id, which no other process can have meanwhile."""
        return pid in self._expected

    def reap(self) -> None:
        """Take the wait status of every child that has ended."""
        self.unreaped = False
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
        """Wait for an expected child to end; return whether it did so in time."""
        deadline = time.monotonic() + seconds
        while pid not in self.exits and time.monotonic() < deadline:
            self.pump(deadline)
        return pid in self.exits


class Writer:
    """Writes to a descriptor as fast as the other end reads; nobody waits for it. It closes the descriptor.

    Args:
        on_broken: called when the other end does not read any more.
    """

    def __init__(self, loop: Loop, fd: int, on_broken: Callable[[], None] = lambda: None) -> None:
        self.fd = fd
        self._loop = loop
        self._on_broken = on_broken
        self._queue: collections.deque[tuple[memoryview, Callable[[], None]]] = collections.deque()
        self._waits = False  # for room
        os.set_blocking(fd, False)

    @property
    def is_busy(self) -> bool:
        """Not everything is written yet."""
        return bool(self._queue)

    def write(self, data: bytes, then: Callable[[], None] = lambda: None) -> None:
        """Write, and then call a function; so also if the other end does not read any more."""
        if self.fd < 0:
            then()
            return
        self._queue.append((memoryview(data), then))
        if len(self._queue) == 1:
            self._write()

    def drop(self) -> None:
        """Forget the data that is still to be written."""
        self._queue.clear()
        self._await_room(False)

    def close(self) -> None:
        if self.fd < 0:
            return
        self._loop.unwatch(self.fd)
        os.close(self.fd)
        self.fd, self._waits = -1, False
        queue, self._queue = self._queue, collections.deque()
        for _, then in queue:
            then()

    def _write(self) -> None:
        data, then = self._queue[0]
        try:
            written = os.write(self.fd, data[:_MOST])  # not more, as others wait for their turn
        except BlockingIOError:
            written = 0
        except OSError:
            self.close()
            self._on_broken()
            return
        if written < len(data):
            self._queue[0] = (data[written:], then)
        else:
            self._queue.popleft()
        self._await_room(bool(self._queue))
        if written == len(data):
            then()

    def _await_room(self, waits: bool) -> None:
        if waits and not self._waits:
            self._loop.watch(self.fd, self._write, select.EPOLLOUT)
        elif self._waits and not waits:
            self._loop.unwatch(self.fd)
        self._waits = waits


def _open_pipe(user: int | None) -> tuple[int, int]:
    """Return a pipe to which a user can also write by its name, as the code does that opens /dev/stdout."""
    read_end, write_end = os.pipe()
    try:
        os.fchmod(write_end, 0o622)
    except PermissionError:  # gVisor changes the mode of no pipe; but a pipe belongs to the user who makes it
        if user is not None:
            os.close(read_end)
            os.close(write_end)
            os.setresuid(-1, user, -1)
            try:
                return os.pipe()
            finally:
                os.setresuid(-1, 0, -1)
    return read_end, write_end


class Capture:
    """One output stream of a session: a pipe, and the head and tail of the bytes that came through it."""

    def __init__(self, loop: Loop, limit: int, user: int | None = None) -> None:
        self.half = limit // 2
        self.head, self.tail, self.seen = bytearray(), bytearray(), 0
        self.draining = False
        self.loop = loop
        self.fd, self.write_end = _open_pipe(user)
        os.set_blocking(self.fd, False)
        loop.watch(self.fd, self.read)

    def read(self) -> int:
        """Read once, and return the number of bytes."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return 0
        size = len(data)
        if self.draining:
            if not size:
                self.loop.unwatch(self.fd)
                os.close(self.fd)
            return size
        self.seen += size
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half:  # seldom, as it copies the tail
            del self.tail[: -self.half]
        return size

    def take(self) -> tuple[bytes, int]:
        """Empty the pipe; return the bytes, and the number of those that were dropped in their middle."""
        stop = self.seen + _LARGEST_PIPE
        while self.seen < stop and self.read():
            pass
        head, tail = bytes(self.head), bytes(self.tail[-self.half :])
        dropped = self.seen - len(head) - len(tail)
        self.head, self.tail, self.seen = bytearray(), bytearray(), 0
        return joined(head, tail, dropped), dropped

    def drain(self) -> None:
        """Keep no more output; read it, so that its writers can go on, and close when the last one has ended."""
        self.draining = True
        os.close(self.write_end)

    def close(self) -> None:
        self.loop.unwatch(self.fd)
        os.close(self.fd)
        os.close(self.write_end)
