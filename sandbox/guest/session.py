"""The base of both sessions: a process, its channel, its output, and the steps at a timeout.

The bytes of a session are untrusted. Its output is capped, its channel is read without waiting, and a reply must carry
the request's nonce. Anything else is a fault, after which the session is replaced.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from . import processes
from .loop import Capture, Loop, Writer
from .ownership import Owner
from .protocol import ProtocolError

_CHUNK = 1 << 16
_ORPHANED_SECONDS = 0.2  # between the end of a channel and the end of the process that held it


def new_nonce() -> bytes:
    """Return 16 random bytes of text. A reply must repeat the nonce of its request."""
    return os.urandom(8).hex().encode()


class Reply(NamedTuple):
    """A session's report on the code that it has run."""

    status: str
    code: int
    value: bytes | None = None
    error: bytes = b""  # the traceback
    dropped: int = 0  # bytes of value and traceback


class SessionHost(Protocol):
    """The parts of the supervisor that a session uses."""

    settings: dict[str, Any]
    workspace: str
    loop: Loop
    owned: Owner

    def spawn(self, run: Callable[[], Any], fds: dict[int, int], cwd: str = ...) -> int: ...

    def kill_everything(self) -> None: ...

    def kill_since(self, began: processes.Moment) -> bool: ...

    def retire(self, reason: str) -> None: ...


class Session(ABC):
    """A process that answers requests. It is started when first needed, and again after its death."""

    COMMANDS, REPLIES = 8, 9  # the numbers of the channel's descriptors in the process

    def __init__(self, box: SessionHost) -> None:
        self.box = box
        self.loop = box.loop
        self.pid = 0
        self.lost = False  # whether the state was lost since the last answer
        self.fault = ""  # the reason why the channel cannot be used
        self.reply: Reply | None = None
        self.nonce = b""

    # Each kind of session has its own.

    @abstractmethod
    def start(self, fds: dict[int, int]) -> int:
        """Start the process with the descriptors `{its number: ours}`, and return its id."""

    @abstractmethod
    def request(self, source: bytes) -> bytes:
        """Encode a request to run a piece of code."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Take bytes from the channel, and set `reply` when it is complete; ProtocolError if they are no reply."""

    def interrupt(self, began: processes.Moment) -> None:
        """Send SIGINT to the processes that a call has started since it began. Those of earlier calls go on.

        A shell waits for one of them; it would itself ignore SIGINT, as its jobs do.
        """
        young = processes.started_since(began, processes.descendants(self.pid))
        self.box.owned.signal(young, signal.SIGINT)

    # Life and death.

    def ensure(self) -> None:
        """Start the process unless it is alive and its channel in order."""
        if self.loop.unreaped:
            self.loop.reap()
        if self.pid and (self.fault or self.pid in self.loop.exits):
            self.kill()
        if self.pid:
            return
        limit, user = self.box.settings["max_output"], self.box.settings["user"]
        self.out, self.err = Capture(self.loop, limit, user), Capture(self.loop, limit, user)
        commands, ours = os.pipe()
        self.commands = Writer(self.loop, ours, self._on_broken)
        self.replies, replies = os.pipe()
        os.set_blocking(self.replies, False)
        self.fault, self.nonce, self.reply = "", b"", None
        self.loop.watch(self.replies, self._on_reply)
        streams = {1: self.out.write_end, 2: self.err.write_end}
        fds = {**streams, self.COMMANDS: commands, self.REPLIES: replies}
        try:
            self.pid = self.start(fds)
        except OSError:  # the code has used up all processes
            self.box.kill_everything()
            self.pid = self.start(fds)
        finally:
            os.close(commands)
            os.close(replies)

    def kill(self) -> None:
        """End the process and its group; the state is lost."""
        if self.pid not in self.loop.exits:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it may be another user's by now
                    kill(self.pid, signal.SIGKILL)
            self.loop.await_exit(self.pid)
        self.forget()

    def forget(self) -> None:
        """Close the descriptors of a process that has ended, and note that its state is lost."""
        if not self.pid:
            return
        self.loop.exits.pop(self.pid, None)
        self.loop.unwatch(self.replies)
        self.commands.close()
        os.close(self.replies)
        self.out.close()
        self.err.close()
        self.pid = 0
        self.reply = None
        self.lost = True

    # One request.

    def run(self, source: bytes, timeout: float) -> tuple[dict[str, Any], list[bytes]]:
        """Run a piece of code until it ends, however it ends, and return the answer's header and parts."""
        self.ensure()
        began, kills = processes.now(), self.box.owned.memory.oom_kills()
        self.reply, self.nonce = None, new_nonce()
        self.commands.write(self.request(source))
        interrupted = self._await_reply(timeout, began)
        reply, ended = self.reply, self._end_of_process(kills)
        status, code, value, error, dropped = reply or ("timeout", None, None, b"", 0)
        if reply is not None:
            if code == 137 and self.box.owned.memory.oom_kills() > kills:
                status = "oom"
        elif ended is not None and not interrupted:
            killed_for_memory = ended == -signal.SIGKILL and self.box.owned.memory.oom_kills() > kills
            status, code = "oom" if killed_for_memory else "signal" if ended < 0 else "exited", ended
        elif self.fault and not interrupted:
            status = "protocol"
        retire = status if status in ("oom", "protocol") else ""
        self.reply = None  # workers are forked from this process, and would inherit it, and the rest of the request
        self.commands.drop()
        (out, out_dropped), (err, err_dropped) = self.out.take(), self.err.take()
        if reply is None:
            self.kill()
        if interrupted:
            status, code, value = "timeout", None, None
            is_cleared = self.box.kill_since(began)
            retire = "" if is_cleared and reply is not None else "hard kill"
        lost, self.lost = self.lost, False
        answer = {"status": status, "code": code, "value": value is not None, "lost": lost, "retire": retire}
        answer["dropped"] = out_dropped + err_dropped + dropped
        return answer, [out, err + error, value or b""]

    def _await_reply(self, timeout: float, began: processes.Moment) -> bool:
        """Wait for the reply or the end of the process; return whether the code was interrupted.

        At the deadline the code is interrupted, and again after half of the grace: the first SIGINT may have come
        before the code began. After the grace this returns in any case.
        """
        interrupted, deadline, again = False, time.monotonic() + timeout, math.inf
        while self.reply is None and not self.fault and self.pid not in self.loop.exits:
            late = time.monotonic() >= deadline
            if interrupted and late:
                break
            if not interrupted and (late or self.loop.interrupted):
                interrupted, deadline = True, time.monotonic() + self.box.settings["grace"]
                again = deadline - self.box.settings["grace"] / 2
                self.interrupt(began)
            elif time.monotonic() >= again:
                again = math.inf
                self.interrupt(began)
            self.loop.pump(min(deadline, again))
        return interrupted

    def _end_of_process(self, kills: int) -> int | None:
        """Return the exit status, or minus the signal; None for a live process. `kills` is from before the call."""
        if self.reply is None and self.fault:
            self.loop.await_exit(self.pid, _ORPHANED_SECONDS)
        status = self.loop.exits.get(self.pid)
        if status is None:
            # A process that is killed for memory closes its channel before the kernel frees the memory that it shared,
            # which can take seconds.
            return -signal.SIGKILL if self.fault and self.box.owned.memory.oom_kills() > kills else None
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _on_broken(self) -> None:
        self.fault = "it closed its channel"

    def _on_reply(self) -> None:
        try:
            data = os.read(self.replies, _CHUNK)
        except BlockingIOError:
            return
        try:
            if not data:
                self._fail("it closed its channel")
            elif not self.nonce:
                raise ProtocolError("it replied without a request")
            else:
                self.feed(data)
        except Exception as error:  # hostile bytes may cause errors that we did not foresee
            self._fail(f"{type(error).__name__}: {error}")
            self.box.retire("protocol")  # the code may have tampered with more than this session
        if self.reply is not None:
            self.nonce = b""

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self.loop.unwatch(self.replies)
