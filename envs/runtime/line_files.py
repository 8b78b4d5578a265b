"""Files of one JSON object a line: appending to them, and lines that a killed process or a full disk left broken."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic_core import ValidationError

Value = TypeVar("Value")


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines; after half a line, which a killed process may have left, they begin a new one."""
    with path.open("ab+") as file:
        append_to(file, lines)


def append_to(file: BinaryIO, lines: Iterable[str]) -> None:
    """As `append_lines`, for a file that is open for reading and appending."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    file.writelines(f"{line}\n".encode() for line in lines)


def parsed(
    path: Path, lines: Iterable[str], parse: Callable[[str], Value], warn: Callable[[str], object]
) -> Iterator[Value]:
    """Yield the values of the lines of a file.

    Half a last line is left out. Any other line for which `parse` raises ValueError, KeyError or TypeError is skipped,
    and `warn` is called at the end with a text that names the first one.
    """
    broken: list[BrokenLine] = []
    for number, line in enumerate(lines, 1):
        try:
            value = parse(line)
        except (ValueError, KeyError, TypeError) as error:
            if line.endswith("\n"):
                broken.append(BrokenLine.of(path, number, error))
        else:
            yield value
    if broken:
        warn(skipped(broken))


@dataclass(kw_only=True, slots=True, frozen=True)
class BrokenLine:
    """A line that was skipped, as it cannot be read."""

    path: Path
    number: int  # from 1
    fault: str  # in one line

    @classmethod
    def of(cls, path: Path, number: int, error: Exception) -> BrokenLine:
        text = str(error).partition("\n")[0]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        # Parsers count lines from the beginning of this one, which would be taken for the line of the file.
        fault = re.sub(r":?( at)? line \d+ column \d+.*", "", text)
        return cls(path=path, number=number, fault=f"{type(error).__name__}: {fault[:200]}")

    def __str__(self) -> str:
        return f"line {self.number} of {self.path} ({self.fault})"


def skipped(broken: Sequence[BrokenLine]) -> str:
    """Return the number of broken lines in each file, and the first one of each."""
    counts = Counter(line.path for line in broken)
    firsts = {line.path: line for line in reversed(broken)}
    told = [
        f"skipped {firsts[path]}" if count == 1 else f"skipped {count} broken lines, the first is {firsts[path]}"
        for path, count in counts.items()
    ]
    return "; ".join(told)
