"""Screen: the text that a person would see in the terminal of a process."""

from __future__ import annotations

import asyncio
import re
import time

from .box import Process

# A control sequence that pyte cannot read must cost nothing but itself, so it gets each of them alone.
_PIECES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|[^\x1b]+|\x1b[^\[\x1b]?")


class Screen:
    """The screen of a process that runs in a terminal. It needs the extra `terminal`, which brings pyte.

        async with box.open("top", tty=(80, 24)) as process:
            screen = Screen(process, columns=80, rows=24)
            print(await screen.read())

    All output of the process must be read through one screen. ImportError without pyte.

    Args:
        process: opened with `tty=(columns, rows)`.
        columns, rows: the size of its terminal, in characters.
    """

    def __init__(self, process: Process, *, columns: int, rows: int) -> None:
        try:
            import pyte
        except ImportError as error:
            raise ImportError("Screen needs pyte: install gymnast with its extra `terminal`") from error
        self._new_stream = pyte.ByteStream
        self._process = process
        self._screen = pyte.Screen(columns, rows)
        self._stream = self._new_stream(self._screen)

    @property
    def text(self) -> str:
        """The lines without the spaces at their ends, and without the empty lines below the last one."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n")

    @property
    def cursor(self) -> tuple[int, int]:
        """The column and the row of the cursor; both begin with 0."""
        return self._screen.cursor.x, self._screen.cursor.y

    async def read(self, *, quiet: float = 0.2, timeout: float = 10.0) -> str:
        """Take output until none has come for `quiet` seconds, at most for `timeout` seconds, and return the text."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            output = await self._process.read(timeout=min(quiet, left))
            if not output:
                break
            await asyncio.to_thread(self._show, output)  # a megabyte takes seconds
        return self.text

    async def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal and the screen."""
        await self._process.resize(columns, rows)
        self._screen.resize(rows, columns)

    def _show(self, output: bytes) -> None:
        for piece in _PIECES.findall(output):
            try:
                self._stream.feed(piece)
            except (TypeError, UnboundLocalError):  # pyte's handlers refuse numbers and marks that they do not expect
                self._stream = self._new_stream(self._screen)
