"""The digest of the files that an image is made of. They are read once, and again only if one of them has changed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import ImageError

_PIECE = 1 << 20  # bytes read at a time

_known: dict[Path, tuple[str, str]] = {}  # for each folder or file: the state of its files, and their digest


def digest_of(path: Path) -> str:
    """Return a digest of a file, or of a Dockerfile's folder: names, modes, links and content.

    Files that the folder's `.dockerignore` names do not count. A file has changed if its size, its mode or one of its
    times has.

    Raises:
        ImageError: a file cannot be read.
    """
    try:
        files = {name: os.lstat(path / name) for name in (_names(path) if path.is_dir() else [""])}
        state = hashlib.sha256()
        for name, facts in files.items():
            # `st_ctime_ns` too: programs that unpack archives set the other time back
            state.update(f"{name}\0{facts.st_mode} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}\0".encode())
        found, digest = _known.get(path, ("", ""))
        if found != state.hexdigest():
            digest = _read(path, files)
            _known[path] = state.hexdigest(), digest
    except OSError as error:
        raise ImageError(f"an image cannot be made of {path}: {error}") from error
    return digest


def _names(folder: Path) -> list[str]:
    """Return the relative paths of everything that a build of the folder is sent, sorted."""
    ignored = folder / ".dockerignore"
    if not ignored.is_file():
        within = ((os.path.relpath(place, folder), names + files) for place, names, files in os.walk(folder))
        return sorted(os.path.join(place, name) for place, names in within for name in names)
    from docker.utils.build import exclude_paths  # imported late: it takes longer than the rest of the package

    lines = (line.strip() for line in ignored.read_text().splitlines())
    return sorted(exclude_paths(str(folder), [line for line in lines if line and not line.startswith("#")]))


def _read(path: Path, files: dict[str, os.stat_result]) -> str:
    digest = hashlib.sha256()
    for name, facts in files.items():
        mode = stat.S_IMODE(facts.st_mode) if not stat.S_ISLNK(facts.st_mode) else 0
        digest.update(f"{name}\0{stat.S_IFMT(facts.st_mode):o} {mode:o}\0".encode())
        if stat.S_ISLNK(facts.st_mode):
            digest.update(os.readlink(path / name).encode() + b"\0")
        elif stat.S_ISREG(facts.st_mode):
            digest.update(f"{facts.st_size}\0".encode())
            for piece in _pieces(path / name if name else path):
                digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
