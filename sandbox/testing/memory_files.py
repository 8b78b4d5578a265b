"""Files in memory with the errors of the executors' contract; there are no links, devices or permissions."""

from __future__ import annotations

import errno
import posixpath

from ..base import WORKSPACE, FileEntry
from ..errors import file_error


class MemoryFiles:
    """Folders and files below `/`, with relative paths from the workspace.

    Args:
        limit: the most bytes of one file.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._files: dict[str, bytes] = {}
        self._folders = {"/", WORKSPACE, "/tmp"}

    def write(self, path: str, data: bytes) -> None:
        if len(data) > self.limit:
            detail = f"the data has {len(data)} bytes, Limits.max_file is {self.limit}"
            raise file_error(errno.EFBIG, path, detail)
        place = self._place(path)
        if place in self._folders:
            raise file_error(errno.EISDIR, path)
        folder, missing = place, []
        while (folder := posixpath.dirname(folder)) not in self._folders:
            if folder in self._files:
                raise file_error(errno.ENOTDIR, path)
            missing.append(folder)
        self._folders.update(missing)
        self._files[place] = data

    def read(self, path: str) -> bytes:
        place = self._place(path)
        if place in self._files:
            return self._files[place]
        raise file_error(errno.EISDIR if place in self._folders else self._absence(place), path)

    def list(self, path: str, *, recursive: bool) -> list[FileEntry]:
        place = self._place(path or ".")
        if place not in self._folders:
            raise file_error(errno.ENOTDIR if place in self._files else self._absence(place), path)
        start = place.rstrip("/") + "/"
        found = [
            FileEntry(path=name[len(start) :], kind="file", size=len(data))
            for name, data in self._files.items()
            if name.startswith(start)
        ]
        found += [
            FileEntry(path=name[len(start) :], kind="directory", size=0)
            for name in self._folders
            if name.startswith(start) and name != start
        ]
        return sorted((entry for entry in found if recursive or "/" not in entry.path), key=lambda entry: entry.path)

    def _place(self, path: str) -> str:
        if not path:
            raise file_error(errno.ENOENT, path)
        if "\0" in path:
            raise file_error(errno.EINVAL, path, "a path cannot hold a NUL character")
        if max(map(len, path.split("/"))) > 255 or len(path) > 4095:
            raise file_error(errno.ENAMETOOLONG, path)
        return posixpath.normpath(posixpath.join(WORKSPACE, path))

    def _absence(self, place: str) -> int:
        while (place := posixpath.dirname(place)) not in self._folders:
            if place in self._files:
                return errno.ENOTDIR
        return errno.ENOENT
