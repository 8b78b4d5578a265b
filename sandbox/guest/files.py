"""Files inside the box: read, write, list and wipe, as the code's own user.

Each operation runs in a child process of its own that has no privileges, so a trap that the code has laid (a link
into /proc, a pipe that nobody feeds) catches a process that can do no more than the code itself.
Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from typing import Any

_LISTED_BYTES = 64  # about what one entry takes beside its name


def report(work: Callable[[], bytes]) -> tuple[dict[str, Any], bytes]:
    """What came of a piece of work, as a frame: an empty header and the result, or an errno and a detail."""
    try:
        return {}, work()
    except OSError as error:
        return {"errno": error.errno or errno.EIO, "detail": error.strerror or ""}, b""
    except (ValueError, MemoryError) as error:  # a NUL in the path, or a file that the box's memory cannot hold
        return {"errno": errno.EINVAL if isinstance(error, ValueError) else errno.ENOMEM, "detail": str(error)}, b""


def perform(operation: str, path: str, data: bytes, limit: int, recursive: bool) -> bytes:
    """Read, write or list.

    Raises:
        OSError, ValueError, MemoryError: it cannot be done.
    """
    if operation == "read":
        return _read(path, limit)
    if operation == "write":
        _write(path, data)
        return b""
    assert operation == "list", operation
    return _list(path, limit, recursive)


def _read(path: str, limit: int) -> bytes:
    # Without O_NONBLOCK the opening of a pipe waits for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _require_regular(fd)
        chunks, total = [], 0
        size = os.fstat(fd).st_size
        while size <= limit and total <= limit:  # the size of a file in /proc is said to be 0
            chunk = os.read(fd, 1 << 20)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            total += len(chunk)
        raise OSError(errno.EFBIG, f"the file has {max(size, total)} bytes or more, the limit is {limit}")
    finally:
        os.close(fd)


def _write(path: str, data: bytes) -> None:
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    try:
        _require_regular(fd)
        os.ftruncate(fd, 0)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def _require_regular(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "this is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "this is no regular file but a device, a pipe or a socket")


def _list(path: str, limit: int, recursive: bool) -> bytes:
    root = os.fsencode(path)
    found: list[tuple[str, str, int]] = []
    folders, total = [b""], 0
    while folders:
        folder = folders.pop()
        try:
            entries = os.scandir(os.path.join(root, folder) if folder else root)
        except OSError:
            if not folder:
                raise
            continue  # not ours to read, or gone meanwhile; it is listed itself
        with entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                kind, size = _describe(entry)
                total += len(name) + _LISTED_BYTES
                if total > limit:
                    raise OSError(errno.EFBIG, f"the listing is too long, with {len(found)} files so far")
                found.append((os.fsdecode(name), kind, size))
                if recursive and kind == "directory":
                    folders.append(name)
    listing = json.dumps(sorted(found)).encode("ascii")
    if len(listing) > limit:  # JSON writes up to six bytes for one
        raise OSError(errno.EFBIG, f"the listing of {len(found)} files has {len(listing)} bytes, the limit is {limit}")
    return listing


def _describe(entry: Any) -> tuple[str, int]:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return "other", 0
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(status.st_mode), "other"), status.st_size


def wipe_memory() -> None:
    """Empty every file system in memory that the code can write to; no other process may be running."""
    with open("/proc/self/mounts") as file:
        mounts = [line.split() for line in file]
    for _, path, kind, options, *_ in mounts:
        if kind not in ("tmpfs", "mqueue") or "rw" not in options.split(","):
            continue
        if os.stat(path).st_uid == os.getuid() or os.access(path, os.W_OK | os.X_OK):
            empty(path)


def empty(path: str) -> None:
    """Remove everything below a directory: step by step, as paths may be longer than the kernel takes.

    '..' is safe here only because no other process is left that could move directories about.
    """
    if os.stat(path).st_uid == os.getuid():
        os.chmod(path, 0o700)
        _forget_attributes(path)
    os.chdir(path)
    waiting = [_unlink_files()]  # for each level the directories still to remove
    names: list[bytes] = []  # the way down
    while True:
        if waiting[-1]:
            name = waiting[-1].pop()
            os.chmod(name, 0o700)
            os.chdir(name)
            names.append(name)
            waiting.append(_unlink_files())
        elif names:
            os.chdir("..")
            os.rmdir(names.pop())
            waiting.pop()
        else:
            os.chdir("/")
            return


def _forget_attributes(path: str) -> None:
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return
    for name in names:
        if not name.startswith("security."):  # these are the system's
            os.removexattr(path, name)


def _unlink_files() -> list[bytes]:
    """Remove the current directory's files and return its directories."""
    directories = []
    with os.scandir(b".") as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                os.unlink(entry.name)
    return directories
