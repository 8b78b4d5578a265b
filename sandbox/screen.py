"""Screen: the text that a person would see in the terminal of a process."""

from __future__ import annotations

import asyncio
import time

from .box import Process

_SLICE = 4096  # bytes that are drawn at once, in some 15 ms


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
            from .terminal_display import TerminalDisplay
        except ImportError as error:
            raise ImportError("Screen needs pyte: install gymnast with its extra `terminal`") from error
        self._process = process
        self._display = TerminalDisplay(columns, rows)
        self._output = b""  # that is not drawn yet

    @property
    def text(self) -> str:
        """The lines without the spaces at their ends, and without the empty lines below the last one."""
        return self._display.text

    @property
    def cursor(self) -> tuple[int, int]:
        """The column and the row of the cursor; both begin with 0."""
        return self._display.cursor.x, self._display.cursor.y

    async def read(self, *, quiet: float = 0.2, timeout: float = 10.0) -> str:
        """Take output until none has come for `quiet` seconds, at most for `timeout` seconds, and return the text."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._output = self._output or await self._process.read(timeout=min(quiet, left))
            if not self._output:
                break
            drawn, self._output = self._output[:_SLICE], self._output[_SLICE:]
            self._display.show(drawn)
            await asyncio.sleep(0)
        return self.text

    async def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal and the screen."""
        await self._process.resize(columns, rows)
        self._display.resize(rows, columns)
