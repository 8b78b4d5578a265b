"""Measures the peak memory of a call above what the process held before. Linux."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")


def growth_in_mb(call: Callable[[], Answer]) -> tuple[Answer, float]:
    """Return the call's result and the rise of the peak resident memory in MB."""
    # The peak that getrusage() gives includes the parent's at the time of the fork; this one can be put back.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    answer = call()
    return answer, _resident("VmHWM") - before


def _resident(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")
