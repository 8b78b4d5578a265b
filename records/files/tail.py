"""Tail: the complete lines of a file that grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """Where a line stands."""

    path: Path
    start: int  # bytes
    length: int
    number: int  # of the line, from 1

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.length)


class Replaced(Exception):
    """The file is not the one that was read before: a training was resumed, or began anew."""


class Tail:
    """Reads the lines that a file has gained; a last line that is still being written is left for the next time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._end = 0  # of the lines that were read
        self._number = 0  # of the last of them

    def look(self) -> int:
        """Return the size of the file now.

        Raises:
            Replaced: it was replaced or cut since the last time.
        """
        status = self.path.stat()
        identity = (status.st_dev, status.st_ino)
        if self._identity not in (None, identity) or status.st_size < self._end:
            raise Replaced(self.path)
        self._identity = identity
        return status.st_size

    def lines(self, size: int) -> Iterator[tuple[Place, bytes]]:
        """Yield the lines that end within the first `size` bytes and were not read yet."""
        with self.path.open("rb") as file:
            file.seek(self._end)
            for line in file:
                end = self._end + len(line)
                if end > size or not line.endswith(b"\n"):
                    return
                self._number += 1
                place, self._end = Place(self.path, self._end, len(line), self._number), end
                yield place, line
