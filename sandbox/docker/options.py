"""The request for a container, with every measure of protection. Nothing here talks to the engine.

The code runs as an ordinary user without capabilities, a different one in each box. Only the supervisor is the
container's root. It has three capabilities: to start processes as that user (SETUID, SETGID), and to end them (KILL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base import WORKSPACE
from ..host.boot import BOOT
from ..host.seccomp import default_seccomp
from ..limits import Limits, size_of

NO_NETWORK = "none"
HOSTNAME = "sandbox"

_CPU_PERIOD = 100_000  # microseconds, in which the processes of a box get `cpus` times as much processor time

# An empty file takes about 1 KiB of the box's memory. So empty files in /workspace and /tmp take at most a quarter.
_MEMORY_PER_INODE = 8 << 10


@dataclass(kw_only=True, slots=True, frozen=True)
class BoxOptions:
    """The protection of a box, as far as it differs between boxes. Boxes with equal options are interchangeable."""

    limits: Limits
    network: str = NO_NETWORK  # "none", "bridge", or the name of a network of the engine
    runtime: str | None = None  # such as "runsc" (gVisor) or "kata"; None is the engine's default
    read_only: bool = True  # the root file system; a box that can write it is replaced at `reset`
    seccomp: str | None = None  # None is ours; JSON, or "unconfined"
    environment: tuple[tuple[str, str], ...] = ()  # for the code; never the host's
    preload: tuple[str, ...] = ()  # modules that every session has imported already


def container_config(
    options: BoxOptions, image: str, labels: dict[str, str], volumes: list[str], *, user: int = 1000
) -> dict[str, Any]:
    """Return the body of the request that creates the container (`POST /containers/create`).

    Args:
        options, labels: of the container.
        image, volumes: the id of the image, and the folders that it declares as volumes.
        user: the id of the code's user. Boxes with the same id could starve one another, as the kernel counts some
            things per user id (inotify instances, pipe pages, queued signals).
    """
    return {
        "Image": image,
        "Entrypoint": ["python3", "-u", "-c", BOOT],
        "Cmd": [],
        "User": "0:0",  # for the supervisor; the image's USER belongs to its own entrypoint, which this replaces
        "WorkingDir": "/",
        "Hostname": HOSTNAME,
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},  # an image's health check would run as root
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,  # the container's input ends with our connection, and so when we die
        "Tty": False,
        "HostConfig": _host_config(options, volumes, user),
    }


def _host_config(options: BoxOptions, volumes: list[str], user: int) -> dict[str, Any]:
    limits = options.limits
    memory = size_of(limits.memory)
    config: dict[str, Any] = {
        "NetworkMode": options.network,
        "ReadonlyRootfs": options.read_only,
        "Tmpfs": _tmpfs(limits, volumes, user),
        "CapDrop": ["ALL"],
        "CapAdd": ["SETUID", "SETGID", "KILL"],  # the supervisor's alone
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={options.seccomp or default_seccomp()}"],
        "PidsLimit": limits.pids,
        "Memory": memory,
        "MemorySwap": memory,  # memory and swap together: there is no swap
        "CpuPeriod": _CPU_PERIOD,
        "CpuQuota": int(limits.cpus * _CPU_PERIOD),
        "IpcMode": "private",
        "CgroupnsMode": "private",  # else /sys/fs/cgroup may show the host's root, which counts no killed processes
        # Otherwise a closed connection would keep its port for a minute, even after a reset.
        "Sysctls": {"net.ipv4.tcp_max_tw_buckets": "0"},
        "ShmSize": size_of(limits.shm),
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "fsize", **dict.fromkeys(("Soft", "Hard"), max(map(size_of, (limits.workspace, limits.tmp))))},
        ],
        "Init": True,  # it collects orphans; else zombies use up the process limit
        "AutoRemove": True,
        "LogConfig": {"Type": "none", "Config": {}},  # output would fill the host's disk
        "Binds": [],
    }
    if options.network == NO_NETWORK:
        config["ExtraHosts"] = [f"{HOSTNAME}:127.0.0.1"]  # otherwise the box could not resolve its own name
    if options.runtime is not None:
        config["Runtime"] = options.runtime
    return config


def _tmpfs(limits: Limits, volumes: list[str], user: int) -> dict[str, str]:
    common = "rw,nosuid,nodev"
    inodes = min(limits.max_inodes, size_of(limits.memory) // _MEMORY_PER_INODE)
    return {
        # Volumes of the image would be folders on the host's disk, without a limit. /dev/mqueue would let the code make
        # message queues.
        **dict.fromkeys([*volumes, "/dev/mqueue"], f"{common},noexec,size=64k,mode=0555"),
        WORKSPACE: f"{common},exec,size={size_of(limits.workspace)},nr_inodes={inodes},uid={user},gid={user},mode=0700",
        "/tmp": f"{common},exec,size={size_of(limits.tmp)},nr_inodes={inodes},mode=1777",
        "/dev/shm": f"{common},noexec,size={size_of(limits.shm)},nr_inodes=1024,mode=1777",
    }
