"""Files inside the box: read, write, list and remove them, with the rights of the code.

Each operation runs in a child process without privileges. A trap of the code (a link into /proc, a pipe without a
writer) thus catches a process that has only the rights of the code itself.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from .protocol import MAX_LISTED, PIECE, encode


def run(request: dict[str, Any], path: str, data: bytes, *, follow: bool = False) -> None:
    """Perform an operation, and write a frame to standard output: its result, or the errno and detail of its error."""
    try:
        report = encode({}, _perform(request, path, data, follow))
    except (OSError, ValueError, MemoryError) as error:  # a NUL in the path, or too little memory
        report = encode(failure(error))
    write_all(1, report)


def failure(error: Exception) -> dict[str, Any]:
    """Return the header of a frame for an error: its errno and a detail."""
    if isinstance(error, OSError):
        return {"errno": error.errno or errno.EIO, "detail": error.strerror or ""}
    return {"errno": errno.EINVAL if isinstance(error, ValueError) else errno.ENOMEM, "detail": str(error)}


def write_all(fd: int, data: bytes) -> None:
    """Write to a descriptor that waits for room."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _perform(request: dict[str, Any], path: str, data: bytes, follow: bool) -> bytes:
    """Read or write a piece of a file, or list a folder, as the header of the host's request says.

    OSError, ValueError or MemoryError if it cannot be done, or a file or listing has more bytes than the request's
    limit. Links are refused unless `follow`.
    """
    flags = os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    if request["do"] == "read":
        return _read(path, request["offset"], request["limit"], flags)
    if request["do"] == "write":
        _write(path, request["offset"], data, flags)
        return b""
    assert request["do"] == "list", request
    return _list(path, request["limit"], request["recursive"])


def _read(path: str, offset: int, limit: int, flags: int) -> bytes:
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        _require_regular(fd)
        piece, size = bytearray(), os.fstat(fd).st_size  # a file in /proc has contents and a size of 0
        while size <= limit and len(piece) < PIECE:
            data = os.pread(fd, PIECE - len(piece), offset + len(piece))
            if not data:
                break
            piece += data
        size = max(size, offset + len(piece))
        if size > limit:
            raise OSError(errno.EFBIG, f"the file has {size} bytes or more, the limit is {limit}")
        return bytes(piece)
    finally:
        os.close(fd)


def _write(path: str, offset: int, data: bytes, flags: int) -> None:
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        _require_regular(fd)
        os.ftruncate(fd, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        write_all(fd, data)
    finally:
        os.close(fd)


def _require_regular(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "this is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "this is not a regular file but a device, a pipe or a socket")


def _list(path: str, limit: int, recursive: bool) -> bytes:
    root = os.fsencode(path)
    found: list[bytes] = []
    folders, total = [b""], 0
    while folders:
        folder = folders.pop()
        try:
            entries = os.scandir(os.path.join(root, folder) if folder else root)
        except OSError:
            if not folder:
                raise
            continue  # the code may not read it, or it is gone; its own entry is listed
        with entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                kind, size = _describe(entry)
                found.append(b"%s%d %s\0" % (kind, size, name))
                total += len(found[-1])
                if total > limit or len(found) > MAX_LISTED:
                    raise OSError(errno.EFBIG, f"the listing is too long, with {len(found)} files so far")
                if recursive and kind == b"d":
                    folders.append(name)
    return b"".join(found)


def _describe(entry: Any) -> tuple[bytes, int]:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return b"o", 0
    kinds = {stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l"}
    return kinds.get(stat.S_IFMT(status.st_mode), b"o"), status.st_size


def empty_memory() -> None:
    """Empty every file system in memory that the code can write to. No other process of it may be running."""
    for path in in_memory("tmpfs", "mqueue"):
        if os.stat(path).st_uid == os.getuid() or os.access(path, os.W_OK | os.X_OK):
            empty(path)


def in_memory(*kinds: str) -> list[str]:
    """Return where file systems of these kinds are mounted, if they can be written to."""
    with open("/proc/self/mounts") as file:
        mounts = [line.split() for line in file]
    return [path for _, path, kind, options, *_ in mounts if kind in kinds and "rw" in options.split(",")]


def empty(path: str) -> None:
    """Remove everything below a directory. It goes step by step, as a path may be longer than the kernel accepts.

    '..' is safe here only because no other process of the code is running that could move directories.
    """
    if os.stat(path).st_uid == os.getuid():
        os.chmod(path, 0o700)
        _forget_attributes(path)
    os.chdir(path)
    waiting = [_unlink_files()]  # for each level, the directories still to be removed
    names: list[bytes] = []  # the path to the current directory
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
            os.utime(".")  # else code could leave a message in the times of a folder
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
        if not name.startswith("security."):  # the system's own
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
