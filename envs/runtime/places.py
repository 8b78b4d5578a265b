"""The place in the user's code that a recorded traceback leads to."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_OURS = tuple(
    f"{Path(__file__).parents[2] / room}/" for room in ("sandbox", "envs", "records", "trainer", "cluster", "cli")
)


def user_place(traceback: str, *, or_installed: bool = True) -> str | None:
    """Return the innermost call in a file of the user as `FILE:LINE, in NAME`: there the user can mend something.

    Without such a call, return the innermost one outside gymnast if `or_installed`, else None.
    """
    frames = [frame for frame in _FRAME.findall(traceback) if not frame[0].startswith(_OURS)]
    own = [frame for frame in frames if not _is_installed(frame[0])]
    for file, line, name in reversed(own or (frames if or_installed else [])):
        return f"{file}:{line}, in {name}"
    return None


def _is_installed(file: str) -> bool:
    return "site-packages" in file or file.startswith((sys.base_prefix, sysconfig.get_path("purelib"), "<"))


def at_place(traceback: str | None) -> str:
    """Return `, at` and the user's place, to end a sentence about an error; empty if there is none."""
    place = user_place(traceback or "")
    return f", at {place}" if place else ""
