"""A program that the host asks for: its process, and all processes that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import termios
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import processes, users
from .loop import Loop

_SET_DUMPABLE = 4  # of prctl(2)
_LOCKS = 10  # the limit of file locks, of setrlimit(2)
_FIRST_MARK = 1 << 40  # above every limit that somebody could have set
_FAULTS = 3  # the descriptor on which a child reports why the program could not be started
_NOT_STARTED = 71  # the exit code of such a child
_LONGEST_FAULT = 2048  # bytes
_EXPOSED = b"500"  # of the code: the kernel must kill it for memory before the guest


def become_undumpable() -> None:
    """Let no other process read the memory or open the descriptors of this one, not even root's."""
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


class Launcher:
    """Starts programs, and marks the processes of each: their orphans are found by it, in whatever session they are.

    The mark is a limit that every process inherits and that nobody uses: the number of file locks. A process escapes
    only if it sets this limit anew, as `ulimit -x` does.
    """

    def __init__(self, settings: Mapping[str, Any], exposure: int) -> None:
        self.settings = settings
        self.user = users.find(settings["user"])
        self._last_mark = _FIRST_MARK
        self._exposure = exposure
        self._own = os.read(self._exposure, 16)

    def start(
        self, spec: Mapping[str, Any], fds: dict[int, int], *, is_terminal: bool, work: Callable[[], Any] | None
    ) -> tuple[int, int]:
        """Start a program and return its process id and its mark. The arguments are those of `Program`."""
        self._last_mark += 1
        with self._inheritance(self._last_mark):
            run = self._child(spec, is_terminal, work)
            pid = processes.spawn(run, fds, {}, self.settings["cwd"], lambda: None)
        return pid, self._last_mark

    @contextlib.contextmanager
    def _inheritance(self, mark: int) -> Iterator[None]:
        _, most = resource.getrlimit(_LOCKS)
        resource.setrlimit(_LOCKS, (mark, most))
        os.pwrite(self._exposure, _EXPOSED, 0)
        try:
            yield
        finally:
            os.pwrite(self._exposure, self._own, 0)
            resource.setrlimit(_LOCKS, (most, most))

    def _child(self, spec: Mapping[str, Any], is_terminal: bool, work: Callable[[], Any] | None) -> Callable[[], None]:
        def run() -> None:
            os.set_inheritable(_FAULTS, False)
            environment = self._enter(spec, is_terminal)
            if work is not None:
                os.close(_FAULTS)  # it has started
                work()
                os._exit(0)
            _replace(spec["command"], environment)

        return run

    def _enter(self, spec: Mapping[str, Any], is_terminal: bool) -> dict[str, str]:
        """Become the user, enter the directory, and return the environment. End the process if one of them fails."""
        stage = "user"
        try:
            wanted = spec.get("user")
            user = self.user if wanted is None else users.find(wanted)
            if is_terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                with contextlib.suppress(OSError):
                    os.fchown(0, user.uid, -1)
            user.become()
            stage = "cwd"
            if spec.get("cwd") is not None:
                os.chdir(spec["cwd"])
        except (OSError, LookupError, ValueError) as error:
            number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
            detail = error.strerror if isinstance(error, OSError) else str(error.args[0])
            os.write(_FAULTS, f"{stage} {number} {detail}"[:_LONGEST_FAULT].encode("utf-8", "replace"))
            os._exit(_NOT_STARTED)
        terminal = {"TERM": "xterm-256color"} if is_terminal else {}
        return {**terminal, "HOME": user.home, **self.settings["environment"], **spec.get("env", {})}


class Program:
    """A process with `streams`, `{its descriptor: ours}`, and every process that it starts.

    Args:
        spec: the host's request: command, cwd, env, user.
        work: runs in the process, as the user, in place of a command.

    Raises:
        OSError: there are too many processes, or no memory.
    """

    def __init__(
        self,
        loop: Loop,
        launcher: Launcher,
        spec: Mapping[str, Any],
        streams: dict[int, int],
        *,
        is_terminal: bool = False,
        work: Callable[[], Any] | None = None,
    ) -> None:
        self.loop = loop
        self.faults, faults = os.pipe()
        os.set_blocking(self.faults, False)
        try:
            fds = {**streams, _FAULTS: faults}
            self.pid, self.mark = launcher.start(spec, fds, is_terminal=is_terminal, work=work)
            loop.expect(self.pid)
        except OSError:
            os.close(self.faults)
            raise
        finally:
            os.close(faults)

    def fault(self) -> dict[str, Any]:
        """Return the reason why the program was not started, as fields of an answer; nothing if it was."""
        try:
            text = os.read(self.faults, _LONGEST_FAULT).decode("utf-8", "replace")
        except BlockingIOError:
            return {}
        stage, number, detail = [*text.split(" ", 2), "", "", ""][:3]
        return {"fault": stage, "errno": int(number), "detail": detail} if number.isdigit() else {}

    def when_started(self, call: Callable[[dict[str, Any]], None]) -> None:
        """Call a function, with the fault if there is one, when the program runs or could not be started."""

        def on_faults() -> None:
            self.loop.unwatch(self.faults)
            call(self.fault())

        self.loop.watch(self.faults, on_faults)

    def signal(self, number: int) -> None:
        """Signal the process and every one that it has started."""
        if number != signal.SIGKILL:
            processes.send(self._processes(), number)
        else:
            processes.kill_all(self._processes, processes.send)

    def _processes(self) -> set[int]:
        # The first process may have set its mark anew: then its call would never end.
        return processes.marked(self.mark) | ({self.pid} if self.loop.is_unreaped(self.pid) else set())

    def close(self) -> None:
        self.loop.unwatch(self.faults)
        os.close(self.faults)


def _replace(command: str | list[str], environment: dict[str, str]) -> None:
    """Become a program. As in a shell, the exit code is 127 if it is not there, 126 if it cannot be run."""
    choices = [["bash", "-c", command], ["sh", "-c", command]] if isinstance(command, str) else [command]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    failure: OSError | None = None
    for arguments in choices:
        try:
            os.execvpe(arguments[0], arguments, environment)
        except FileNotFoundError as error:
            failure = failure or error
        except OSError as error:
            failure = error
            break
    assert failure is not None
    os.write(2, f"{choices[-1][0]}: {failure.strerror}\n".encode("utf-8", "surrogateescape"))
    os._exit(127 if isinstance(failure, FileNotFoundError) else 126)
