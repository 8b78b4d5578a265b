"""Files in memory with the errors of the executors' contract; there are no links, devices or permissions."""

from __future__ import annotations

import errno
import posixpath
from pathlib import PurePosixPath

from ..base import WORKSPACE, FileEntry
from ..errors import file_error


class MemoryFiles:
    """Folders and files below `/` of at most `limit` bytes each, with relative paths from the workspace."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._content: dict[str, bytes | None] = {"/": None, WORKSPACE: None, "/tmp": None}  # None of a folder

    def write(self, path: str, data: bytes) -> None:
        if len(data) > self.limit:
            detail = f"the data has {len(data)} bytes, Limits.max_file is {self.limit}"
            raise file_error(errno.EFBIG, path, detail)
        place = _place(path)
        if place in self._content and self._content[place] is None:
            raise file_error(errno.EISDIR, path)
        if self._is_below_a_file(place):
            raise file_error(errno.ENOTDIR, path)
        self._content |= {**dict.fromkeys(_folders(place)), place: data}

    def read(self, path: str) -> bytes:
        data = self._find(path)
        if data is None:
            raise file_error(errno.EISDIR, path)
        return data

    def list(self, path: str, *, recursive: bool) -> list[FileEntry]:
        path = path or "."
        if self._find(path) is not None:
            raise file_error(errno.ENOTDIR, path)
        start = _place(path).rstrip("/") + "/"
        found = [
            FileEntry(path=place[len(start) :], kind="directory" if data is None else "file", size=len(data or b""))
            for place, data in self._content.items()
            if place.startswith(start) and place != start
        ]
        return sorted((entry for entry in found if recursive or "/" not in entry.path), key=lambda entry: entry.path)

    def _find(self, path: str) -> bytes | None:
        """Return the content of a file, or None for a folder."""
        place = _place(path)
        if place not in self._content:
            raise file_error(errno.ENOTDIR if self._is_below_a_file(place) else errno.ENOENT, path)
        return self._content[place]

    def _is_below_a_file(self, place: str) -> bool:
        return any(self._content.get(folder) is not None for folder in _folders(place))


def _place(path: str) -> str:
    """Return the absolute path."""
    if not path:
        raise file_error(errno.ENOENT, path)
    if "\0" in path:
        raise file_error(errno.EINVAL, path, "a path cannot hold a NUL character")
    if max(map(len, path.split("/"))) > 255 or len(path) > 4095:
        raise file_error(errno.ENAMETOOLONG, path)
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


def _folders(place: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(place).parents]
