"""Cassettes: files of recorded calls, to which many episodes and processes may append at the same time."""

from __future__ import annotations

import json
import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..line_files import BrokenLine, append_to
from .recorded_call import RecordedCall

VERSION = 1
FIRST_LINE = f'{{"cassette": {VERSION}}}'  # every other line is a call

logger = logging.getLogger("gymnast.envs")


def append_calls(path: Path, *calls: RecordedCall) -> None:
    """Append calls at once, under a lock on the file, which is made if there is none."""
    import fcntl  # here, so that everything else works where the system has no such locks

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:  # the end of the block writes the lines, and then gives the lock back
        fcntl.flock(file, fcntl.LOCK_EX)
        is_new = file.seek(0, os.SEEK_END) == 0
        append_to(file, [*([FIRST_LINE] if is_new else []), *(call.to_line() for call in calls)])


def check_cassette(path: Path) -> None:
    """Check the first line of a file, if there is one.

    Raises:
        ValueError: the file is no cassette, or has another version.
    """
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        try:
            version = json.loads(file.readline())["cassette"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"{path} is no cassette: its first line is not {FIRST_LINE}; give a file that record= has written"
            ) from None
    if version != VERSION:
        raise ValueError(f"{path} is a cassette of version {version}, expected {VERSION}: record it again")


def read_cassette(path: Path) -> Cassette:
    """Read a cassette; copies of an environment share one that has not changed since.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is no cassette, or has another version.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no cassette {path}: record= writes one") from None
    check_cassette(path)
    return _read(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, *_state: int) -> Cassette:
    return Cassette(path)


class Cassette:
    """The recorded calls of a file. A broken line, which a killed process may have left, is skipped with a warning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._calls: list[RecordedCall] = []
        self._found: dict[Any, RecordedCall] = {}
        self._several: set[Any] = set()  # keys that have several results
        self._warned: set[tuple[str, str]] = set()
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            if number == 1 or not line.endswith(b"\n"):  # another process may be writing the last line
                continue
            try:
                self._add(RecordedCall.of_line(line))
            except (TypeError, ValueError) as error:
                logger.warning("skipped %s", BrokenLine.of(path, number, error))

    def _add(self, call: RecordedCall) -> None:
        self._calls.append(call)
        known = self._found.setdefault(call.key, call)
        if (known.outcome, known.content) != (call.outcome, call.content):
            self._several.add(call.key)

    def find(self, call: RecordedCall) -> RecordedCall | None:
        """Return the first recorded call with the key of this one.

        A warning tells if others gave another result, or if the code that gave it has another digest now; a digest is
        None where the source is not known.
        """
        found = self._found.get(call.key)
        if found is not None and None not in (found.code, call.code) and found.code != call.code:
            self._warn_once(
                *(found.name, "changed"),
                f"{self.path} has results of {found.name} from before its description, signature or source changed; a "
                f"replay gives these old results. If they are not true any more, record them again.",
            )
        if found is not None and call.key in self._several:
            self._warn_once(
                *(found.name, "several"),
                f"{self.path} has several results of {found}; a replay gives the first one. Such a tool gives another "
                f"result whenever it is called.",
            )
        return found

    def _warn_once(self, name: str, kind: str, text: str) -> None:
        if (name, kind) not in self._warned:
            self._warned.add((name, kind))
            logger.warning("%s This is logged once for each tool.", text)

    def explain_missing(self, call: RecordedCall) -> str:
        """Return which call is missing, and which recorded call is the nearest and how it differs."""
        missing = f"{call} is not in {self.path}"
        near = self._nearest(call)
        if near is None:
            return f"{missing}, which has no call of {call.environment}"
        differences = {
            "another tool": near.name != call.name,
            "other arguments": near.text != call.text,
            "another task": near.task != call.task,
            f"seed {near.seed}, not {call.seed}": near.seed != call.seed,
            "another history: other calls or results come before it": near.after != call.after,
        }
        difference = next(name for name, differs in differences.items() if differs)
        return f"{missing}. The nearest recorded call is {near}: {difference}"

    def _nearest(self, wanted: RecordedCall) -> RecordedCall | None:
        def likeness(call: RecordedCall) -> tuple[Any, ...]:  # the most telling first
            same = [getattr(call, name) == getattr(wanted, name) for name in ("kind", "name", "task")]
            beginning = os.path.commonprefix([call.text, wanted.text])  # noqa: RUF071  (of texts, not paths)
            return *same, len(beginning), call.seed == wanted.seed

        calls = [call for call in self._calls if call.environment == wanted.environment]
        return max(calls, key=likeness, default=None)
