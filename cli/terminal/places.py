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
_INSTALLED = (sys.base_prefix, sysconfig.get_path("purelib"), "<")


def user_place(traceback: str) -> str | None:
    """Return the innermost call outside gymnast as `FILE:LINE, in NAME`; None if there is none.

    A call in a file that no package installed is preferred: that is where the user can mend something.
    """
    frames = [frame for frame in _FRAME.findall(traceback) if not frame[0].startswith(_OURS)]
    own = [frame for frame in frames if not frame[0].startswith(_INSTALLED)]
    if not frames:
        return None
    file, line, name = (own or frames)[-1]
    return f"{file}:{line}, in {name}"


def at_place(traceback: str | None) -> str:
    """Return `, at` and the user's place, to end a sentence about an error; empty if there is none."""
    place = user_place(traceback or "")
    return f", at {place}" if place else ""
