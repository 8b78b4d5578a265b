"""The shell session: a Bash that runs one command after the other.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from typing import Any

from . import inside_processes as processes
from .inside_sessions import Session
from .protocol import ProtocolError

_FIONREAD = 0x541B  # of ioctl(2): how many bytes a pipe holds
_LONGEST = 1 << 16  # bytes of an answer: a directory's path may be longer than what the kernel takes at once

# Reads a command, runs it, and only then reads the nonce with which to report its status and the directory.
#
# Nothing that a command writes, to whatever descriptor, passes for a status unless it has read the nonce, which is in
# the pipe until the command ends. It can do that, as it runs in this very process: `eval` keeps copies of the channel
# from descriptor 10 on. Who imitates this loop so far is believed, and has lied about himself. It helps him no further:
# a shell that runs on instead of taking the next command, or that gives an answer too many, is killed for it
# (`untaken`, `_on_reply`), and the box is replaced.
_SHELL = r"""
while IFS= builtin read -r -d '' __gymnast_command <&8; do
  eval "$__gymnast_command" </dev/null 8<&- 9>&-
  __gymnast_status=$?
  IFS= builtin read -r -d '' __gymnast_nonce <&8
  builtin printf '%s %s %s\0' "$__gymnast_nonce" "$__gymnast_status" "$PWD" >&9
done
"""


class BashSession(Session):
    """A shell that stays, with its directory, variables and functions."""

    def __init__(self, box: Any) -> None:
        super().__init__(box)
        self.cwd = box.workspace

    def start(self, fds: dict[int, int]) -> int:
        self.buffer = bytearray()
        arguments = ["bash", "--norc", "--noprofile", "-O", "expand_aliases", "-c", _SHELL]
        return self.box.spawn(lambda: processes.replace(self.box.bash, arguments), fds, self.cwd)

    def request(self, source: bytes) -> bytes:
        return b"%s\0%s\0" % (source, self.nonce)

    def untaken(self) -> int:
        last = len(self.nonce) + 1  # is read when the command has ended
        try:
            held = fcntl.ioctl(self.commands, _FIONREAD, bytes(4))
        except OSError:
            return 0
        return max(0, int.from_bytes(held, sys.byteorder) + len(self.outgoing) - last)

    def feed(self, data: bytes) -> None:
        self.buffer += data
        text, end, rest = self.buffer.partition(b"\0")
        if len(text) > _LONGEST:
            raise ProtocolError(f"the shell answers with more than {_LONGEST} bytes")
        if not end:
            return
        fields = bytes(text).split(b" ", 2)
        if rest or len(fields) != 3 or fields[0] != self.nonce:
            raise ProtocolError(f"the shell answered {bytes(text[:80])!r}")
        status, directory = fields[1:]
        if not status.isdigit() or len(status) > 3:  # a longer number may be one that int() refuses
            raise ProtocolError(f"the shell gave {status[:80]!r} for a status")
        self.buffer.clear()
        code, self.cwd = int(status) & 0xFF, os.fsdecode(directory)
        parts = [b"", b"", b""]
        self.reply = {"status": "error" if code else "ok", "code": code, "value": False, "dropped": 0, "parts": parts}

    def interrupt(self) -> None:
        """Interrupt what the shell waits for; the shell itself would ignore it, as background jobs do."""
        self.box.territory.send(processes.descendants(self.pid), signal.SIGINT)

    def reset(self) -> None:
        self.cwd, self.lost = self.box.workspace, False
