"""Whole folders as a stream of frames (`protocol.py`), in both directions; on the host and in the box.

Each file, folder and link is a frame: `{"path", "kind", "mode", "time"}`, with a file's first piece, or a link's
target, as payload; further pieces of the file follow as `{"more": True}`. The last frame is `{"end": True}`.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import math
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from .files import write_all
from .protocol import PIECE, Decoder, encode

_BATCH = 1 << 20  # bytes of frames that are sent together
_ENTRY = 1000  # bytes that a name counts
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class FolderError(OSError):
    """The other side reports an error, or sends something that must not be written."""


def raise_error(header: dict[str, Any]) -> None:
    """Raise the error that a frame reports, if it reports one."""
    if "errno" in header:
        raise FolderError(int(header["errno"]), str(header.get("detail"))[:1000])


def pack(source: str, exclude: Sequence[str] = ()) -> Iterator[bytes]:
    """Return the stream of a folder's content, or of a file, in batches; OSError if it cannot be read.

    Names that match a pattern of `exclude` are left out.
    """
    batch = bytearray()
    for frame in _frames(source, exclude):
        batch += frame
        if len(batch) >= _BATCH:
            yield bytes(batch)
            batch.clear()
    yield bytes(batch) + encode({"end": True})


def _frames(source: str, exclude: Sequence[str]) -> Iterator[bytes]:
    waiting = [""] if stat.S_ISDIR(os.stat(source).st_mode) else None
    if waiting is None:
        yield from _entry(source, os.path.basename(source), os.stat(source))
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                if any(fnmatch.fnmatch(entry.name, pattern) for pattern in exclude):
                    continue
                path = os.path.join(folder, entry.name)
                with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile
                    yield from _entry(entry.path, path, entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)


def _entry(place: str, path: str, status: os.stat_result) -> Iterator[bytes]:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    header = {"path": path, "kind": kind, "mode": stat.S_IMODE(status.st_mode), "time": status.st_mtime}
    if kind == "file":
        with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            data = file.read(PIECE)
            yield encode(header, data)
            while len(data) == PIECE:
                data = file.read(PIECE)
                yield encode({"more": True}, data)
    else:
        yield encode(header, os.fsencode(os.readlink(place)) if kind == "link" else b"")


class Unpacker:
    """Writes a stream of `pack` into a folder, which may exist.

    Args:
        target: the folder.
        owner: the user and group of what is written.
        limit: bytes, and at least 1,000 for each name.

    Without an owner the stream may be hostile: only files and folders are written, inside of the target, and without
    special modes or times.
    """

    def __init__(self, target: str, owner: tuple[int, int] | None = None, limit: float = math.inf) -> None:
        self.at_end = False
        self.refused: list[str] = []
        self._target = target
        self._owner = owner
        self._left = limit
        self._guarded = owner is None
        self._decoder = Decoder(max_payload=PIECE)
        self._file, self._when = -1, 0.0  # the descriptor of the file that is being written, and its time
        self._folders: list[tuple[str, int, float]] = []
        if not os.path.isdir(target):
            os.makedirs(target)
            self._own(target)

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream; OSError if something cannot be written, or the other side reports an error."""
        for header, payload in self._decoder.feed(data):
            self._left -= len(payload) + (0 if header.get("more") else _ENTRY)
            if self._left < 0:
                raise FolderError(errno.EFBIG, "there is more than the limit of this call")
            raise_error(header)
            if header.get("more"):
                self._write(payload)
                continue
            self.close()
            self.at_end = bool(header.get("end"))
            if self.at_end:
                self._finish()
            else:
                self._take(str(header["path"]), str(header["kind"]), header, payload)

    def _take(self, path: str, kind: str, header: dict[str, Any], payload: bytes) -> None:
        mode, when = int(header["mode"]) & 0o7777, float(header["time"])
        if self._guarded:
            mode = mode & 0o777 | (0o700 if kind == "folder" else 0o600)
            if {"", ".", ".."} & set(path.split("/")):
                raise FolderError(errno.EPERM, f"{path!r} leaves the folder")
            if kind not in ("file", "folder"):
                self.refused.append(f"{path}: it is a symbolic link" if kind == "link" else f"{path}: it is no file")
                return
        place = os.path.join(self._target, path)
        if kind == "folder":
            if os.path.islink(place) or not os.path.isdir(place):
                _clear(place)
                os.mkdir(place, 0o700)
            self._folders.append((place, mode, when))
        elif kind == "link":
            _clear(place)
            os.symlink(payload, os.fsencode(place))
            self._own(place)
        elif kind == "file":
            self._file, self._when = _create(place, mode), when
            self._write(payload)
            self._own(self._file)
            if not self._guarded:  # which the mask of new files, and a new owner, have changed
                os.fchmod(self._file, mode)

    def close(self) -> None:
        """End the file that is being written."""
        if self._file >= 0:
            try:
                if not self._guarded:
                    os.utime(self._file, (self._when, self._when))
            finally:
                os.close(self._file)
                self._file = -1

    def _write(self, payload: bytes) -> None:
        if self._file >= 0:
            write_all(self._file, payload)

    def _finish(self) -> None:
        for place, mode, when in reversed(self._folders):
            self._own(place)
            os.chmod(place, mode)
            if not self._guarded:
                os.utime(place, (when, when))

    def _own(self, place: str | int) -> None:
        if self._owner is not None:
            os.chown(place, *self._owner, **({} if isinstance(place, int) else {"follow_symlinks": False}))


def _create(place: str, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        return os.open(place, flags, mode)
    except FileExistsError:
        _clear(place)
        return os.open(place, flags, mode)


def _clear(place: str) -> None:
    try:
        os.unlink(place)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        raise OSError(errno.EISDIR, f"{place} is a folder") from None
