"""The base of both sessions: a process, its channel, its output, and the steps at a timeout.

The bytes of a session are untrusted. Its output is capped, its channel is read without waiting, and a reply must carry
the request's nonce. Anything else is a fault, after which the session is replaced.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from . import processes
from .loop import Capture, Loop
from .ownership import Owner
from .protocol import ProtocolError
from .python_worker import new_nonce

_CHUNK = 1 << 16
_ORPHANED_SECONDS = 0.2  # between the end of a channel and the end of the process that held it


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
        self.reply: dict[str, Any] | None = None
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

    @abstractmethod
    def interrupt(self, began: processes.Moment) -> None:
        """Send SIGINT to the code of a call that began at this moment."""

    def _interrupt_children(self, began: processes.Moment) -> None:
        """Interrupt the processes that the call has started. Processes of earlier calls go on."""
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
        commands, self.commands = os.pipe()
        self.replies, replies = os.pipe()
        os.set_blocking(self.commands, False)
        os.set_blocking(self.replies, False)
        self.fault, self.nonce, self.reply, self.outgoing = "", b"", None, memoryview(b"")
        self.waits_to_send = False
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
        self.loop.unwatch(self.commands)
        os.close(self.replies)
        os.close(self.commands)
        self.out.close()
        self.err.close()
        self.pid = 0
        self.reply, self.outgoing = None, memoryview(b"")
        self.lost = True

    # One request.

    def run(self, source: bytes, timeout: float) -> tuple[dict[str, Any], list[bytes]]:
        """Run a piece of code until it ends, however it ends, and return the answer's header and parts."""
        self.ensure()
        began, kills = processes.now(), self.box.owned.oom_kills()
        self.reply, self.nonce = None, new_nonce()
        self.outgoing = memoryview(self.request(source))
        self._send()
        interrupted = self._await_reply(timeout, began)
        answer = {"status": "timeout", "code": None, "value": False, "dropped": 0}
        parts = [b"", b"", b""]  # head and tail of the value, and the traceback
        reply, ended = self.reply, self._end_of_process(kills)
        if reply is not None:
            parts = reply.pop("parts")
            answer.update(reply)
            if answer["code"] == 137 and self.box.owned.oom_kills() > kills:
                answer["status"] = "oom"
        elif ended is not None and not interrupted:
            killed_for_memory = ended == -signal.SIGKILL and self.box.owned.oom_kills() > kills
            answer["status"] = "oom" if killed_for_memory else "signal" if ended < 0 else "exited"
            answer["code"] = ended
        elif self.fault and not interrupted:
            answer["status"] = "protocol"
        answer["retire"] = answer["status"] if answer["status"] in ("oom", "protocol") else ""
        if interrupted:
            answer.update(status="timeout", code=None, value=False)
            parts[:2] = b"", b""
        self.reply, self.outgoing = None, memoryview(b"")  # workers are forked from this process, and would inherit it
        return self._close_request(answer, parts, began, interrupted, died=reply is None)

    def _close_request(
        self, answer: dict[str, Any], parts: list[bytes], began: processes.Moment, interrupted: bool, *, died: bool
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Kill the processes that must not go on, take the output, and note whether the state is lost."""
        out, err = (stream.take() for stream in (self.out, self.err))
        if died:
            self.kill()
        if interrupted:
            answer["retire"] = "hard kill" if died else ""
            if not self.box.kill_since(began):
                answer["retire"] = "hard kill"
        answer["lost"], self.lost = self.lost, False
        answer["dropped"] = [out[2], err[2], answer["dropped"]]
        return answer, [out[0], out[1], err[0], err[1], *parts]

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
            return -signal.SIGKILL if self.fault and self.box.owned.oom_kills() > kills else None
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _send(self) -> None:
        """Write as much of the request as the pipe takes, and the rest when it takes more."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[os.write(self.commands, self.outgoing) :]
        except BlockingIOError:
            if not self.waits_to_send:
                self.waits_to_send = True
                self.loop.watch(self.commands, self._send, select.EPOLLOUT)
            return
        except BrokenPipeError:
            self.fault = "it closed its channel"
        if self.waits_to_send:
            self.waits_to_send = False
            self.loop.unwatch(self.commands)

    def _on_reply(self) -> None:
        try:
            data = os.read(self.replies, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._fail("it closed its channel")
            return
        try:
            if not self.nonce:
                raise ProtocolError("it replied without a request")
            self.feed(data)
        except Exception as error:  # hostile bytes may cause errors that we did not foresee
            self._tampered(f"{type(error).__name__}: {error}")
        if self.reply is not None:
            self.nonce = b""

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self.loop.unwatch(self.replies)

    def _tampered(self, fault: str) -> None:
        """End a session that forged a reply, and retire the box: the code may have tampered with more than that."""
        self._fail(fault)
        self.box.retire("protocol")
