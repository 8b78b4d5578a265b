"""Shell: a Bash in a box that lasts from command to command, and background programs beside it."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

from ...sandbox.box import Box, Process

_KEPT = 1 << 20  # bytes of output: more loses its middle
_HEAD = _KEPT // 4  # the first bytes, which stay
_LONGEST = 1 << 13  # bytes of the line that ends a command; it has the path of a directory
_GRACE = 2.0  # seconds from the interruption of a command to the end of its shell

# `trap` keeps the shell alive while its commands are interrupted. `command` keeps a `sh` alive after a syntax error.
_BEGIN = "if command -v bash >/dev/null; then exec bash --norc --noprofile; fi; exec sh"
_COMMAND = "command eval {command} </dev/null; printf '%s %s %s\\0' {nonce} $? \"$PWD\"\n"


class Outcome(NamedTuple):
    """The end of a command."""

    output: str
    ending: str = ""  # in words: an exit code other than 0, a time-out, the end of the shell


class Shell:
    """The shell of one episode, and its background programs; close it."""

    def __init__(self, box: Box, *, cwd: str, env: Mapping[str, str], user: str | int | None) -> None:
        self._box = box
        self._how = {"env": env, "user": user}
        self.cwd = cwd  # after the latest command
        self._shell: Process | None = None
        self._lease = contextlib.AsyncExitStack()  # ends the shell
        self._programs = contextlib.AsyncExitStack()  # ends the background programs
        self._background: dict[int, tuple[Process, Output]] = {}

    async def run(self, command: str, *, timeout: float) -> Outcome:
        """Run a command in the shell. After `timeout` seconds it is interrupted, or else the shell is started anew."""
        shell, nonce = await self._ready(), secrets.token_hex(8)
        end = re.compile(rb"%s (\d+) ([^\0]*)\0" % nonce.encode())
        await shell.write(_COMMAND.format(command=shlex.quote(command), nonce=nonce).encode())
        output, deadline, was_late = Output(), time.monotonic() + timeout, False
        while True:
            data = await shell.read(timeout=max(0.0, deadline - time.monotonic()))
            output.add(data)
            recent = max(0, len(output.data) - len(data) - _LONGEST)
            if found := end.search(output.data, recent):
                self.cwd = found[2].decode(errors="surrogateescape")
                code, text = int(found[1]), output.text(cut=len(output.data) - found.start())
                late = f"stopped after {timeout:g} s" if was_late else ""
                return Outcome(text, late or (f"exit code {code}" if code else ""))
            if data:
                continue
            code = await shell.wait(timeout=max(0.0, deadline - time.monotonic()))
            if code is not None:
                await self._end()
                return Outcome(output.text(), f"the shell ended with exit code {code}; its variables are lost")
            if was_late:
                await self._end()
                return Outcome(output.text(), f"stopped after {timeout:g} s; the shell's variables are lost")
            was_late, deadline = True, time.monotonic() + _GRACE
            await shell.signal(signal.SIGINT)

    async def begin(self, command: str) -> int:
        """Start a program in the background, in the shell's directory; return its number."""
        process = await self._programs.enter_async_context(self._box.open(command, cwd=self.cwd, **self._how))
        number = len(self._background) + 1
        self._background[number] = (process, Output())
        return number

    async def output_of(self, number: int) -> Outcome:
        """Return the output of a background program since the last call, and its end if it has ended."""
        process, output = self._program(number)
        while data := await process.read(timeout=0.05):
            output.add(data)
        code = await process.wait(timeout=0)
        text, self._background[number] = output.text(), (process, Output())
        return Outcome(text, "it runs" if code is None else f"it ended with exit code {code}")

    async def kill(self, number: int) -> Outcome:
        """End a background program, and return the last of its output."""
        process, _ = self._program(number)
        await process.signal(signal.SIGKILL)
        await process.wait(timeout=_GRACE)
        return await self.output_of(number)

    async def close(self) -> None:
        """End the shell and the background programs."""
        try:
            await self._end()
        finally:
            await self._programs.aclose()

    def _program(self, number: int) -> tuple[Process, Output]:
        if number not in self._background:
            known = ", ".join(map(str, self._background)) or "none"
            raise ValueError(f"there is no background command {number}; there are: {known}")
        return self._background[number]

    async def _ready(self) -> Process:
        if self._shell is None:
            opened = self._box.open(_BEGIN, cwd=self.cwd, **self._how)
            self._shell = await self._lease.enter_async_context(opened)
            await self._shell.write(b"trap : INT\n")
        return self._shell

    async def _end(self) -> None:
        self._shell = None
        await self._lease.aclose()


class Output:
    """Output of a program: all of it, or its first and last bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._lost = 0  # bytes, behind the first `_HEAD`

    def add(self, data: bytes) -> None:
        """Add bytes, and drop some of the middle if there are too many."""
        self.data += data
        if len(self.data) > _KEPT:
            surplus = len(self.data) - _KEPT // 2
            del self.data[_HEAD : _HEAD + surplus]
            self._lost += surplus

    def text(self, *, cut: int = 0) -> str:
        """Return it as text without its last `cut` bytes; a marker stands where some are missing."""
        shown = self.data[: len(self.data) - cut]
        if self._lost:
            shown[_HEAD:_HEAD] = f"\n[... {self._lost} bytes cut ...]\n".encode()
        return shown.decode(errors="replace")
