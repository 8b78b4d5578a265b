"""The owner of a container: written into its labels, and read by the reaper to find the containers of dead owners."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

LABEL = "gymnast.sandbox"

_SLACK = 60.0  # seconds after its lifetime in which a container may still end itself
_STARTING = 150.0  # seconds in which an owner starts what it has created, or gives it up: three calls, and slack
_ALIVE = ("running", "paused", "restarting")  # states of a container that code may be in


def labels(lifetime: float) -> dict[str, str]:
    """The labels of a container that this process makes now."""
    pid = os.getpid()
    return {
        LABEL: "1",
        f"{LABEL}.host": platform.node(),
        f"{LABEL}.boot": _boot_id(),
        f"{LABEL}.namespace": _pid_namespace(),
        f"{LABEL}.pid": str(pid),
        f"{LABEL}.pid-started": _started(pid),
        f"{LABEL}.lifetime": f"{lifetime:.0f}",
    }


def is_abandoned(found: dict[str, str], *, state: str, age: float) -> bool:
    """Whether the owner in these labels is certainly dead or has given up the container, or its lifetime is over.

    A process number means something only on its own machine, between two boots, in one namespace; an owner elsewhere
    is left to the lifetime.

    Args:
        found: a container's labels.
        state: what the engine says of the container, such as "running".
        age: seconds since the engine created it, by the engine's clock.
    """
    label = {key.removeprefix(f"{LABEL}."): value for key, value in found.items()}
    try:
        lifetime, pid = float(label["lifetime"]), int(label["pid"])
    except (KeyError, ValueError):
        return False  # not written by us
    if age > lifetime + _SLACK:
        return True
    if label.get("host") != platform.node() or not _boot_id():
        return False
    if state == "created" and age > _STARTING:
        return True  # its owner was not told of it
    if label.get("boot") != _boot_id():
        # Either this machine was started anew since, and nothing runs that ran before; or it is another machine of the
        # same name, which may use this engine through a forwarded socket.
        return state not in (*_ALIVE, "created")
    if label.get("namespace") != _pid_namespace():
        return False
    return _started(pid) != label.get("pid-started")


@cache
def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


@cache
def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""  # not Linux


def _started(pid: int) -> str:
    """When a process was started: tells it from a later one with the same number; "" if there is none."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
