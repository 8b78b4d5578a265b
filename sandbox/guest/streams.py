"""Programs with streams: one that runs to its end (`Execution`), and one whose streams stay open (`OpenProgram`)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .loop import Capture, Loop, Writer
from .program import Launcher, Program

_MANY = 1 << 20  # bytes of a pipe that carries files, and of one read of it
_SET_PIPE_SIZE = 1031  # of fcntl(2)
_UNREAD = 1 << 20  # bytes of output that an open program may be ahead of its reader
_END_OF_FILE = b"\x04"  # typed into a terminal
_LOCK, _GET_PEER = 0x40045431, 0x5441  # TIOCSPTLCK and TIOCGPTPEER of ioctl(2)

Reply = Callable[[dict[str, Any], list[bytes]], None]


class Execution:
    """A program that runs to its end, with its input, and the head and the tail of its output.

    Processes that it leaves behind go on: `drain` reads their output until they have ended.
    """

    def __init__(
        self,
        loop: Loop,
        launcher: Launcher,
        spec: Mapping[str, Any],
        data: bytes,
        work: Callable[[], Any] | None = None,
    ) -> None:
        self.expired = False  # it was killed at its timeout, or because its caller is gone
        with contextlib.ExitStack() as failed:
            self.out = Capture(loop, spec["max_output"])
            failed.callback(self.out.close)
            self.err = Capture(loop, spec["max_output"])
            failed.callback(self.err.close)
            inner, ours = os.pipe()
            failed.callback(os.close, ours)
            with _closing(inner):
                streams = {0: inner, 1: self.out.write_end, 2: self.err.write_end}
                self.program = Program(loop, launcher, spec, streams, work=work)
            failed.pop_all()
        self._input = Writer(loop, ours)
        if data:
            self._input.write(data, self._input.close)
        else:
            self._input.close()

    @property
    def pid(self) -> int:
        return self.program.pid

    def expire(self) -> None:
        """Kill the program and every process that it has started."""
        self.expired = True
        self.program.signal(signal.SIGKILL)

    def result(self, status: int, oom: bool) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer for a program that has ended with this wait status."""
        (out, out_dropped), (err, err_dropped) = self.out.take(), self.err.take()
        fault = {} if self.expired else self.program.fault()
        code = os.waitstatus_to_exitcode(status)
        kind = "timeout" if self.expired else "error" if code > 0 else "signal" if code else "ok"
        if oom and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            kind = "oom"
        answer = {"status": kind, "code": None if kind == "timeout" else code, "value": False, "lost": False}
        return {**answer, "dropped": out_dropped + err_dropped, **fault}, [out, err, b""]

    def finish(self) -> None:
        """Release everything but the output."""
        self._input.close()
        self.program.close()
        for stream in (self.out, self.err):
            stream.drain()


class OpenProgram:
    """A program whose streams stay open. It waits while it is far ahead of its reader.

    Args:
        terminal: the columns and rows of a terminal; None for pipes.
    """

    def __init__(
        self,
        loop: Loop,
        launcher: Launcher,
        spec: Mapping[str, Any],
        terminal: tuple[int, int] | None,
        work: Callable[[], Any] | None = None,
    ) -> None:
        self._loop = loop
        self._buffer = bytearray()
        self._at_end = self._paused = False
        self._reader: Reply | None = None
        self._waiting: list[Reply] = []
        self.status: int | None = None  # the wait status
        self.has_terminal = terminal is not None
        with contextlib.ExitStack() as failed:
            self._output, theirs = _open_terminal() if terminal else os.pipe()
            failed.callback(os.close, self._output)
            with _closing(theirs):
                inner, ours = (os.dup(theirs), os.dup(self._output)) if terminal else os.pipe()
                failed.callback(os.close, ours)
                with _closing(inner):
                    if terminal:
                        self.resize(*terminal)
                    streams = {0: inner, 1: theirs, 2: theirs}
                    self.program = Program(loop, launcher, spec, streams, is_terminal=bool(terminal), work=work)
            failed.pop_all()
        self._input = Writer(loop, ours)
        if work is not None:
            with contextlib.suppress(OSError):  # root's pipes are too large altogether
                fcntl.fcntl(self._output, _SET_PIPE_SIZE, _MANY)
        os.set_blocking(self._output, False)
        loop.watch(self._output, self._read)

    @property
    def pid(self) -> int:
        return self.program.pid

    def read(self, reply: Reply) -> None:
        """Answer with the output that has come, or that comes next."""
        self._reader = reply
        self._answer_reader()

    def write(self, data: bytes, then: Callable[[], None]) -> None:
        """Write to the program; b"" ends its input."""
        if data or self.has_terminal:
            self._input.write(data or _END_OF_FILE, then)
        else:
            self._input.close()
            then()

    def wait(self, reply: Reply) -> None:
        """Answer with the exit code, once there is one."""
        self._waiting.append(reply)
        if self.status is not None:
            self.on_exit(self.status)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._output, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def on_exit(self, status: int) -> None:
        self.status = status
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply({"code": os.waitstatus_to_exitcode(status)}, [])

    def close(self) -> None:
        """Kill the program and its processes, and release everything. Requests that wait get an answer."""
        self.program.signal(signal.SIGKILL)
        self._input.close()
        self._loop.unwatch(self._output)
        os.close(self._output)
        self.program.close()
        self._at_end = True
        self._answer_reader()
        if self.status is None:
            self.on_exit(signal.SIGKILL)

    def _read(self) -> None:
        try:
            data = os.read(self._output, _MANY)
        except BlockingIOError:
            return
        except OSError:  # the last process has left the terminal
            data = b""
        self._buffer += data
        self._at_end = not data
        self._paused = len(self._buffer) >= _UNREAD
        if self._at_end or self._paused:
            self._loop.unwatch(self._output)
        self._answer_reader()

    def _answer_reader(self) -> None:
        if self._reader is None or not (self._buffer or self._at_end):
            return
        reply, self._reader = self._reader, None
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._paused and not self._at_end:
            self._paused = False
            self._loop.watch(self._output, self._read)
        reply({"end": self._at_end}, [data])


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


def _open_terminal() -> tuple[int, int]:
    """Return both ends of a new terminal. No name but the system's own is opened: the code can replace others."""
    ours = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.ioctl(ours, _LOCK, struct.pack("i", 0))
        return ours, fcntl.ioctl(ours, _GET_PEER, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        os.close(ours)
        raise
