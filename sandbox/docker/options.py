"""What the engine is asked for: one table that holds every measure of protection. Nothing here does anything.

The code runs as user 1000 without capabilities. Only the supervisor is the container's root, with three capabilities:
to start processes as that user (SETUID, SETGID) and to end them (KILL).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .base import WORKSPACE, Limits, size_of
from .boot import BOOT
from .settings import supervisor_settings

UNCONFINED = "unconfined"  # a `seccomp` that filters nothing

UID = 1000
NO_NETWORK = "none"


@cache
def default_seccomp() -> str:
    """Our own filter of system calls, as the engine takes it."""
    return json.dumps(json.loads(Path(__file__).with_name("seccomp.json").read_text("utf-8")))


@dataclass(kw_only=True, slots=True, frozen=True)
class BoxOptions:
    """Every measure of protection that `Limits` does not hold; the last six are there to be seen, and the same always.

    Hashable, as boxes with equal options are interchangeable.
    """

    image: str
    limits: Limits
    network: str = NO_NETWORK  # "none", "bridge", or the name of a network of the engine
    runtime: str | None = None  # such as "runsc" (gVisor) or "kata"; None is the engine's default
    read_only: bool = True  # the root file system; a box that can write it is replaced at `reset`
    seccomp: str | None = None  # None is ours; JSON, or "unconfined"
    environment: tuple[tuple[str, str], ...] = ()  # for the code; never the host's
    preload: tuple[str, ...] = ()  # modules that every session has imported already
    capabilities: tuple[str, ...] = field(default=("SETUID", "SETGID", "KILL"), init=False)  # the supervisor's alone
    no_new_privileges: bool = field(default=True, init=False)
    ipc: str = field(default="private", init=False)
    mounts: tuple[str, ...] = field(default=(), init=False)  # of the host
    log_driver: str = field(default="none", init=False)  # output would fill the host's disk
    orphans_collected: bool = field(default=True, init=False)  # by an init; else zombies use up the process limit


def container_config(options: BoxOptions, image: str, labels: dict[str, str], volumes: list[str]) -> dict[str, Any]:
    """The body of the engine's request to create the container (`POST /containers/create`)."""
    return {
        "Image": image,
        "Entrypoint": ["python3", "-u", "-c", BOOT],
        "Cmd": [],
        "User": "0:0",  # the supervisor; what the image names is for programs that are not there
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},  # an image's health check would run as root
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,  # the container's input ends with our connection, hence with our death
        "Tty": False,
        # The runtime makes an empty namespace then, and the engine need not set up a network without members, which
        # takes it a third of a start. It writes no /etc/hosts either, hence `inside_names.py`.
        "NetworkDisabled": options.network == NO_NETWORK,
        "HostConfig": _host_config(options, volumes),
    }


def _host_config(options: BoxOptions, volumes: list[str]) -> dict[str, Any]:
    limits = options.limits
    memory = size_of(limits.memory)
    config: dict[str, Any] = {
        "NetworkMode": options.network,
        "ReadonlyRootfs": options.read_only,
        "Tmpfs": _tmpfs(limits, volumes),
        "CapDrop": ["ALL"],
        "CapAdd": list(options.capabilities),
        "SecurityOpt": [
            f"no-new-privileges:{str(options.no_new_privileges).lower()}",
            f"seccomp={options.seccomp or default_seccomp()}",
        ],
        "PidsLimit": limits.pids,
        "Memory": memory,
        "MemorySwap": memory,  # memory and swap together, that is no swap
        "NanoCpus": int(limits.cpus * 1e9),
        "IpcMode": options.ipc,
        "ShmSize": size_of(limits.shm),
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "fsize", **dict.fromkeys(("Soft", "Hard"), max(map(size_of, (limits.workspace, limits.tmp))))},
        ],
        "Init": options.orphans_collected,
        "AutoRemove": True,
        "LogConfig": {"Type": options.log_driver, "Config": {}},
        "Binds": list(options.mounts),
    }
    if options.network == NO_NETWORK:
        # The supervisor tells names at the resolver's port, for which it would need another capability.
        config["Sysctls"] = {"net.ipv4.ip_unprivileged_port_start": "0"}
    if options.runtime is not None:
        config["Runtime"] = options.runtime
    return config


def _tmpfs(limits: Limits, volumes: list[str]) -> dict[str, str]:
    common = "rw,nosuid,nodev"
    return {
        # An image's volumes would be folders on the host's disk, without a limit.
        **dict.fromkeys(volumes, f"{common},noexec,size=64k,mode=0555"),
        WORKSPACE: (
            f"{common},exec,size={size_of(limits.workspace)},nr_inodes={limits.max_inodes},"
            f"uid={UID},gid={UID},mode=0700"
        ),
        "/tmp": f"{common},exec,size={size_of(limits.tmp)},nr_inodes={limits.max_inodes},mode=1777",
        "/dev/shm": f"{common},noexec,size={size_of(limits.shm)},nr_inodes=1024,mode=1777",
    }


def box_settings(options: BoxOptions, *, pipes: bool) -> dict[str, Any]:
    """What the supervisor is told first."""
    return supervisor_settings(
        options.limits,
        workspace=WORKSPACE,
        environment=dict(options.environment),
        preload=options.preload,
        names=options.network == NO_NETWORK,
        pipes=pipes,
    )
