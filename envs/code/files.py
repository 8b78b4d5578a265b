"""The files of a code task: those that its row puts into the box, and those that the agent hands in.

A column that is None counts as absent, and so does an entry of `files`: a data set that keeps its rows in columns fills
what a row does not have with None.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..sandbox.errors import SandboxFileError
from .core import ConfigurationError

Row = Mapping[str, Any]

# Errors that say something of a file, rather than of the box that it is in.
THE_FILES_OWN = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOSPC, errno.ENOMEM,
})  # fmt: skip


def files_of(row: Row) -> dict[str, str | bytes]:
    """The row's `files`: what the workspace holds before the first turn, by relative path.

    Raises:
        ConfigurationError: they are no mapping of relative paths within the workspace to text or bytes, or two of the
            paths are the same.
    """
    files = row.get("files")
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise ConfigurationError(f"the row's 'files' must map relative paths to text or bytes, got {shorten(files)}")
    checked: dict[str, str | bytes] = {}
    for path, data in files.items():
        place = f"the row's files[{path!r}]"
        if data is None:
            continue
        if not isinstance(data, str | bytes):
            raise ConfigurationError(f"{place} must be text or bytes, got {shorten(data)}")
        shortest = _relative(path, place)
        if shortest in checked:
            raise ConfigurationError(f"{place}: another entry of 'files' is this file too: {shortest!r}")
        checked[shortest] = data
    return checked


def submit_of(row: Row) -> tuple[str, ...]:
    """The row's `submit`: the relative paths of the files that the agent hands in.

    Raises:
        ConfigurationError: it is no list of relative paths within the workspace, or two of them are the same.
    """
    paths = row.get("submit")
    if paths is None:
        return ()
    if isinstance(paths, str | bytes) or not isinstance(paths, Sequence):
        raise ConfigurationError(f"the row's 'submit' must be a list of relative paths, got {shorten(paths)}")
    checked: list[str] = []
    for index, path in enumerate(paths):
        place = f"the row's submit[{index}]"
        shortest = _relative(path, place)
        if shortest in checked:
            raise ConfigurationError(f"{place}: another entry of 'submit' is this file too: {shortest!r}")
        checked.append(shortest)
    return tuple(checked)


def _relative(path: Any, place: str) -> str:
    """A path within the workspace, in its shortest form."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigurationError(f"{place}: a path is text such as 'data/train.csv', got {shorten(path)}")
    if posixpath.isabs(path) or ".." in path.split("/"):
        raise ConfigurationError(
            f"{place}: a path must be relative and without '..', since files belong into the workspace"
        )
    shortest = posixpath.normpath(path)
    if shortest == "." or path.endswith("/"):
        raise ConfigurationError(f"{place}: a path must name a file, got {path!r}")
    return shortest


def shorten(value: Any) -> str:
    """A value with its type, for a message."""
    text = f"{type(value).__name__}: {value!r}"
    return text if len(text) <= 120 else text[:117] + "..."


@contextlib.contextmanager
def not_handed_in() -> Iterator[None]:
    """Let a file count as not handed in where the fault is its own; what else goes wrong is the sandbox's."""
    try:
        yield
    except SandboxFileError as error:
        if error.errno not in THE_FILES_OWN:
            raise
