"""Processes inside the box: start them, find them, signal them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_DEATH_SECONDS = 3.0  # far more than killed processes need to end
_SCRATCH = 40  # descriptors from here on are free while a child arranges its own


def spawn(
    run: Callable[[], Any], fds: dict[int, int], environment: dict[str, str], cwd: str, enter: Callable[[], None]
) -> int:
    """Fork a process that keeps only the descriptors `{its number: ours}` and gives up its privileges (`enter`).

    Each standard stream that is not among them is the null device, opened anew: processes that share one opening of a
    file share its locks and flags too, and could leave messages there.

    Raises:
        OSError: there are too many processes, or no memory.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.nice(5)  # so that the supervisor gets its turn beside a fork bomb
        _arrange(fds)
        enter()
        os.environ.clear()
        os.environ.update(environment)
        try:
            os.chdir(cwd)
        except OSError:
            os.chdir("/")  # the code removed its directory
        run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(71)


def _arrange(fds: dict[int, int]) -> None:
    for target in range(3):
        if target not in fds:
            fds = {**fds, target: os.open(os.devnull, os.O_RDWR)}
    copies = {target: fcntl.fcntl(source, fcntl.F_DUPFD, _SCRATCH) for target, source in fds.items()}
    limit = os.sysconf("SC_OPEN_MAX")
    for target, copy in copies.items():
        os.dup2(copy, target)
    start = 0
    for target in sorted(fds):
        if start < target:  # closerange(0, 0) would close everything
            os.closerange(start, target)
        start = target + 1
    os.closerange(start, limit)


def program(name: str) -> str:
    """Return the path of a program, or "" if it is not on the PATH."""
    candidates = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def replace(path: str, arguments: list[str]) -> None:
    """Become another program, with the usual effect of the two signals that Python ignores."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(path, arguments)


def everyone() -> set[int]:
    """Return the ids of all visible processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


class Moment(NamedTuple):
    """A moment to which the start of processes is compared: the kernel tells their start in ticks of 10 ms only."""

    tick: int
    last_pid: int  # given out so far; a process of the same tick with a larger id was started later


def now() -> Moment:
    """Return this moment."""
    tick = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
    with open("/proc/loadavg", "rb") as file:
        return Moment(tick, int(file.read().split()[-1]))  # 0 where the kernel does not tell (gVisor)


def started_since(moment: Moment, pids: Iterable[int]) -> set[int]:
    """Return the processes among `pids` that are alive and were started after a moment."""
    found = set()
    for pid in pids:
        fields = _stat(pid)
        # A process is in state Z as soon as its first thread has ended; its other threads may still run.
        if fields and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1) and (int(fields[19]), pid) > moment:
            found.add(pid)
    return found


def descendants(root: int) -> set[int]:
    """Return the children of a process, their children, and so on, zombies included."""
    children: dict[int, list[int]] = {}
    for pid in everyone():
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    level = [root]
    while level:
        level = [pid for parent in level for pid in children.get(parent, ()) if pid not in found]
        found.update(level)
    return found


def marked(mark: int) -> set[int]:
    """Return the processes that have this limit of file locks, which no kernel since Linux 2.4 enforces."""
    text = b"%d" % mark
    return {pid for pid in everyone() if _lock_limit(pid) == text}


def _lock_limit(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            _, _, rest = file.read().partition(b"Max file locks")
    except OSError:
        return b""
    return rest.split(None, 1)[0] if rest else b""


def stop_all(find: Callable[[], set[int]], send: Callable[[set[int], int], None]) -> None:
    """Stop processes until `find` finds no new one."""
    stopped: set[int] = set()
    deadline = time.monotonic() + _DEATH_SECONDS
    while True:
        new = find() - stopped
        if not new or time.monotonic() > deadline:
            return
        send(new, signal.SIGSTOP)
        stopped |= new


def kill_all(find: Callable[[], set[int]], send: Callable[[set[int], int], None]) -> None:
    """Stop processes until `find` finds no new one, then send SIGKILL to all of them."""
    stop_all(find, send)
    send(find(), signal.SIGKILL)


def stopped(pids: Iterable[int]) -> set[int]:
    """Return the processes among `pids` that a signal has stopped."""
    return {pid for pid in pids if _stat(pid)[:1] == [b"T"]}


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on (index 0); [] if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def await_delivery(pid: int, number: int, seconds: float) -> None:
    """Wait until a process has taken a signal that was sent to it, but no longer than some seconds.

    Return at once if the process blocks the signal.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pending, blocked = _signals(pid)
        if not (pending & ~blocked) >> (number - 1) & 1:
            return
        time.sleep(0.0003)


def _signals(pid: int) -> tuple[int, int]:
    """Return the sets of signals that wait for a process, and that its first thread blocks.

    Both are empty if the process is gone, or if the kernel does not tell (gVisor).
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(None, 1) for line in file if line.startswith((b"ShdPnd:", b"SigBlk:")))
    except OSError:
        return 0, 0
    return int(fields.get(b"ShdPnd:", b"0"), 16), int(fields.get(b"SigBlk:", b"0"), 16)


def send(pids: Iterable[int], number: int, *, under: int = 0) -> None:
    """Signal processes. Skip processes that have ended, and those of another user (such as `sudo`).

    With `under`, only descendants of that process: meanwhile an id may belong to a process of somebody else.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if under:
                _send_to_descendant(pid, number, under)
            else:
                os.kill(pid, number)


def _send_to_descendant(pid: int, number: int, root: int) -> None:
    try:
        handle = os.pidfd_open(pid)  # refers to this process, even if its id is used again
    except (AttributeError, OSError):  # Python 3.8, or an old kernel
        if _descends(pid, root):
            os.kill(pid, number)
        return
    try:
        if _descends(pid, root):
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _descends(pid: int, root: int) -> bool:
    while pid > 1 and pid != root:
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return pid == root
