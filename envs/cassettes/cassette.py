"""Cassettes: files of recorded calls, to which many episodes and processes may append at the same time."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pydantic_core

from ..core import BrokenEnvironmentError, ConfigurationError
from ..episode import Outcome
from ..images import Image, read_image
from ..json_values import plain
from ..runtime.line_files import BrokenLine, append_to
from ..tools.runner import Kind

VERSION = 1
FIRST_LINE = f'{{"cassette": {VERSION}}}'  # every other line is a call
ADVICE = (
    "Record the episode again, with record=. Or let the call run again, by @tool(replay='run') for a tool and "
    "grade_in_replay = True for grade, if it touches nothing but attributes of the environment, and none that a tool "
    "sets which was not run"
)

logger = logging.getLogger("gymnast.envs")


class UnrecordedCallError(BrokenEnvironmentError):
    """A replay met a call that is not in its cassette: the episode fails. Record it again."""


@dataclass(kw_only=True, frozen=True)
class RecordedCall:
    """A call of a tool, or of the hooks `reply` and `grade`, and its result."""

    environment: str  # name of the class
    task: str  # digest of the row
    seed: int | None  # of the environment
    after: str  # digest of the episode before the call: see `Tape`
    kind: Kind
    name: str
    arguments: Any  # JSON
    code: str | None  # digest of the code that gives the result; None: not known
    outcome: Outcome = "ok"
    content: Any = None  # JSON
    traceback: str | None = None
    effects: Mapping[str, Any] = field(default_factory=dict)  # what it changed in the environment: see `Tape`
    inside: Sequence[Mapping[str, Any]] = ()  # the calls that its code made, each as an `InsideCall`

    @property
    def key(self) -> Hashable:
        """The key by which a replay finds the call; the digest `after` has environment, task and seed."""
        return self.kind, self.name, self.after, canonical(self.arguments)

    def __str__(self) -> str:
        text = canonical(self.arguments)
        return f"{self.name}({text if len(text) <= 200 else f'{text[:200]}...'})"


def append_calls(path: Path, *calls: RecordedCall) -> None:
    """Append calls at once, under a lock on the file, which is made if there is none."""
    import fcntl  # here, so that everything else works where the system has no such locks

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:  # the end of the block writes the lines, and then gives the lock back
        fcntl.flock(file, fcntl.LOCK_EX)
        is_new = file.seek(0, os.SEEK_END) == 0
        append_to(file, [*([FIRST_LINE] if is_new else []), *(json.dumps(asdict(call)) for call in calls)])


def image_folder(path: Path) -> Path:
    """Return the folder of a cassette's pictures."""
    return path.with_name(f"{path.name}.images")


def check_cassette(path: Path) -> None:
    """Raise a ValueError if the file has a first line, and it is not that of a cassette of this version."""
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
    """Read a cassette; copies of an environment share one that has not changed since."""
    if not path.exists():
        raise FileNotFoundError(f"there is no cassette {path}: record= writes one")
    check_cassette(path)
    status = path.stat()
    return _read(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, *_state: int) -> Cassette:
    return Cassette(path)


class Cassette:
    """The recorded calls of a file. A broken line, which a killed process may have left, is skipped with a warning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[Hashable, RecordedCall] = {}
        self._changed: set[str] = set()  # tools that a warning has named
        several: dict[str, RecordedCall] = {}  # by the tool, a call that has several results
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            if number == 1 or not line.endswith(b"\n"):  # another process may be writing the last line
                continue
            try:
                call = RecordedCall(**json.loads(line))
            except (TypeError, ValueError) as error:
                logger.warning("skipped %s", BrokenLine.of(path, number, error))
                continue
            known = self._found.setdefault(call.key, call)
            if (known.outcome, known.content) != (call.outcome, call.content):
                several.setdefault(call.name, call)
        for call in several.values():
            logger.warning("%s has several results of %s; a replay gives the first one", path, call)

    def find(self, call: RecordedCall) -> RecordedCall:
        """Return the first recorded call with the key of this one.

        Raises:
            UnrecordedCallError: there is none. The error shows the nearest recorded call and how it differs.
        """
        found = self._found.get(call.key)
        if found is None:
            raise UnrecordedCallError(f"{call} is not in {self.path}{self._nearest(call)}. {ADVICE}")
        self.warn_of_change(call.name, found.code, call.code)
        return found

    def warn_of_change(self, name: str, recorded: str | None, code: str | None) -> None:
        """Warn once of a tool whose code is another than the recorded one, if both are known."""
        if None not in (recorded, code) and recorded != code and name not in self._changed:
            self._changed.add(name)
            logger.warning(
                "%s has results of %s from before its description, signature or source changed; a replay gives these "
                "old results. This is logged once for each tool.",
                *(self.path, name),
            )

    def _nearest(self, wanted: RecordedCall) -> str:
        def differences(call: RecordedCall) -> dict[str, bool]:  # the most telling first
            return {
                f"another environment, {call.environment}": call.environment != wanted.environment,
                "another tool": call.name != wanted.name,
                "another task": call.task != wanted.task,
                "other arguments": call.arguments != wanted.arguments,
                f"seed {call.seed}, not {wanted.seed}": call.seed != wanted.seed,
                "another history: other calls or results come before it": call.after != wanted.after,
            }

        near = min(self._found.values(), key=lambda call: [*differences(call).values()], default=None)
        if near is None:
            return ", which has no call"
        difference = next(name for name, differs in differences(near).items() if differs)
        return f". The nearest recorded call is {near}: {difference}"


def jsonable(value: Any, fallback: Callable[[Any], Any] = plain, *, images: dict[str, Image] | None = None) -> Any:
    """Return the value as JSON: bytes as base64, sets sorted, other objects as lists of numbers or as their `repr`.

    `images` gets the pictures, whose digests then stand for them; see `with_pictures`.
    """
    options: Any = {"bytes_mode": "base64", "inf_nan_mode": "strings", "serialize_unknown": False, "context": images}
    try:
        return pydantic_core.to_jsonable_python(_with_sorted_sets(value), fallback=fallback, **options)
    except ConfigurationError:  # of the fallback
        raise
    except (ValueError, RecursionError):  # circular references
        return repr(value)


def with_pictures(content: Any, folder: Path) -> Any:
    """Return a copy of recorded content with an `Image` of the folder in place of each picture's digest.

    Raises:
        BrokenEnvironmentError: the folder lacks a picture.
    """

    def read(found: dict[str, Any]) -> Any:
        is_picture = found.keys() == {"digest", "media_type", "width", "height"}
        return read_image(found, folder) if is_picture else found

    try:
        return json.loads(json.dumps(content), object_hook=read)
    except ValueError as error:
        raise BrokenEnvironmentError(f"the cassette's picture is lost: {error}. {ADVICE}") from None


def _with_sorted_sets(value: Any) -> Any:
    """Return the value with lists for sets, whose order changes from process to process."""
    if isinstance(value, set | frozenset):
        return sorted(map(_with_sorted_sets, value), key=canonical)
    if isinstance(value, dict):
        return {key: _with_sorted_sets(entry) for key, entry in value.items()}
    return [*map(_with_sorted_sets, value)] if isinstance(value, list | tuple) else value


def canonical(value: Any) -> str:
    """Return the JSON of a value as text: equal values have equal texts, whatever the order of their keys."""
    return json.dumps(jsonable(value), sort_keys=True)


def digest(*values: Any) -> str:
    """Return a short name for values, made of their canonical JSON."""
    return hashlib.blake2b(canonical(values).encode(), digest_size=12).hexdigest()
