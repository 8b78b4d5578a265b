"""Cassette: a file of recorded calls, which many episodes and processes may append to at the same time."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from ..line_files import BrokenLine, append_to
from .recorded_call import RecordedCall

VERSION = 1

logger = logging.getLogger("gymnast.envs")


class Cassette:
    """The recorded calls of a `.jsonl` file: its first line is `{"cassette": 1}`, every other line is a call.

    Each line is appended at once, under a lock on the file. A process that is killed leaves a readable file: a broken
    line is skipped with a warning.

    Raises:
        ValueError: the file is no cassette, or has another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._forget()
        self.check()

    def _forget(self) -> None:
        self._end = 0  # of the lines that were read, in bytes
        self._last = b""  # the last of them
        self._number = 0  # of the last of them
        self._calls: list[RecordedCall] = []
        self._found: dict[Hashable, RecordedCall] = {}
        self._several: set[Hashable] = set()  # keys that have several results
        self._said: set[tuple[str, str]] = set()  # warnings, each with the name of its call

    def check(self) -> None:
        """Check the first line of the file, if there is one."""
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open("rb") as file:
                self._check_version(file.readline())

    def create(self) -> None:
        """Make the file, if there is none, so that a recording without calls can be replayed."""
        if not self.path.exists():
            self._write([])

    def append(self, call: RecordedCall) -> None:
        """Append a call."""
        self._write([call.to_line()])

    def _write(self, lines: list[str]) -> None:
        import fcntl  # here, so that everything else works where the system has no such locks

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:  # the end of the block writes the lines, and then gives the lock back
            fcntl.flock(file, fcntl.LOCK_EX)
            is_new = file.seek(0, os.SEEK_END) == 0
            append_to(file, [f'{{"cassette": {VERSION}}}', *lines] if is_new else lines)

    def find(self, key: Hashable, code: str | None) -> RecordedCall | None:
        """The first call that was recorded under this key.

        A warning tells if others gave another result, or if the code that gave it has another digest now; a digest is
        None where the source is not known.
        """
        found = self._found.get(key)
        if found is not None and None not in (found.code, code) and found.code != code:
            self._warn_once(
                found.name,
                "%s has results of %s from before its description, signature or source changed; a replay gives these "
                "old results. If they are not true any more, record them again.",
                *(self.path, found.name),
            )
        if found is not None and key in self._several:
            self._warn_once(
                found.name,
                "%s has several results of %s; a replay gives the first one. Such a tool gives another result whenever "
                "it is called.",
                *(self.path, found),
            )
        return found

    def warn_of_lost(self, call: RecordedCall) -> None:
        """Warn that a call was made because it is missing here, and is recorded nowhere."""
        self._warn_once(
            call.name,
            "%s lacks %s, so it was made, and its result is lost: add record= to keep the results of such calls.",
            *(self.path, call),
        )

    def _warn_once(self, name: str, text: str, *values: object) -> None:
        if (name, text) not in self._said:
            self._said.add((name, text))
            logger.warning(f"{text} This is logged once for each tool.", *values)

    def refresh(self) -> None:
        """Read the lines that the file has gained.

        Raises:
            FileNotFoundError: there is no file.
        """
        with self._lock, self.path.open("rb") as file:
            file.seek(self._end - len(self._last))
            if file.read(len(self._last)) != self._last:  # it is another file
                self._forget()
                file.seek(0)
            try:
                self._read(file)
            except ValueError:
                self._forget()
                raise

    def _read(self, file: BinaryIO) -> None:
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._last = line
            self._end += len(line)
            self._number += 1
            if self._number == 1:
                self._check_version(line)
            else:
                self._add(line)

    def _check_version(self, line: bytes) -> None:
        try:
            version = json.loads(line)["cassette"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f'{self.path} is no cassette: its first line is not {{"cassette": {VERSION}}}; give a file that '
                f"record= has written"
            ) from None
        if version != VERSION:
            raise ValueError(f"{self.path} is a cassette of version {version}, expected {VERSION}: record it again")

    def _add(self, line: bytes) -> None:
        try:
            call = RecordedCall.of_line(line)
        except (TypeError, ValueError) as error:
            logger.warning("skipped %s", BrokenLine.of(self.path, self._number, error))
            return
        self._calls.append(call)
        for key in (call.by_history, call.by_arguments):
            known = self._found.setdefault(key, call)
            if (known.outcome, known.content) != (call.outcome, call.content):
                self._several.add(key)

    def nearest(self, wanted: RecordedCall) -> RecordedCall | None:
        """The recorded call that is most like a missing one; None if this environment has none."""

        def likeness(call: RecordedCall) -> tuple[Any, ...]:  # the most telling first
            same = [getattr(call, name) == getattr(wanted, name) for name in ("kind", "name", "task")]
            beginning = os.path.commonprefix([call.text, wanted.text])  # noqa: RUF071  (of texts, not paths)
            return *same, len(beginning), call.seed == wanted.seed

        calls = [each for each in self._calls if each.environment == wanted.environment]
        return max(calls, key=likeness, default=None)


@lru_cache(maxsize=8)
def open_cassette(path: Path) -> Cassette:
    """The cassette of a path; the same object for the copies of an environment, so that a file is read once."""
    return Cassette(path)
