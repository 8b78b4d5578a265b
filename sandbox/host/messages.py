"""The messages between the host and a supervisor: the settings, and the answers, which are checked field by field.

A hostile image can run any program in the supervisor's place. So no field is used before its type and range are
checked. Each operation has a decoder; it raises `ProtocolError`, which ends the connection.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from ..base import ExecutionResult, FileEntry, Status
from ..guest.protocol import MAX_LISTED, MAX_REPORT, Decoder, ProtocolError
from ..limits import Limits, size_of

Header = Mapping[str, object]

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_STATUSES = frozenset(Status)
_EXIT_CODES = range(-64, 256)  # minus a signal's number, or a status
_ERRNOS = range(1, 4096)
_LONGEST_DETAIL = 1000  # characters
_COUNTS = range(1 << 63)
_KINDS: dict[bytes, Literal["file", "directory", "link", "other"]] = {
    b"f": "file", b"d": "directory", b"l": "link", b"o": "other",
}  # fmt: skip


def supervisor_settings(
    limits: Limits,
    workspace: str,
    environment: Mapping[str, str],
    preload: Sequence[str],
    *,
    user: int | None = None,
    local: dict[str, Any] | None = None,
    rlimits: Mapping[str, int] = MappingProxyType({}),
    measured: bool = False,
) -> dict[str, Any]:
    """Return the settings of a box, which are the first message to its supervisor.

    Args:
        limits, workspace, environment, preload: of the executor. Every box has some more variables.
        user: the id of the code's user and group in a container; None for the supervisor's own.
        local: None in a container; otherwise the folders of a box on the host itself.
        rlimits: the limits of each process of the code, by the names of the module `resource`.
        measured: whether the supervisor holds the limit on memory, as the kernel does not.
    """
    common = {"HOME": workspace, "USER": "sandbox", "LANG": "C.UTF-8", "TERM": "dumb", "MPLBACKEND": "Agg"}
    common |= {"PYTHONUNBUFFERED": "1", **dict.fromkeys(_ONE_THREAD, "1")}
    return {
        "workspace": workspace,
        "environment": {**common, **environment},
        "preload": list(preload),
        "max_output": size_of(limits.max_output),
        "max_file": size_of(limits.max_file),
        "grace": limits.grace,
        "idle": limits.idle,
        "lifetime": limits.lifetime,
        "user": user,
        "local": local,
        "rlimits": dict(rlimits),
        "measured": size_of(limits.memory) if measured else 0,
    }


@dataclass(kw_only=True, slots=True, frozen=True)
class Fault:
    """The reason why a program was not started, or a file operation failed."""

    errno: int
    detail: str
    stage: str = ""  # of a program's start: "user", "cwd" or "start"


def decode_ready(header: Header, parts: list[bytes]) -> tuple[str, bool]:
    """The answer to the settings: the part that the image lacks, or "", and whether it has Bash."""
    unfit = _text(header, "unfit")
    return unfit, not unfit and _flag(header, "bash")


def decode_nothing(header: Header, parts: list[bytes]) -> None:
    """The answer to `ping` or `reset`, which has no content."""


def decode_execution(header: Header, parts: list[bytes]) -> ExecutionResult:
    """The answer to `python` or `bash`, without the duration."""
    if len(parts) != 3:
        raise ProtocolError(f"an answer to code has three parts, got {len(parts)}")
    out, err, value = (part.decode("utf-8", "replace") for part in parts)
    status, code = header.get("status"), header.get("code")
    if not isinstance(status, str) or status not in _STATUSES:
        raise ProtocolError(f"'status' must be one of {', '.join(sorted(_STATUSES))}, got {shown(status)}")
    return ExecutionResult(
        status=Status(status),
        stdout=out,
        stderr=err,
        value=value if _flag(header, "value") else None,
        exit_code=None if code is None else _number(code, "code", _EXIT_CODES),
        dropped_bytes=_number(header.get("dropped"), "dropped", _COUNTS),
        state_lost=_flag(header, "lost"),
    )


def decode_program(header: Header, parts: list[bytes]) -> ExecutionResult | Fault:
    """The answer to `exec`, without the duration."""
    return _fault(header) or decode_execution(header, parts)


def decode_fault(header: Header, parts: list[bytes]) -> Fault | None:
    """The answer to `open` or `offer`."""
    return _fault(header)


def decode_output(header: Header, parts: list[bytes]) -> tuple[bytes, bool]:
    """The answer to `read`: output, and whether it is the last."""
    if len(parts) != 1:
        raise ProtocolError(f"an answer with output has one part, got {len(parts)}")
    return parts[0], _flag(header, "end")


def decode_exit_code(header: Header, parts: list[bytes]) -> int:
    """The answer to `wait`."""
    return _number(header.get("code"), "code", _EXIT_CODES)


def _fault(header: Header) -> Fault | None:
    if "errno" not in header:
        return None
    number = _number(header["errno"], "errno", _ERRNOS)
    return Fault(errno=number, detail=_text(header, "detail")[:_LONGEST_DETAIL], stage=_text(header, "fault"))


def decode_report(header: Header, parts: list[bytes]) -> bytes | Fault:
    """The answer to `file`: the report of a process with the rights of the code, which may have forged or ended it."""
    fault = _fault(header)
    if fault is not None:
        return fault
    if len(parts) not in (1, 3):  # a supervisor passes on the report alone, a box all streams, as of a program
        raise ProtocolError(f"an answer about a file has one part or three, got {len(parts)}")
    try:
        [(report, content)] = Decoder(max_header=MAX_REPORT).feed(parts[0])
        return _fault({**report, "fault": ""}) or content  # a stage is the guest's to tell
    except ValueError:
        return Fault(errno=errno.EIO, detail="the operation was killed, or has answered nonsense")


def decode_listing(header: Header, parts: list[bytes]) -> list[FileEntry] | Fault:
    """The answer to `list`: for each file a letter for its kind, its size, a space, its name and a zero byte."""
    content = decode_report(header, parts)
    if isinstance(content, Fault):
        return content
    try:
        return _entries(content)
    except ProtocolError as error:
        return Fault(errno=errno.EIO, detail=str(error))


def _entries(listing: bytes) -> list[FileEntry]:
    if listing.count(b"\0") > MAX_LISTED or listing[-1:] not in (b"", b"\0"):
        raise ProtocolError("the listing is too long, or has no end")
    return sorted((_entry(line) for line in listing.split(b"\0")[:-1]), key=lambda entry: entry.path)


def decode_retire(header: Header) -> str:
    """The reason why the box should not be used again, or ""; part of every answer."""
    return _text(header, "retire")


def _entry(line: bytes) -> FileEntry:
    kind, (size, _, name) = line[:1], line[1:].partition(b" ")
    if kind not in _KINDS or not name or not size.isdigit() or len(size) > 19:
        raise ProtocolError(f"a listing has a line that describes no file: {line[:80]!r}")
    return FileEntry(path=name.decode("utf-8", "surrogateescape"), kind=_KINDS[kind], size=int(size))


def _text(header: Header, name: str) -> str:
    text = header.get(name, "")
    if not isinstance(text, str):
        raise ProtocolError(f"{name!r} must be a str, got {shown(text)}")
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON can hold halves of surrogate pairs


def shown(field: object) -> str:
    """Return a field's text for an error message. Of a list or an object, which may be huge, only the type."""
    return repr(field)[:80] if isinstance(field, str | int | float | None) else type(field).__name__


def _flag(header: Header, name: str) -> bool:
    flag = header.get(name)
    if not isinstance(flag, bool):
        raise ProtocolError(f"{name!r} must be a bool, got {shown(flag)}")
    return flag


def _number(number: object, name: str, allowed: range) -> int:
    if type(number) is not int or number not in allowed:
        raise ProtocolError(f"{name!r} must be a number from {allowed[0]} to {allowed[-1]}, got {shown(number)}")
    return number
