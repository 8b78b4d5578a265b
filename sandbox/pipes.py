"""The short way to a box on this machine: two pipes of its supervisor's, without the engine in between.

An engine hands every frame on twice, through a process of its own for each container, which takes nearly half of the
time of a small execution (`benchmarks/sandbox.py`). Whoever may look into other users' processes, as root does, can
open a pipe that another process has open, by its name in `/proc`. The engine's socket stays what the box lives and
dies with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import weakref
from collections.abc import Callable
from typing import Any

_CHUNK = 1 << 18


class Pipes:
    """Two pipes, of which one ends here; what comes is passed to `on_data`, and nothing once it has ended.

    Args:
        requests: the descriptor to write to.
        answers: the descriptor to read from.
        on_data: called with what has come.
        on_end: called when nothing can come any more.
    """

    def __init__(
        self, requests: int, answers: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self.descriptors = requests, answers
        self._on_data = on_data
        self._on_end = on_end
        self._outgoing = bytearray()
        self._let_go = weakref.finalize(self, _close, requests, answers)  # also where the event loop ended before
        self._let_go.atexit = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(answers, self._read)

    def write(self, data: bytes) -> None:
        """Send bytes, as soon as there is room for them."""
        if not self._outgoing:
            data = data[self._write_some(data) :]
            if not data:
                return
            self._loop.add_writer(self.descriptors[0], self._write_more)
        self._outgoing += data

    def read_rest(self) -> None:
        """Pass on what is there, when nobody writes any more."""
        while self._let_go.alive and self._read():
            pass

    def close(self) -> None:
        """Let go of both."""
        if self._let_go.alive:
            requests, answers = self.descriptors
            self._loop.remove_reader(answers)
            self._loop.remove_writer(requests)
            self._let_go()

    def _write_some(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self.descriptors[0], data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # nobody reads it: the end of the answers tells that

    def _write_more(self) -> None:
        del self._outgoing[: self._write_some(self._outgoing)]
        if not self._outgoing:
            self._loop.remove_writer(self.descriptors[0])

    def _read(self) -> bool:
        """Pass on some of what is there; returns whether there was anything."""
        try:
            data = os.read(self.descriptors[1], _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._on_data(data)
        else:
            self._loop.remove_reader(self.descriptors[1])
            self._on_end()
        return bool(data)


def open_pipes(init: int, offer: Any) -> tuple[int, int] | None:
    """Open the pipes that a supervisor offers, to write requests to and to read answers from.

    Nothing is opened but a pipe, and the one that is meant: what the numbers stand for is looked at before.

    Args:
        init: the number, on the engine's machine, of the first process of the supervisor's container.
        offer: the supervisor's number in its container; a descriptor of each pipe there, and the pipe's inode.

    Returns:
        None if this process may not open them, or is not on the same machine, or the offer is none.
    """
    numbers = _numbers_of(offer)
    if numbers is None:
        return None
    pid, ends = numbers
    processes = f"/proc/{init}/root/proc"  # as they are numbered in the container
    opened: list[int] = []
    try:
        if os.stat(processes).st_dev == os.stat("/proc").st_dev:
            return None  # no container: these would be this machine's own
        for (number, inode), way in zip(ends, (os.O_WRONLY, os.O_RDONLY), strict=True):
            path = f"{processes}/{pid}/fd/{number}"
            _check(os.stat(path), inode)
            opened.append(os.open(path, way | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
            _check(os.fstat(opened[-1]), inode)
    except OSError:
        _close(*opened)
        return None
    return opened[0], opened[1]


def _numbers_of(offer: Any) -> tuple[int, list[list[int]]] | None:
    """The process, and of each pipe the descriptor and the inode."""
    try:
        pid, ends = offer["pid"], [list(offer["requests"]), list(offer["answers"])]
    except (KeyError, TypeError):
        return None
    numbers = [pid, *ends[0], *ends[1]]
    if len(numbers) != 5 or len(ends[0]) != 2 or any(type(number) is not int or number < 0 for number in numbers):
        return None
    return pid, ends


def _check(found: os.stat_result, inode: int) -> None:
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != inode:
        raise FileNotFoundError("another process has this number on this machine")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
