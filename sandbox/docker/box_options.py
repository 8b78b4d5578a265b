"""The request for the container of a `Box`, in which the code may be root. Nothing here talks to the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..images.host_image import GUEST_FOLDER
from ..images.image import ImageFacts
from ..limits import size_of
from .options import BoxOptions, container_config, default_seccomp

# Root of a container has fourteen in Docker. These are left out: to make devices, to open raw sockets, to write to the
# kernel's audit log. Each of the others acts on files, processes and ports of the box only.
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
    "SYS_CHROOT",
)  # fmt: skip

# Calls on another process, which is named by this argument: only 0, the caller itself, is allowed. Root could limit or
# slow down the guest.
_ON_ITSELF = {
    "prlimit64": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0, "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip
_ON_A_PROCESS = {"setpriority": 0, "ioprio_set": 1}  # the kind that argument 0 has: a process, not a group or a user
_MORE = ["chroot", "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop"]  # for databases

# The guest's own C library reads no file of the box: it could be a pipe, or worse.
GUEST_VARIABLES = {"LC_ALL": "C", "TZ": "UTC0", "TZDIR": GUEST_FOLDER}
_OF_THE_LOADER = ("LD_", "GLIBC_", "MALLOC_")  # variables of an image that it would obey


@cache
def box_seccomp() -> str:
    """Return the filter of system calls of a box, in the engine's format."""
    profile = json.loads(default_seccomp())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in _ON_ITSELF]
    allow = {"action": "SCMP_ACT_ALLOW"}
    profile["syscalls"].append({"names": _MORE, **allow})
    for name, index in _ON_ITSELF.items():
        wanted = {index: 0, **({0: _ON_A_PROCESS[name]} if name in _ON_A_PROCESS else {})}
        arguments = [{"index": number, "value": value, "op": "SCMP_CMP_EQ"} for number, value in wanted.items()]
        profile["syscalls"].append({"names": [name], "args": arguments, **allow})
    return json.dumps(profile)


def box_config(options: BoxOptions, image: ImageFacts, labels: Mapping[str, str], volume: str) -> dict[str, Any]:
    """Return the body of the request that creates the container (`POST /containers/create`).

    Args:
        options, labels: of the container.
        image: its image.
        volume: the name of the volume with the guest's Python.
    """
    config = container_config(options, image.id, dict(labels), [])
    python = [f"{GUEST_FOLDER}/ld.so", "--library-path", f"{GUEST_FOLDER}/lib", f"{GUEST_FOLDER}/bin/python3"]
    config["Entrypoint"] = [*python, "-I", "-S", "-u", "-X", "utf8", f"{GUEST_FOLDER}/boot"]
    variables = dict.fromkeys((name for name in image.environment if name.startswith(_OF_THE_LOADER)), "")
    config["Env"] = [f"{name}={value}" for name, value in {**variables, **GUEST_VARIABLES}.items()]
    limits, host = options.limits, config["HostConfig"]
    host |= {
        "ReadonlyRootfs": False,
        "Tmpfs": {},
        "CapAdd": list(_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={options.seccomp or box_seccomp()}"],
        "Init": False,  # the guest is the first process: the kernel protects this one from root
        "Binds": [f"{volume}:{GUEST_FOLDER}:ro,nocopy"],
        "ShmSize": size_of(limits.shm),
        "Ulimits": [limit for limit in host["Ulimits"] if limit["Name"] != "fsize"],
    }
    return config
