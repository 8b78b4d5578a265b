"""Checks of the arguments of executors, so that a mistake is reported where it is made."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

from .limits import Limits, size_of

_PAGE = 4096  # bytes; some machines have larger ones


def checked_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment as a dict; TypeError or ValueError if it cannot be that of a process."""
    if not isinstance(env, Mapping | None):
        raise TypeError(f"env maps names to values, such as {{'LANG': 'C'}}, got {env!r}")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env maps names to values, both of them str, got {name!r}: {value!r}")
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"a name in env is not empty and holds neither '=' nor NUL, got {name!r}")
        if "\0" in value:
            raise ValueError(f"env[{name!r}] holds a NUL character, which no variable can: {value!r:.100}")
    return dict(env or {})


def checked_modules(preload: Sequence[str]) -> tuple[str, ...]:
    """Return the names of modules as a tuple; TypeError or ValueError if they are not names."""
    if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
        raise TypeError(f"preload is a list of modules' names, such as ['numpy'], got {preload!r}")
    for name in preload:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload names modules, such as 'numpy' or 'os.path', got {name!r}")
    return tuple(preload)


def checked_files(files: Mapping[str, bytes | str] | None, limits: Limits) -> dict[str, bytes]:
    """Return the files of a workspace with their content as bytes.

    TypeError or ValueError if they are no files of a workspace, or larger than `Limits.max_file` or, all together, than
    `Limits.workspace`.
    """
    if not isinstance(files, Mapping | None):
        raise TypeError(f"files maps paths to data, such as {{'data.csv': 'a,b'}}, got {files!r}")
    limit = size_of(limits.max_file)
    checked: dict[str, bytes] = {}
    for path, data in (files or {}).items():
        if not isinstance(path, str):
            raise TypeError(f"files maps paths, which are str, to data, got the path {path!r}")
        place = posixpath.normpath(path)
        if (
            not path
            or "\0" in path
            or path.endswith("/")
            or place.startswith("/")
            or place.split("/")[0] in (".", "..")
        ):
            raise ValueError(f"a path in files is that of a file in the workspace, relative to it, got {path!r}")
        content = content_of(data, f"files[{path!r}]")
        if len(content) > limit:
            raise ValueError(f"files[{path!r}] has {len(content)} bytes, Limits.max_file is {limit}")
        checked[path] = content
    _check_folders(checked)
    _check_total(checked, limits)
    return checked


def _check_folders(files: Iterable[str]) -> None:
    """A file cannot also be a folder that holds another file."""
    folders: dict[str, str] = {}  # each with a file below it
    for path in files:
        folder = posixpath.dirname(path)
        while folder:
            folders.setdefault(posixpath.normpath(folder), path)
            folder = posixpath.dirname(folder)
    for path in files:
        below = folders.get(posixpath.normpath(path))
        if below is not None:
            raise ValueError(f"files[{path!r}] is a file, so files[{below!r}] cannot lie below it: rename one of them")


def _check_total(files: Mapping[str, bytes], limits: Limits) -> None:
    """Count whole pages: the workspace lives in memory."""
    pages = {posixpath.normpath(path): -(-len(data) // _PAGE) for path, data in files.items()}
    taken = sum(pages.values()) * _PAGE
    if taken > -(-size_of(limits.workspace) // _PAGE) * _PAGE:
        largest = max(files, key=lambda path: len(files[path]))
        raise ValueError(
            f"{len(pages)} files take {taken} bytes in pages of {_PAGE}, the largest is files[{largest!r}] with "
            f"{len(files[largest])}, and Limits.workspace is {limits.workspace!r}: raise it or leave files out"
        )


def content_of(data: bytes | str, what: str = "data") -> bytes:
    """Return a file's content as bytes, text as UTF-8; TypeError if `data` is neither str nor bytes."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{what} must be bytes or str, got {type(data).__name__}: {data!r:.100}")
