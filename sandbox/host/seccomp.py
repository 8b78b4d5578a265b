"""What code may ask of the kernel: our filters of system calls, as an engine and as the kernel reads them."""

from __future__ import annotations

import ctypes
import json
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ImageError

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LIBRARY = "libseccomp.so.2"
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # actions of libseccomp; an errno is added to the second
_MASKED_EQUAL = 7
_COMPARISONS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": _MASKED_EQUAL}
_PID = 0xFFFFFFFF  # the bits of an argument that the kernel takes as a process id

# The argument of a call that names a process.
_OF_A_PROCESS = {
    **dict.fromkeys(("kill", "tkill", "pidfd_open", "prlimit64", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill"), 0),
    **dict.fromkeys(("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"), 0),
}

# Root of a container has fourteen in Docker. These are left out: to make devices, to open raw sockets, to write to the
# kernel's audit log. Each of the others acts on files, processes and ports of the box only.
BOX_CAPABILITIES = (
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

Comparison = tuple[int, int, int, int]  # an argument's number, an operator, and one or two values


class _Comparison(ctypes.Structure):
    _fields_ = (("number", ctypes.c_uint), ("operator", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


@cache
def default_seccomp() -> str:
    """Return our filter of system calls, in the engine's format."""
    return json.dumps(json.loads(Path(__file__).with_name("seccomp.json").read_text("utf-8")))


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


@cache
def compiled_filter(profile: str, denied: tuple[str, ...] = (), *, guards_init: bool) -> bytes:
    """Return a filter as a program for the kernel of this machine.

    Args:
        profile: the filter in the engine's format.
        denied: calls that it denies besides.
        guards_init: whether it denies to signal, limit or slow down the process 1. For a supervisor that runs as the
            same user as the code.

    Raises:
        ImageError: this machine has no libseccomp.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise ImageError(f"the filter of system calls needs {_LIBRARY}: install libseccomp ({error})") from None
    library.seccomp_init.restype = ctypes.c_void_p
    content = json.loads(profile)
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ERRNO | content["defaultErrnoRet"])))
    try:
        for rule in content["syscalls"]:
            architectures = rule.get("includes", {}).get("arches")
            if architectures is None or _ARCHITECTURES.get(platform.machine().lower()) in architectures:
                for name in set(rule["names"]) - set(denied):
                    _add(library, context, rule, name, guards_init)
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _add(library: ctypes.CDLL, context: ctypes.c_void_p, rule: dict[str, Any], name: str, guards_init: bool) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:  # this processor, or this libseccomp, does not have it: it stays denied
        return
    action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | rule["errnoRet"]
    conditions: Sequence[Sequence[Comparison]] = [
        [(one["index"], _COMPARISONS[one["op"]], one["value"], one.get("valueTwo", 0)) for one in rule.get("args", [])]
    ]
    if guards_init and not rule.get("args") and name in _OF_A_PROCESS:
        conditions = [[condition] for condition in _not_init(_OF_A_PROCESS[name])]
    elif (
        guards_init and not rule.get("args") and name == "setpriority"
    ):  # of this process only: another form would name every process
        conditions = [[(0, _MASKED_EQUAL, _PID, os.PRIO_PROCESS), (1, _MASKED_EQUAL, _PID, 0)]]
    for condition in conditions:
        comparisons = (_Comparison * len(condition))(*(_Comparison(*one) for one in condition))
        code = library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(condition), comparisons)
        assert code == 0, (name, code)


def _not_init(argument: int) -> list[Comparison]:
    """Say that the process id in an argument is not 1: it is 0, or one of its other bits is set."""
    bits = [(argument, _MASKED_EQUAL, 1 << bit, 1 << bit) for bit in range(1, 32)]
    return [(argument, _MASKED_EQUAL, _PID, 0), *bits]


def _exported(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    file = os.memfd_create("gymnast-seccomp")
    try:
        assert library.seccomp_export_bpf(context, file) == 0
        return os.pread(file, 1 << 20, 0)
    finally:
        os.close(file)
