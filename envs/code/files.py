"""The files of a code task: those that its row puts into the box, and those that the agent hands in.

None, as a column or as an entry of `files`, counts as absent: data sets that are stored by column fill missing entries
with None.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...sandbox.base import Executor
from ...sandbox.errors import SandboxFileError
from ..core import ConfigurationError

Row = Mapping[str, Any]
Files = Mapping[str, str | bytes]

logger = logging.getLogger("gymnast.envs")
_logged: set[str] = set()


def files_of(row: Row, name: str = "the row") -> dict[str, str | bytes]:
    """Return the `files` of a row or of a check, by their shortest paths; a ConfigurationError if they are no files."""
    files = row.get("files")
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise ConfigurationError(f"{name}'s 'files' must map relative paths to text or bytes, got {shorten(files)}")
    checked: dict[str, str | bytes] = {}
    for path, data in files.items():
        place = f"{name}'s files[{path!r}]"
        if data is None:
            continue
        if not isinstance(data, str | bytes):
            raise ConfigurationError(f"{place} must be text or bytes, got {shorten(data)}")
        checked[_relative(path, place, checked)] = data
    return checked


def submit_of(row: Row) -> tuple[str, ...]:
    """Return the row's `submit`, the files that the agent hands in; a ConfigurationError if it is no list of paths."""
    paths = row.get("submit")
    if paths is None:
        return ()
    if isinstance(paths, str | bytes) or not isinstance(paths, Sequence):
        raise ConfigurationError(f"the row's 'submit' must be a list of relative paths, got {shorten(paths)}")
    checked: list[str] = []
    for index, path in enumerate(paths):
        checked.append(_relative(path, f"the row's submit[{index}]", checked))
    return tuple(checked)


def _relative(path: Any, place: str, others: Collection[str]) -> str:
    """Return a path within the workspace in its shortest form, which is none of the others."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigurationError(f"{place}: a path is text such as 'data/train.csv', got {shorten(path)}")
    if posixpath.isabs(path) or ".." in path.split("/"):
        raise ConfigurationError(
            f"{place}: a path must be relative and without '..', since files belong into the workspace"
        )
    shortest = posixpath.normpath(path)
    if shortest == "." or path.endswith("/"):
        raise ConfigurationError(f"{place}: a path must name a file, got {path!r}")
    if shortest in others:
        raise ConfigurationError(f"{place}: another entry is this file too: {shortest!r}")
    return shortest


async def hand_in(box: Executor, row: Row) -> dict[str, bytes]:
    """Return the files of the row's `submit`, as the agent left them in its box."""
    handed_in: dict[str, bytes] = {}
    for path in submit_of(row):
        # Missing, or a trap: a link, a pipe, a lease on it. The agent owns the file, so its fault is the agent's.
        with contextlib.suppress(SandboxFileError):
            handed_in[path] = await box.read_file(path)
    return handed_in


async def put_files(box: Executor, row: Row, files: Files, handed_in: Mapping[str, bytes]) -> None:
    """Write the row's files, these, and those that were handed in, which are never the row's version."""
    given = {path: data for path, data in files_of(row).items() if path not in submit_of(row)}
    for path, data in (given | dict(files)).items():
        await box.write_file(path, data)
    for path, data in handed_in.items():
        with contextlib.suppress(SandboxFileError):  # it does not fit beside the others
            await box.write_file(path, data)


def shorten(value: Any) -> str:
    """Return a value with its type, cut for an error message."""
    text = f"{type(value).__name__}: {value!r}"
    return text if len(text) <= 120 else text[:117] + "..."


def log_near_columns(row: Row) -> None:
    """Log, once for each name, a column that looks like a misspelt one of those that a `CodeEnv` reads."""
    for column in ("files", "submit", "checks", "answer"):
        others = [name for name in row if isinstance(name, str) and name != column]
        near = difflib.get_close_matches(column, others, n=1, cutoff=0.8) if row.get(column) is None else []
        if near and near[0] not in _logged:
            _logged.add(near[0])
            logger.warning("the row has a column %r, which CodeEnv does not read: is it %r?", near[0], column)
