"""The shell session: a Bash that runs one command after the other."""

from __future__ import annotations

import os

from . import processes
from .protocol import ProtocolError
from .session import Reply, Session, SessionHost

_LONGEST = 1 << 16  # bytes of a reply: the path of a directory may be longer than a path that the kernel accepts

# The shell reads a command, runs it, and only then reads the nonce, with which it reports the status and the directory.
#
# A command's output never passes for a status: a status must carry the nonce, which stays in the pipe until the command
# ends. A command runs in this very process, though, and `eval` keeps copies of the channel from descriptor 10 on, so it
# can read the nonce and forge one status, that is lie about its own exit code. It gains nothing else: a shell that
# does not take the next command is killed at that command's timeout, and one that answers twice is killed at once.
_SHELL = r"""
while IFS= builtin read -r -d '' __gymnast_command <&8; do
  eval "$__gymnast_command" </dev/null 8<&- 9>&-
  __gymnast_status=$?
  IFS= builtin read -r -d '' __gymnast_nonce <&8
  builtin printf '%s %s %s\0' "$__gymnast_nonce" "$__gymnast_status" "$PWD" >&9
done
"""


class BashSession(Session):
    """A shell that keeps its directory, variables and functions."""

    def __init__(self, box: SessionHost) -> None:
        super().__init__(box)
        self.program = processes.program("bash")  # its path; "" where the image has none
        self.cwd = box.workspace

    def start(self, fds: dict[int, int]) -> int:
        self.buffer = bytearray()
        arguments = ["bash", "--norc", "--noprofile", "-O", "expand_aliases", "-c", _SHELL]
        return self.box.spawn(lambda: processes.replace(self.program, arguments), fds, self.cwd)

    def request(self, source: bytes) -> bytes:
        return b"%s\0%s\0" % (source, self.nonce)

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
            raise ProtocolError(f"the shell gave {status[:80]!r} as a status")
        self.buffer.clear()
        code, self.cwd = int(status) & 0xFF, os.fsdecode(directory)
        self.reply = Reply("error" if code else "ok", code)

    def reset(self) -> None:
        self.cwd, self.lost = self.box.workspace, False
