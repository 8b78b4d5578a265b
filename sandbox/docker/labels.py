"""The labels of a container: they name its owner, and the reaper reads them to find containers of dead owners."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

LABEL = "gymnast.sandbox"

_SLACK = 60.0  # seconds after its lifetime in which a container may still end itself
_STARTING = 150.0  # seconds in which an owner starts a container or gives it up: three calls of the engine, and slack
_ALIVE = ("running", "paused", "restarting")  # states of a container in which code may run


def labels(lifetime: float) -> dict[str, str]:
    """Return the labels for a container of this process."""
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


def is_own(found: dict[str, str]) -> bool:
    """Whether a container with these labels belongs to this process."""
    own = labels(0)
    del own[f"{LABEL}.lifetime"]
    return own.items() <= found.items()


def is_abandoned(found: dict[str, str], *, state: str, age: float) -> bool:
    """Whether the owner of a container is certainly dead or has given it up.

    A process id is valid only on its own machine, between two boots, in one namespace. The container of an owner
    elsewhere is abandoned when its lifetime is over. That of a living owner never is: the engine's clock, by which
    `age` is counted, may jump. `found` are the container's labels, `state` is the engine's word, such as "running".
    """
    label = {key.removeprefix(f"{LABEL}."): value for key, value in found.items()}
    try:
        lifetime, pid = float(label["lifetime"]), int(label["pid"])
    except (KeyError, ValueError):
        return False  # not written by us
    is_here = label.get("host") == platform.node() and bool(_boot_id())
    if is_here and label.get("boot") == _boot_id() and label.get("namespace") == _pid_namespace():
        return _started(pid) != label.get("pid-started")
    if is_here and state == "created" and age > _STARTING:
        return True  # its owner never learnt of it
    if is_here and label.get("boot") != _boot_id() and state not in (*_ALIVE, "created"):
        # This machine was booted since, and no earlier process runs. A container that is alive may belong to another
        # machine of the same name, which uses this engine through a forwarded socket.
        return True
    return age > lifetime + _SLACK


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
    """Return the start time of a process, which no later process with its id shares; "" if there is no process."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
