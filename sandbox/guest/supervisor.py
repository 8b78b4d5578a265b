"""The supervisor: the program inside a box that takes requests from the host and runs them in other processes.

Its source comes over standard input (`host/boot.py`), so an image needs nothing but Python >= 3.8. In a container it
runs as root with three capabilities: to become another user, and to signal that user's processes. `ownership.py` says
which processes and files belong to it. Workers are forked from it, with everything imported already, so a clean session
starts within milliseconds. It ends when standard input ends, that is when its owner dies, and leaves nothing behind.

Requests and answers are frames (`protocol.py`). The host sends one request at a time, and `interrupt` while it runs.
"""

from __future__ import annotations

import collections
import errno
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import files, processes
from .bash_session import BashSession
from .calls import Calls
from .host_link import Host, leave, receive_settings
from .loop import Capture, Loop
from .ownership import Container, Descendants, Owner
from .protocol import MAX_REPORT, SESSIONS
from .python_session import PythonSession

_OPERATION_SECONDS = 12.0  # for one try of a file operation, of which there are two
_WIPE_SECONDS = 5.0
_DETAIL = 1000  # characters of an error's text
_LEAK_BYTES = 32 << 20  # a box that uses so much more memory after a reset than at its start is replaced


class Supervisor:
    """Runs the box: its settings, its sessions, and every process in it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.workspace: str = settings["workspace"]
        self._own_environment = self.environment = {**os.environ, **settings["environment"]}
        self.owned: Owner = Descendants(settings) if settings["local"] else Container(settings)
        self.loop = Loop()
        self.loop.check = self.owned.memory.check
        self.end = time.monotonic() + settings["lifetime"]
        self.host = Host(self.loop, self._take, self.shut_down)
        self._requests: collections.deque[tuple[dict[str, Any], bytes]] = collections.deque()
        local = settings["local"]
        # Where the code is another user, it may not change the folder above this one.
        above = "/tmp" if not local else local["tmp"] if settings["user"] is None else local["root"]
        folder = os.path.join(above, ".tools")
        self.calls = Calls(self.loop, folder, lambda number, call: self.host.reply({"call": number}, [call]))
        self.python = PythonSession(self)
        self.shell = BashSession(self)
        self.retire_reason = ""  # why the box should not be used again

    # The host's requests.

    def serve(self) -> None:
        """Prepare the box, tell the host that it is ready, and answer requests until the box ends."""
        os.environ.update(self.settings["environment"])  # preloaded modules may read it when they are imported
        for name in self.settings["preload"]:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not f"{name}.".startswith(f"{error.name}."):
                    raise  # the module is there, but a module that it imports is not
                self.host.reply({"id": 0, "unfit": f"the module {name}, named in preload"}, [])
                self.shut_down(f"there is no module {name}")
        gc.collect()
        gc.freeze()  # forked workers share the memory of all objects that exist now
        self._start_clean()  # a new box is as it is after a reset, down to the modes of its folders
        self.used, self.oom_kills = self.owned.memory.usage(), self.owned.memory.oom_kills()
        self.host.reply({"id": 0, "bash": bool(self.shell.program)}, [])
        while True:
            self._answer(*self._next())
            self.host.flush(self.end)  # workers are forked from this process, and would inherit the rest of an answer
            self.python.ensure()  # in the pause between two requests rather than within the next one

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        if header["op"] == "interrupt":
            self.loop.unwanted = header["id"]
        elif header["op"] == "answer":
            self.calls.answer(header["call"], payload)
        else:
            self._requests.append((header, payload))

    def _next(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the next request."""
        deadline = min(time.monotonic() + self.settings["idle"], self.end)
        self.loop.is_idle = True
        while not self._requests:
            if time.monotonic() >= deadline:
                self.shut_down("its lifetime or idle time is over")
            self.loop.pump(deadline)
        self.loop.is_idle = False
        return self._requests.popleft()

    def _answer(self, header: dict[str, Any], payload: bytes) -> None:
        """Perform one request. Keep no reference to it: workers are forked from this process, and would inherit it."""
        answer, parts = self._perform(header, payload)
        answer["id"] = header["id"]
        self.retire(answer.get("retire", ""))
        answer["retire"] = self.retire_reason
        self.host.reply(answer, parts)

    def _perform(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], list[bytes]]:
        operation, self.loop.current = header["op"], header["id"]
        if operation in SESSIONS:
            session = self.python if operation == "python" else self.shell
            left = self.end - time.monotonic()
            self.calls.begin()
            try:
                return session.run(payload, min(header["timeout"], max(left, 0.0)))
            finally:
                self.calls.end()
        if operation == "offer":
            return self._offer(payload), []
        if operation == "reset":
            return self._reset(), []
        if operation == "ping":
            return {}, []
        assert operation == "file", operation
        return self._file(header, payload)

    def _file(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], list[bytes]]:
        """Perform a file operation in a child with the code's rights; the host decodes its report."""
        # Absolute, as the child cannot enter its working directory if the code has closed it.
        path = os.path.join(self.workspace, header["path"])

        def work() -> None:
            files.run(header, path, payload)
            os._exit(0)

        failure, report = self._in_child(work)
        if failure and not self.loop.interrupted:
            self.kill_everything()  # the code has used up the processes or the memory, or killed the child
            failure, report = self._in_child(work)
        return failure, [report]

    def _offer(self, module: bytes) -> dict[str, Any]:
        """Let the code call functions of the host. The sessions begin anew at the first offer, to find them."""
        try:
            is_new = self.calls.open(module)
        except OSError as error:
            self.calls.close()
            # A path that is too long for a socket raises an OSError without a number.
            return {"errno": error.errno or errno.ENAMETOOLONG, "detail": error.strerror or str(error)}
        if is_new:
            own, folder = self._own_environment, self.calls.folder
            paths = {"PATH": os.get_exec_path(own), "PYTHONPATH": own.get("PYTHONPATH", "").split(":")}
            found = {name: ":".join(filter(None, [*entries, folder])) for name, entries in paths.items()}
            self.environment = {**own, **found}
            self.kill_everything()
            self.python.lost = self.shell.lost = False
        return {}

    # Processes.

    def spawn(self, run: Callable[[], Any], fds: dict[int, int], cwd: str = "") -> int:
        """Start one of the code's processes; raises OSError if there are too many, or no memory."""
        cwd = cwd or self.workspace
        pid = processes.spawn(run, fds, {**self.environment, "PWD": cwd}, cwd, self.owned.confine)
        self.loop.expect(pid)
        return pid

    def kill_since(self, began: processes.Moment) -> bool:
        """Kill the processes that were started since a moment; return False if all had to be killed for that."""
        kept = {self.python.pid, self.shell.pid}
        killed: set[int] = set()
        deadline = time.monotonic() + 2.0
        for _ in range(6):  # rounds with new processes; a fork bomb always has new ones
            while True:
                young = processes.started_since(began, self.owned.processes() - kept)
                if not young:
                    return True
                if young - killed or time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            self.owned.signal(young, signal.SIGKILL)
            killed |= young
        self.kill_everything()
        return False

    def kill_everything(self) -> None:
        """Kill every process of the code, and wait until they are gone."""
        deadline = time.monotonic() + 5.0
        while True:
            self.owned.kill_all()
            self.loop.reap()
            if not self.owned.processes():
                break
            if time.monotonic() > deadline:
                self.shut_down("a process does not die")
            time.sleep(0.0003)  # orphans are init's children, so no signal tells us of their end
        self.python.forget()
        self.shell.forget()
        self.loop.exits.clear()

    def _reset(self) -> dict[str, Any]:
        self.kill_everything()
        self.calls.close()
        self.environment = self._own_environment
        self._start_clean()
        self.shell.reset()
        grown = self.owned.memory.usage() - self.used
        retire = self.owned.leftovers()
        if grown > _LEAK_BYTES:
            retire = f"memory: {grown >> 20} MiB are still in use after a reset"
        elif self.owned.memory.oom_kills() > self.oom_kills:
            retire = "oom"
        return {"retire": retire}

    def _start_clean(self) -> None:
        """Start a Python session that first empties the code's folders. No process of the code is running."""
        problem = self.python.start_with(self.owned.wipe, _WIPE_SECONDS)
        if problem:
            self.retire("reset: the files could not be removed: " + problem[:_DETAIL])
        self.python.ensure()
        self.python.lost = False

    def _in_child(self, work: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
        """Run a child to its end; return nothing and its output, or why it was not run to its end."""
        longest = self.settings["max_file"] + MAX_REPORT
        out = Capture(self.loop, 2 * longest)  # half of it for the head
        try:
            pid = self.spawn(work, {1: out.write_end})
        except OSError as error:
            out.close()
            return {"errno": error.errno or errno.EIO, "detail": "no process could be started for it"}, b""
        deadline = time.monotonic() + _OPERATION_SECONDS
        try:
            while pid not in self.loop.exits and not self.loop.interrupted and time.monotonic() < deadline:
                if out.seen > longest:
                    break
                self.loop.pump(deadline)
            status, (report, _) = self.loop.exits.get(pid), out.take()
        finally:
            out.close()
            if pid not in self.loop.exits:
                processes.send([pid], signal.SIGKILL)
                self.loop.await_exit(pid)
            self.loop.exits.pop(pid, None)
        if len(report) > longest:  # other processes of the code have written to the pipe
            return {"errno": errno.EIO, "detail": f"its report has more than {longest} bytes"}, b""
        if status is None:
            detail = "the operation was interrupted" if self.loop.interrupted else "the operation took too long"
            return {"errno": errno.ETIMEDOUT, "detail": detail}, b""
        if status:
            return {"errno": errno.EIO, "detail": "the operation was killed"}, b""
        return {}, report

    def retire(self, reason: str) -> None:
        """Ask the host to replace the box, if there is a reason; the first reason is kept."""
        self.retire_reason = self.retire_reason or reason

    def shut_down(self, reason: str) -> None:
        """End the box."""
        self.owned.clean_up()
        leave(reason)


def main() -> None:
    """Read the settings and run a supervisor with them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr  # a preloaded module may print, and standard output is for frames
    # Code can write to folders that relative entries name; nothing from there may be imported into this process.
    sys.path = [entry for entry in sys.path if os.path.isabs(entry)]
    supervisor = Supervisor(receive_settings())
    try:
        supervisor.serve()
    finally:
        supervisor.owned.clean_up()
