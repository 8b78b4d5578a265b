"""`Limits`: the resources that a box may use, and the checks of sizes, counts and times that users pass.

A size is a number of bytes or text such as "512m"; `size_of` reads it. `check_timeout` checks a number of seconds,
`check_positive` a limit that may be None.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .keywords import checks_keywords

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZES = ("memory", "workspace", "tmp", "shm", "max_output", "max_file", "max_code")
_COUNTS = ("pids", "max_inodes", "open_files")
_SECONDS = ("grace", "idle", "lifetime")


@checks_keywords()
@dataclass(kw_only=True, slots=True, frozen=True)
class Limits:
    """The resources that a box may use.

    A size is a number of bytes, text such as "512m", or a part of the memory such as "memory/4". It is kept as bytes:
    `Limits(memory="512m") == Limits(memory=512 << 20)`.

    Raises:
        TypeError: a limit has a type other than the declared one; NumPy's numbers are accepted.
        ValueError: a limit is out of range, or two limits contradict each other.
    """

    memory: int | str = "512m"  # all processes and in-memory files together; there is no swap
    cpus: float = 1.0
    pids: int = 128  # processes and threads, with about five of our own
    workspace: int | str = "memory/4"  # of `/workspace`
    tmp: int | str = "memory/8"  # of `/tmp`
    shm: int | str = "memory/32"  # of `/dev/shm`
    max_inodes: int = 32768  # files and folders in `/workspace`, and again in `/tmp`; at most one for each 8k of memory
    open_files: int = 1024  # descriptors of one process
    max_output: int | str = "1m"  # kept of each of stdout, stderr and value: half head, half tail
    max_file: int | str = "32m"  # one `write_file`, `read_file` or `list_files`
    max_code: int | str = "4m"  # one `python` or `bash` call; more is an error result
    grace: float = 0.5  # seconds between the interruption at a timeout, which is repeated once, and the kill
    idle: float = 3600.0  # seconds without a call after which a box ends itself
    lifetime: float = 6 * 3600.0  # seconds after which a box ends itself, and a running call with it

    def __post_init__(self) -> None:
        for name in _SIZES:
            self._set(name, _size(getattr(self, name), f"Limits.{name}", size_of(self.memory, "Limits.memory")))
        for name in _COUNTS:
            self._set(name, count_of(getattr(self, name), f"Limits.{name}"))
        for name in _SECONDS:
            self._set(name, amount_of(getattr(self, name), f"Limits.{name}", "seconds"))
        self._set("cpus", amount_of(self.cpus, "Limits.cpus", "cores"))
        self._check_ranges()
        self._check_files_in_memory()

    def _set(self, name: str, number: float) -> None:
        if not 0 < number < math.inf:
            raise ValueError(f"Limits.{name} must be positive and finite, got {getattr(self, name)!r}")
        object.__setattr__(self, name, number)

    def _check_ranges(self) -> None:
        if self.cpus < 0.01:  # an engine reads a number that rounds to 0 as "no limit"
            raise ValueError(f"Limits.cpus must be at least 0.01, the least that can be held, got {self.cpus}")
        if size_of(self.memory) < 64 << 20:
            raise ValueError(f"Limits.memory must be at least 64m, which Python itself needs, got {self.memory}")
        if self.pids < 16:
            raise ValueError(f"Limits.pids must be at least 16, five of which are the box's own, got {self.pids}")
        if self.open_files < 64:
            raise ValueError(f"Limits.open_files must be at least 64, got {self.open_files}")
        if size_of(self.max_file) > 64 << 20:
            raise ValueError(f"Limits.max_file must be at most 64m, one message's size, got {self.max_file}")
        if not 1024 <= size_of(self.max_output) <= 16 << 20:
            raise ValueError(f"Limits.max_output must be from 1k to 16m, got {self.max_output}")
        if size_of(self.max_code) > size_of(self.max_file):
            raise ValueError(f"Limits.max_code={self.max_code} must not exceed max_file={self.max_file}")

    def _check_files_in_memory(self) -> None:
        # Full in-memory files leave a box in which every new process is killed at once, and no reset can start.
        in_memory = size_of(self.workspace) + size_of(self.tmp) + size_of(self.shm)
        if in_memory > size_of(self.memory) // 2:
            raise ValueError(
                f"Limits.workspace + tmp + shm = {_in_mebibytes(self.workspace)} + {_in_mebibytes(self.tmp)} + "
                f"{_in_mebibytes(self.shm)} must be at most half of memory={_in_mebibytes(self.memory)}: "
                "these files live in memory; raise memory or lower them"
            )


def check_limits(limits: Limits | None) -> Limits:
    """Return the limits, or the default ones for None; TypeError if `limits` is anything else."""
    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        raise TypeError(
            f"limits must be a Limits, such as Limits(memory='512m'), got {type(limits).__name__}: {limits!r:.200}"
        )
    return limits


def size_of(size: int | str, name: str = "size") -> int:
    """Return a size in bytes: `size_of("64m") == 64 * 1024**2`; TypeError or ValueError if it is not a size."""
    if not isinstance(size, str):
        return _whole(size, f"{name}: a size is a whole number of bytes, or text such as '512m'")
    match = re.fullmatch(r"(\d+)([bkmg]?)", size.strip().lower())
    if match is None:
        raise ValueError(f"{name}: a size is a number of bytes, or text such as '512m' (b, k, m, g), got {size!r}")
    return int(match[1]) * _UNITS[match[2]]


def _size(size: int | str, name: str, memory: int) -> int:
    """`size_of`, which also reads a part of the memory, such as "memory/4"."""
    part = re.fullmatch(r"memory/([1-9]\d*)", size.replace(" ", "").lower()) if isinstance(size, str) else None
    return memory // int(part[1]) if part else size_of(size, name)


def _in_mebibytes(size: int | str) -> str:
    return f"{size_of(size) / 2**20:g}m"


def count_of(count: float, name: str) -> int:
    """Return a whole number as an int; TypeError if `count` is not one."""
    return _whole(count, f"{name} must be a whole number")


def amount_of(amount: float, name: str, unit: str) -> float:
    """Return a real number as a float, infinity if it is too large; TypeError if `amount` is not a real number."""
    if not isinstance(amount, Real) or isinstance(amount, bool):
        raise TypeError(f"{name} must be a number of {unit}, got {type(amount).__name__}: {amount!r}")
    try:
        return float(amount)
    except OverflowError:
        return math.inf


def check_timeout(seconds: float, name: str = "timeout") -> float:
    """Return a number of seconds as a float; TypeError or ValueError if it is not a positive, finite number."""
    number = amount_of(seconds, name, "seconds")
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a positive number of seconds, got {seconds!r}")
    return number


def check_positive(value: float | None, name: str, unit: str = "") -> None:
    """Check a limit that may be None: a positive number of the unit, or, without a unit, a positive whole number."""
    if value is not None and not (amount_of(value, name, unit) if unit else count_of(value, name)) > 0:  # or NaN
        raise ValueError(f"{name} must be positive or None, got {value!r}")


def _whole(number: Any, expected: str) -> int:
    if not isinstance(number, bool):
        try:
            return operator.index(number)
        except TypeError:
            pass
    raise TypeError(f"{expected}, got {type(number).__name__}: {number!r}")
