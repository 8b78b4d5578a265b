"""The program inside a box: takes requests from the host, and has other processes run them.

It comes over standard input (`program`), so an image needs nothing but Python >= 3.8. In a container it runs as root
with three capabilities: to become another user, and to signal it; what it may do to other processes and files is a
matter of `inside_container.py`, or of `inside_descendants.py`. What runs code is forked from it, which has imported
everything already: that makes a clean start a matter of milliseconds. It ends when standard input ends, that is when
its owner dies, and leaves nothing behind.

Frames on standard input and output (`protocol.py`); the host sends one request at a time, and `interrupt` meanwhile.
Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import collections
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import inside_files, protocol
from . import inside_processes as processes
from .inside_bash import BashSession
from .inside_container import Container
from .inside_descendants import Descendants
from .inside_host import Host
from .inside_loop import Loop
from .inside_names import Names
from .inside_python import PythonSession
from .protocol import SESSIONS, Decoder, encode

_OPERATION_SECONDS = 12.0  # for reading, writing and listing, which are tried twice; memory is fast
_WIPE_SECONDS = 5.0
_DETAIL = 1000  # characters of what a child says of an error
_KILLED: tuple[dict[str, Any], bytes] = ({"errno": 5, "detail": "the operation was killed", "obstructed": True}, b"")
_MAX_REPORT = 16 << 10  # bytes of it; a number of so many digits is still read in no time
_LEAK_BYTES = 32 << 20  # more memory than this after a reset speaks against reuse


class Supervisor:
    """Owns the box: its settings, its sessions, and every process in it."""

    def __init__(self, settings: dict[str, Any], decoder: Decoder, frames: collections.deque[Any]) -> None:
        self.settings = settings
        self.workspace: str = settings["workspace"]
        self.environment = {**os.environ, **settings["environment"]}
        self.bash = processes.program("bash")
        self.null = os.open(os.devnull, os.O_RDONLY)
        self.territory = Descendants(settings) if settings["local"] else Container(settings)
        self.loop = Loop()
        self.born = time.monotonic()
        self.host = Host(self.loop, decoder, frames, self.born + settings["lifetime"], self.leave)
        self.python = PythonSession(self)
        self.shell = BashSession(self)
        self.retire = ""  # why the box should not be used again; whatever is found stays true

    # The host's requests.

    def serve(self) -> None:
        if self.settings["pipes"]:
            self.host.offer_pipes(time.monotonic() + self.settings["idle"])
        for name in self.settings["preload"]:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not f"{name}.".startswith(f"{error.name}."):
                    raise  # it is there, and what it needs is not
                self.host.reply({"id": 0, "unfit": f"the module {name}, named in preload"}, [])
                self.leave(f"there is no module {name}")
        # Not before: who is asked by a module while that is imported cannot answer, and would keep it waiting.
        warnings = self._tell_names() if self.settings["names"] else []
        gc.collect()
        gc.freeze()  # forked workers share what is here already
        self._begin_clean()  # so that a box begins as it is after a reset, the modes of its folders included
        self.memory, self.oom_kills = self.territory.memory(), self.territory.oom_kills()
        self.host.reply({"id": 0, "bash": bool(self.bash), "warnings": warnings}, [])
        while True:
            self._answer(*self.host.next(time.monotonic() + self.settings["idle"]))
            self.python.ensure()  # in the pause between two requests rather than within the next one

    def _tell_names(self) -> list[str]:
        try:
            self.names = Names()
        except OSError as error:
            return [f"no name is known in the box, `localhost` included: {error}"]
        self.loop.watch(self.names.fileno(), self.names.answer)
        return []

    def _answer(self, header: dict[str, Any], payload: bytes) -> None:
        """Perform one request. What it was and what came of it is gone after that: workers are forked of this."""
        answer, parts = self._perform(header, payload)
        answer["id"], answer["op"] = header["id"], header["op"]
        self.retire = answer["retire"] = self.retire or answer.get("retire", "")
        self.host.reply(answer, parts)

    def _perform(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], list[bytes]]:
        operation, self.loop.current = header["op"], header["id"]
        if operation in SESSIONS:
            session = self.python if operation == "python" else self.shell
            left = self.born + self.settings["lifetime"] - time.monotonic()
            return session.run(payload, min(header["timeout"], max(left, 0.0)))
        if operation == "reset":
            return self._reset(), []
        if operation == "ping":
            return {}, []
        path = os.path.join(self.workspace, header["path"])  # absolute: the process may not even enter its directory
        limit, recursive = self.settings["max_file"], header["recursive"]

        def work() -> bytes:
            return inside_files.perform(operation, path, payload, limit, recursive)

        answer, data = self._in_child(work)
        if "obstructed" in answer and not self.loop.interrupted:
            self.kill_everything()  # the code has used up all processes, or kills or starves whoever works on files
            answer, data = self._in_child(work)
        answer.pop("obstructed", None)
        return answer, [data]

    # Processes.

    def spawn(self, run: Callable[[], Any], fds: dict[int, int], cwd: str = "") -> int:
        """Start one of the code's processes; raises OSError if there are too many, or no memory."""
        cwd = cwd or self.workspace
        pid = processes.spawn(run, fds, {**self.environment, "PWD": cwd}, cwd, self.territory.enter)
        self.loop.expect(pid)
        return pid

    def sweep(self, began: int) -> bool:
        """Kill what was started since a moment; False if only the death of everything could do it."""
        kept = {self.python.pid, self.shell.pid}
        killed: set[int] = set()
        deadline = time.monotonic() + 2.0
        for _ in range(6):  # rounds in which there were new ones: a fork bomb has always new ones
            while True:
                young = processes.started_since(began, self.territory.others() - kept)
                if not young:
                    return True
                if young - killed or time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            self.territory.send(young, signal.SIGKILL)
            killed |= young
        self.kill_everything()
        return False

    def kill_everything(self) -> None:
        """Kill every process of the code, and wait until they are gone."""
        deadline = time.monotonic() + 5.0
        while True:
            self.territory.strike()
            self.loop.reap()
            if not self.territory.others():
                break
            if time.monotonic() > deadline:
                self.leave("a process does not die")
            time.sleep(0.0003)  # orphans are init's children, so nothing tells us of their end
        self.python.forget()
        self.shell.forget()
        self.loop.exits.clear()

    def _reset(self) -> dict[str, Any]:
        self.kill_everything()
        self._begin_clean()
        self.shell.reset()
        grown = self.territory.memory() - self.memory
        retire = self.territory.leftovers()
        if grown > _LEAK_BYTES:
            retire = f"{grown >> 20} MiB of memory are still in use after a reset"
        elif self.territory.oom_kills() > self.oom_kills:
            retire = "oom"
        return {"retire": retire}

    def _begin_clean(self) -> None:
        """Begin a Python session that empties the code's folders first; no process of the code is left."""
        problem = self.python.begin_with(self.territory.wipe, _WIPE_SECONDS)
        if problem:
            self.distrust("the files could not be removed: " + problem[:_DETAIL])
        self.python.ensure()
        self.python.lost = False

    def _in_child(self, work: Callable[[], bytes]) -> tuple[dict[str, Any], bytes]:
        """Have one of the code's processes work on files, and pass on what it says.

        An answer with an errno is `obstructed` where other processes may be the reason.
        """
        frames: list[Any] = []
        decoder = Decoder(max_header=_MAX_REPORT, max_payload=self.settings["max_file"] + 1024)
        read_end, write_end = os.pipe()

        def run() -> None:
            reply = memoryview(encode(*inside_files.report(work)))
            while reply:
                reply = reply[os.write(1, reply) :]
            os._exit(0)

        def on_data() -> None:
            chunk = os.read(read_end, 1 << 20)
            frames.extend(decoder.feed(chunk) if chunk else [_KILLED])

        try:
            pid = self.spawn(run, {0: self.null, 1: write_end, 2: self.null})
        except OSError as error:
            os.close(read_end)
            return {"errno": error.errno, "detail": "no process could be started for it", "obstructed": True}, b""
        finally:
            os.close(write_end)
        self.loop.watch(read_end, on_data)
        deadline = time.monotonic() + _OPERATION_SECONDS
        try:
            while not frames and not self.loop.interrupted and time.monotonic() < deadline:
                self.loop.pump(deadline)
        except protocol.ProtocolError as error:
            frames.append(({"errno": 5, "detail": str(error)}, b""))
        finally:
            self.loop.unwatch(read_end)
            os.close(read_end)
            if pid not in self.loop.exits:
                processes.send([pid], signal.SIGKILL)
                self.loop.await_exit(pid)
            self.loop.exits.pop(pid, None)
        if not frames:
            said = "the operation was interrupted" if self.loop.interrupted else "the operation took too long"
            return {"errno": 110, "detail": said, "obstructed": True}, b""
        header, data = frames[0]
        if not header or frames[0] is _KILLED:
            return dict(header), data
        number, detail = header.get("errno"), str(header.get("detail"))[:_DETAIL]
        known = type(number) is int and 0 < number < 4096
        return {"errno": number if known else 5, "detail": detail}, b""

    def distrust(self, reason: str) -> None:
        """Have the box replaced; of several reasons the first is kept."""
        self.retire = self.retire or reason

    def leave(self, reason: str) -> None:
        """End the box."""
        self.territory.abandon()
        leave(reason)


def leave(reason: str) -> None:
    """End this process. In a container init ends with it, and the kernel kills the rest."""
    os.write(2, f"gymnast: the box ends: {reason}\n".encode())
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr  # what a preloaded module prints is no frame
    # Code may write where relative entries point to, and nothing from there may be imported into this process.
    sys.path = [entry for entry in sys.path if os.path.isabs(entry)]
    decoder, frames = Decoder(), collections.deque()
    while not frames:
        data = os.read(0, 1 << 16)
        if not data:
            leave("its owner is gone")
        frames.extend(decoder.feed(data))
    settings, _ = frames.popleft()
    supervisor = Supervisor(settings, decoder, frames)
    try:
        supervisor.serve()
    finally:
        supervisor.territory.abandon()
