"""Users of the box, by its own /etc/passwd and /etc/group. Only children read these: the code may have put a trap."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

_LONGEST = 1 << 20  # bytes of either file


class User(NamedTuple):
    """A user as which a program runs."""

    uid: int
    gid: int
    groups: list[int]
    home: str

    def become(self) -> None:
        """Turn the calling process into one of this user; it loses every privilege that the user does not have."""
        with open("/proc/self/setgroups") as file:
            if file.read() == "allow\n":  # not in a box with one user
                os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


def find(wanted: str) -> User:
    """Return the user for "name", "id", "name:group" or "id:id", as an image's USER line has it; "" is root.

    LookupError if there is no such user or group. An id needs no entry.
    """
    name, _, group = wanted.partition(":")
    name = "0" if name in ("", "root") else name
    entries = _entries("/etc/passwd", 7)
    entry = next((entry for entry in entries if entry[0] == name or (name.isdigit() and entry[2] == name)), None)
    if entry is None and not name.isdigit():
        raise LookupError(f"the box has no user {name!r}")
    uid, gid, home = (int(entry[2]), int(entry[3]), entry[5]) if entry else (int(name), 0, "/")
    groups = _entries("/etc/group", 4)
    if group:
        found = next((int(entry[2]) for entry in groups if entry[0] == group), int(group) if group.isdigit() else None)
        if found is None:
            raise LookupError(f"the box has no group {group!r}")
        return User(uid, found, [found], home)
    more = [int(other[2]) for other in groups if entry and entry[0] in other[3].split(",")]
    return User(uid, gid, sorted({gid, *more}), home)


def mend() -> None:
    """Rename lists of users that are no ordinary files: an engine reads them when it starts a box of these files.

    No other process of the box may be running.
    """
    for path in ("/etc", "/etc/passwd", "/etc/group"):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link without an end
                raise
        else:
            fits = stat.S_ISDIR if path == "/etc" else stat.S_ISREG
            if fits(status.st_mode) and status.st_size <= _LONGEST:
                continue
        os.rename(path, path + "-" + os.urandom(4).hex())


def _entries(path: str, fields: int) -> list[list[str]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return []
    with open(fd, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read(_LONGEST) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    lines = (line.split(":") for line in text.splitlines())
    return [line for line in lines if len(line) == fields and line[2].isdigit() and (fields == 4 or line[3].isdigit())]
