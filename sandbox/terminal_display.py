"""A display for the text of a terminal: pyte's, with the parts of xterm that programs use and pyte lacks.

Import this module only where pyte is needed; it comes with the extra `terminal`.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import re
import unicodedata
from typing import Any

import pyte
from wcwidth import wcwidth

_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|[^\x1b\x9b]+|[\x1b\x9b]")
_BEGUN = r"(?:\x1b\[[0-?]*[ -/]*|\x9b[0-?]*[ -/]*|\x1b)"
_BEGUN_SEQUENCE = re.compile(_BEGUN + r"\Z")
_BROKEN_SEQUENCE = re.compile(_BEGUN + r"(?=[\x1b\x80-\U0010ffff])")
_LONGEST = 1 << 16  # characters of a sequence that are kept for its rest to come
_ALTERNATE_SCREEN = {47, 1047, 1049}
_132_COLUMNS = 3


class TerminalDisplay(pyte.Screen):
    """Pyte's screen, with xterm's alternate screen and repetition of a character.

    Characters without a width are dropped, unless they combine with the one before: pyte drops all that follows them.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._main: tuple[Any, Any] | None = None  # lines and cursor, while the alternate screen is shown
        self._last = ""
        super().__init__(columns, rows)
        self._parser = _Parser(self)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def show(self, output: bytes) -> None:
        """Draw output. A sequence that pyte cannot read costs nothing but itself."""
        text = _BROKEN_SEQUENCE.sub("", self._rest + self._decoder.decode(output))
        begun = _BEGUN_SEQUENCE.search(text)
        end = begun.start() if begun and len(text) - begun.start() < _LONGEST else len(text)
        self._rest = text[end:]
        for piece in _SEQUENCE.findall(text[:end]):
            with contextlib.suppress(Exception):  # handlers refuse marks and numbers in many ways
                self._parser.feed(piece)

    @property
    def text(self) -> str:
        """The lines without the spaces at their ends, and without the empty lines below the last one."""
        lines = (self._line(row) for row in range(self.lines))
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")

    def _line(self, row: int) -> str:
        cells, width = [], 1
        for column in range(self.columns):
            cell = self.buffer[row][column].data
            if cell or width == 1:  # the second half of a wide character is empty
                cells.append(cell or " ")
            width = wcwidth(cell[0]) if cell else 1
        return "".join(cells)

    # What the parser calls.

    def draw(self, data: str) -> None:
        data = "".join(char for char in data if wcwidth(char) > 0 or unicodedata.combining(char))
        self._last = data[-1:] or self._last
        super().draw(data)

    def repeat(self, count: int = 1) -> None:
        self.draw(self._last * max(1, count))

    def set_mode(self, *modes: int, **options: Any) -> None:
        if options.get("private"):
            if _ALTERNATE_SCREEN & {*modes} and self._main is None:
                self._main = {row: copy.copy(line) for row, line in self.buffer.items()}, copy.copy(self.cursor)
                self.erase_in_display(2)
            modes = tuple(mode for mode in modes if mode != _132_COLUMNS)
        super().set_mode(*modes, **options)

    def reset_mode(self, *modes: int, **options: Any) -> None:
        if options.get("private"):
            if _ALTERNATE_SCREEN & {*modes} and self._main is not None:
                self.buffer.clear()
                lines, self.cursor = self._main
                self.buffer.update(lines)
                self._main = None
            modes = tuple(mode for mode in modes if mode != _132_COLUMNS)
        super().reset_mode(*modes, **options)

    def reset(self) -> None:
        self._main = None
        super().reset()


class _Parser(pyte.Stream):
    csi = pyte.Stream.csi | {"b": "repeat"}

    def __init__(self, display: TerminalDisplay) -> None:
        super().__init__(display)
        self.use_utf8 = False  # the text is decoded already; with it, lines would be drawn as letters
