"""The program that runs a whole box: programs of any user, their streams, and files, several at a time.

It is the first process of the box and, in a container, root, as the code may be. The kernel lets no process of the box
kill it or open its memory; it opens no name that the code can replace (its children do); it never waits for one
request. When its host is gone it ends, and the kernel kills the rest.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import files, folders, processes, users
from .host_link import Host, leave, receive_settings
from .loop import Loop
from .ownership import memory_of
from .program import Launcher, become_undumpable
from .protocol import MAX_REPORT, PIECE, encode
from .streams import Execution, OpenProgram

_FILE_SECONDS = 30.0  # for one piece of a file
_START_SECONDS = 10.0  # for an open program to begin: the code may stop its process before that
_INPUT, _OUTPUT = 0, 1  # descriptors of a child
_CHUNK = 1 << 16
_NO_ROOM = "no process could be started: the box has no room for one more"


class Box:
    """Takes requests and answers them by their ids."""

    def __init__(self, settings: dict[str, Any], exposure: int) -> None:
        self.settings = settings
        self.loop = Loop()
        self.end = time.monotonic() + settings["lifetime"]
        self.host = Host(self.loop, self._take, leave)
        self.memory = memory_of(settings)
        self.loop.check = self.memory.check
        self.launcher = Launcher(settings, exposure)
        self._executions: dict[int, Execution] = {}  # by the id of their request
        self._open: dict[int, OpenProgram] = {}
        self._deadlines: dict[int, float] = {}  # of executions, and of open programs that have not begun
        self._kills = self.memory.oom_kills()
        self._stopped: set[int] = set()  # processes that were stopped before `freeze`
        self._quiet_since = time.monotonic()

    def serve(self) -> None:
        """Answer requests until the box ends."""
        self.host.reply({"id": 0, "bash": False}, [])
        while True:
            self.loop.is_idle = not (self._executions or self._open)
            idle = math.inf if self._executions or self._open else self._quiet_since + self.settings["idle"]
            deadline = min(self.end, idle, *self._deadlines.values()) if self._deadlines else min(self.end, idle)
            self.loop.pump(deadline)
            if self.loop.unreaped:
                self.loop.reap()
            self._after_exits()
            now = time.monotonic()
            for number in [number for number, moment in self._deadlines.items() if moment <= now]:
                self._expire(number)
            if now >= min(self.end, idle):
                leave("its lifetime or idle time is over")

    # Requests.

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        self._quiet_since = time.monotonic()
        number = header["id"]
        try:
            getattr(self, "_on_" + header["op"])(number, header, payload)
        except OSError as error:  # too many processes or descriptors
            detail = _NO_ROOM if isinstance(error, BlockingIOError) else error.strerror or ""
            self._answer(number, {"fault": "start", "errno": error.errno or 5, "detail": detail}, [])

    def _answer(self, number: int, answer: dict[str, Any], parts: list[bytes]) -> None:
        self.host.reply({"id": number, **answer}, parts)

    def _reply(self, number: int) -> Callable[[dict[str, Any], list[bytes]], None]:
        return lambda answer, parts: self._answer(number, answer, parts)

    def _on_exec(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        spec = json.loads(payload[: header["spec"]])
        self._run(number, Execution(self.loop, self.launcher, spec, payload[header["spec"] :]), header["timeout"])

    def _on_file(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        """Read or write a piece of a file in a child with the rights of the user; the host decodes its report."""

        def work() -> None:
            files.run(header, header["path"], payload, follow=True)

        spec = {"user": header["user"], "max_output": 2 * (PIECE + MAX_REPORT)}  # half of it for the head
        self._run(number, Execution(self.loop, self.launcher, spec, b"", work), _FILE_SECONDS)

    def _run(self, number: int, execution: Execution, timeout: float) -> None:
        self._executions[number] = execution
        self._deadlines[number] = time.monotonic() + timeout

    def _on_open(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        spec, work = json.loads(payload), None
        if "pack" in spec:
            work = lambda: _pack(spec["pack"], spec["exclude"])  # noqa: E731
        elif "unpack" in spec:
            work = lambda: _unpack(spec["unpack"], spec["owner"])  # noqa: E731
        opened = OpenProgram(self.loop, self.launcher, spec, header.get("tty"), work)
        self._open[number] = opened
        self._deadlines[number] = time.monotonic() + _START_SECONDS
        opened.program.when_started(lambda fault: self._on_started(number, fault))

    def _on_started(self, number: int, fault: dict[str, Any]) -> None:
        self._deadlines.pop(number, None)
        self._answer(number, fault, [])
        if fault:
            self._open.pop(number).close()

    def _on_read(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        self._open[header["process"]].read(self._reply(number))

    def _on_write(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        self._open[header["process"]].write(payload, lambda: self._answer(number, {}, []))

    def _on_wait(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        self._open[header["process"]].wait(self._reply(number))

    def _on_signal(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        self._open[header["process"]].program.signal(header["number"])
        self._answer(number, {}, [])

    def _on_resize(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        self._open[header["process"]].resize(header["columns"], header["rows"])
        self._answer(number, {}, [])

    def _on_release(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        opened = self._open.pop(header["process"], None)
        self._deadlines.pop(header["process"], None)
        if opened is not None:  # it could be started
            opened.close()
        self._answer(number, {}, [])

    def _on_interrupt(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        if number in self._executions:
            self._expire(number)

    def _on_ping(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        self._answer(number, {}, [])

    def _on_freeze(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        """Stop every other process, so that its files do not change while they are copied."""
        self._stopped = processes.stopped(self._others())
        processes.stop_all(self._others, processes.send)
        users.mend()
        self._answer(number, {}, [])

    def _on_thaw(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        processes.send(self._others() - self._stopped, signal.SIGCONT)
        self._answer(number, {}, [])

    def _others(self) -> set[int]:
        return processes.everyone() - {os.getpid()}

    # Ends.

    def _expire(self, number: int) -> None:
        self._deadlines.pop(number, None)
        if number in self._executions:
            self._executions[number].expire()
        else:
            self._on_started(number, {"fault": "start", "errno": errno.ETIMEDOUT, "detail": "its process was stopped"})

    def _after_exits(self) -> None:
        if not self.loop.exits:
            return
        for number, execution in list(self._executions.items()):
            if execution.pid in self.loop.exits:
                self._conclude(number, execution, self.loop.exits.pop(execution.pid))
        for opened in self._open.values():
            if opened.pid in self.loop.exits:
                opened.on_exit(self.loop.exits.pop(opened.pid))
        self.loop.exits.clear()  # the rest are those of released programs

    def _conclude(self, number: int, execution: Execution, status: int) -> None:
        kills = self.memory.oom_kills()
        answer, parts = execution.result(status, oom=kills > self._kills)
        self._kills = kills
        execution.finish()
        del self._executions[number]
        self._deadlines.pop(number, None)
        self._answer(number, answer, parts)


def _pack(source: str, exclude: list[str]) -> None:
    try:
        for batch in folders.pack(source, exclude):
            files.write_all(_OUTPUT, batch)
    except OSError as error:
        files.write_all(_OUTPUT, encode(files.failure(error)))


def _unpack(target: str, owner: str) -> None:
    user = users.find(owner)
    unpacker = folders.Unpacker(target, (user.uid, user.gid))
    try:
        while not unpacker.at_end:
            data = os.read(_INPUT, _CHUNK)
            if not data:
                return
            unpacker.feed(data)
    except OSError as error:
        files.write_all(_OUTPUT, encode(files.failure(error)))
        return
    files.write_all(_OUTPUT, encode({}))


def main() -> None:
    """Read the settings and run a box with them."""
    exposure = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    become_undumpable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the kernel does not deliver to the first process
    sys.path.clear()
    Box(receive_settings(), exposure).serve()
