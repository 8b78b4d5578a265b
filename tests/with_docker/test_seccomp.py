"""Our filter of system calls: it denies each forbidden call, and ordinary programs work under it.

A call is made by its number, as the code's user. The filter looks at the number before the kernel looks at anything
else, so arguments of 0 do; and no rule of the profile allows the call, so the kernel's own refusal is not what we see.
"""

from __future__ import annotations

import errno
import json
import platform
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gymnast.sandbox import BwrapExecutor, DockerExecutor, Executor, Status
from gymnast.sandbox.host.seccomp import default_seccomp

from ..sandbox.boxes import LIMITS

ARCHITECTURE = {"x86_64": 0, "amd64": 0, "aarch64": 1, "arm64": 1}[platform.machine().lower()]
RULES: list[dict[str, Any]] = json.loads(default_seccomp())["syscalls"]

# The numbers on x86-64 and on arm64 of every call that the profile has no rule for; None where there is no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171),
    "afs_syscall": (183, None), "bpf": (321, 280), "chroot": (161, 51), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "create_module": (174, None), "delete_module": (176, 106),
    "epoll_ctl_old": (214, None), "epoll_wait_old": (215, None), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "get_kernel_syms": (177, None), "get_mempolicy": (239, 236),
    "get_thread_area": (211, None), "getpmsg": (181, None), "init_module": (175, 105), "io_cancel": (210, 3),
    "io_destroy": (207, 1), "io_getevents": (208, 4), "io_pgetevents": (333, 292), "io_setup": (206, 0),
    "io_submit": (209, 2), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "ioperm": (173, None), "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "lookup_dcookie": (212, 18), "mbind": (237, 235),
    "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239), "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184), "mq_open": (240, 180), "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pivot_root": (155, 41), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "putpmsg": (182, None), "query_module": (178, None), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "remap_file_pages": (216, 234), "request_key": (249, 218),
    "security": (185, None), "semctl": (66, 191), "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "set_thread_area": (205, None),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268), "settimeofday": (164, 170),
    "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "shmget": (29, 194), "swapoff": (168, 225),
    "swapon": (167, 224), "sysfs": (139, None), "syslog": (103, 116), "tuxcall": (184, None), "umount2": (166, 39),
    "unshare": (272, 97), "uselib": (134, None), "userfaultfd": (323, 282), "ustat": (136, None), "vhangup": (153, 58),
    "vmsplice": (278, 75), "vserver": (236, None),
}  # fmt: skip

# Those of them that Docker's own profile allows: the difference between the profiles.
STRICTER_THAN_DOCKER = {
    "adjtimex", "clock_adjtime", "epoll_ctl_old", "epoll_wait_old", "fanotify_mark", "get_thread_area", "io_cancel",
    "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "memfd_secret", "modify_ldt", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive",
    "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "name_to_handle_at", "process_mrelease",
    "process_vm_readv", "process_vm_writev", "ptrace", "remap_file_pages", "semctl", "semget", "semop", "semtimedop",
    "set_thread_area", "shmat", "shmctl", "shmdt", "shmget", "vmsplice",
}  # fmt: skip

# Calls that the profile allows for some arguments only.
NEW_NAMESPACES = {
    "MOUNT": 0x20000, "CGROUP": 0x2000000, "UTS": 0x4000000, "IPC": 0x8000000, "USER": 0x10000000, "PID": 0x20000000,
    "NET": 0x40000000,
}  # fmt: skip
FAMILIES = {
    "unspecified": 0, "AX25": 3, "X25": 9, "KEY": 15, "PACKET": 17, "RDS": 21, "PPPOX": 24, "CAN": 29, "TIPC": 30,
    "BLUETOOTH": 31, "ALG": 38, "NFC": 39, "VSOCK": 40, "KCM": 41, "QIPCRTR": 42, "SMC": 43, "XDP": 44,
}  # fmt: skip
BY_ARGUMENTS = [
    *(pytest.param((56, 220), (flag, 0, 0, 0, 0), id=f"clone NEW{name}") for name, flag in NEW_NAMESPACES.items()),
    *(pytest.param((41, 198), (family, 3, 0), id=f"socket {name}") for name, family in FAMILIES.items()),
    *(pytest.param((41, 198), (16, 3, protocol), id=f"socket NETLINK {protocol}") for protocol in range(1, 23)),
    *(pytest.param((53, 199), (family, 1, 0, 0), id=f"socketpair {family}") for family in (2, 10, 16, 30, 40)),
    *(pytest.param((135, 92), (value,), id=f"personality {value:#x}") for value in (0x40000, 0x400000, 0x20, 0x1)),
]


@pytest.fixture(scope="module", params=[DockerExecutor, BwrapExecutor])
async def box(image: str, request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
    """The engine compiles the profile for the one, we for the other."""
    if request.param is BwrapExecutor:
        request.getfixturevalue("bubblewrap")
    async with request.param(limits=LIMITS) as box:
        yield box


async def refusal(box: Executor, number: int | None, *arguments: int) -> str:
    """The name of the errno with which a call fails, or its result."""
    result = await box.python(f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall(ctypes.c_long({number}), *[ctypes.c_long(value) for value in {arguments or (0,) * 6}])
errno.errorcode[ctypes.get_errno()] if result == -1 else str(result)""")
    assert result.value is not None, result
    return result.value.strip("'")


# --- what is denied ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, numbers in DENIED.items() if numbers[ARCHITECTURE] is not None])
async def test_a_call_is_denied(box: Executor, name: str) -> None:
    assert await refusal(box, DENIED[name][ARCHITECTURE]) == "EPERM"
    assert not [rule for rule in RULES if name in rule["names"]]


@pytest.mark.parametrize(("numbers", "arguments"), BY_ARGUMENTS)
async def test_a_call_is_denied_for_its_arguments(
    box: Executor, numbers: tuple[int, int], arguments: tuple[int, ...]
) -> None:
    assert await refusal(box, numbers[ARCHITECTURE], *arguments) == "EPERM"


async def test_clone3_is_said_not_to_exist(box: Executor) -> None:
    """Its flags are in memory, where a filter cannot see them. The C library then uses clone."""
    assert await refusal(box, 435) == "ENOSYS"


# The runtime answers calls that are newer than the engine with ENOSYS, because no rule names them.
ALLOWED_OF_THE_NEW = {452, 453, 454, 455, 456, 462}  # fchmodat2, map_shadow_stack, futex_*, mseal


async def test_unknown_system_calls_are_denied(box: Executor) -> None:
    for number in sorted(set(range(451, 520)) - ALLOWED_OF_THE_NEW):
        assert await refusal(box, number) in ("EPERM", "ENOSYS"), number


FOREIGN = """
import ctypes, mmap
code = bytes.fromhex("{code}")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"""

FOREIGN_CALLS = {  # getpid() by the tables of other architectures that the processor knows
    0: {"32 bits": "b814000000cd80c3", "x32": "b8270000400f05c3"},
    1: {},
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in FOREIGN_CALLS[ARCHITECTURE].items()])
async def test_system_calls_of_other_architectures_are_denied(box: Executor, code: str) -> None:
    own = await box.python(FOREIGN.format(code="b8270000000f05c3") + ", __import__('os').getpid()")
    assert own.status is Status.OK
    result = await box.python(FOREIGN.format(code=code))
    if result.status is Status.OK:
        assert result.value in (f"-{errno.ENOSYS}", f"-{errno.EPERM}")  # a kernel without that table
    else:
        assert (result.status, result.exit_code) == (Status.SIGNAL, -signal.SIGSYS)


def test_the_profile_denies_every_call_that_it_does_not_name() -> None:
    profile = json.loads(default_seccomp())
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", errno.EPERM)
    assert set(DENIED) >= STRICTER_THAN_DOCKER
    conditional = {name for rule in RULES if rule.get("args") for name in rule["names"]}
    assert conditional == {"socket", "socketpair", "clone", "personality"}
    always = {
        name for rule in RULES if not rule.get("args") and rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]
    }
    assert not always & conditional
    assert [rule["names"] for rule in RULES if rule["action"] != "SCMP_ACT_ALLOW"] == [["clone3"]]


async def test_without_the_filter_the_engine_would_allow_more(image: str) -> None:
    """So the filter denies them: without it, the same calls reach the kernel, which answers differently."""
    async with DockerExecutor(limits=LIMITS, seccomp="unconfined") as box:
        for name in ("shmget", "semget", "msgget", "mq_open", "keyctl", "io_setup", "vmsplice", "kcmp"):
            assert await refusal(box, DENIED[name][ARCHITECTURE]) != "EPERM", name


# --- what works -------------------------------------------------------------------------------------------------


async def test_threads(box: Executor) -> None:
    code = """
import concurrent.futures, queue, threading
done = queue.Queue()
threads = [threading.Thread(target=done.put, args=(n,)) for n in range(20)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
with concurrent.futures.ThreadPoolExecutor(4) as pool: squares = list(pool.map(lambda n: n * n, range(5)))
sorted(done.get() for _ in range(20)) == list(range(20)), squares"""
    assert (await box.python(code, timeout=30)).value == "(True, [0, 1, 4, 9, 16])"


async def test_subprocesses(box: Executor) -> None:
    code = """
import os, pty, subprocess, sys
said = subprocess.run([sys.executable, "-c", "print(input()[::-1])"], input="abc", capture_output=True, text=True)
piped = subprocess.run("echo b; echo a | sort | cat", shell=True, capture_output=True, text=True).stdout
spawned = os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], os.environ), 0)[1]
popen = os.popen("echo x").read()
said.stdout, piped, os.waitstatus_to_exitcode(spawned), popen"""
    assert (await box.python(code, timeout=30)).value == "('cba\\n', 'b\\na\\n', 5, 'x\\n')"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_multiprocessing(box: Executor, method: str) -> None:
    code = f"""
import math, multiprocessing, operator
from multiprocessing import shared_memory
context = multiprocessing.get_context({method!r})
with context.Pool(2) as pool: pooled = pool.map(math.factorial, range(5))
queue, lock, value = context.Queue(), context.Lock(), context.Value("i", 1)
process = context.Process(target=queue.put, args=("through a queue",))
process.start(); said = queue.get(timeout=20); process.join()
ours, theirs = context.Pipe()
process = context.Process(target=theirs.send, args=([1, 2],))
process.start(); piped = ours.recv(); process.join()
block = shared_memory.SharedMemory(create=True, size=100)
block.buf[0] = 42
other = shared_memory.SharedMemory(block.name); seen = other.buf[0]; other.close(); block.close(); block.unlink()
with lock: value.value += 1
pooled, said, piped, seen, value.value, process.exitcode"""
    result = await box.python(code, timeout=60)
    assert result.value == "([1, 1, 2, 6, 24], 'through a queue', [1, 2], 42, 2, 0)", result.stderr


async def test_asyncio_and_the_standard_library(box: Executor) -> None:
    code = """
import asyncio, mmap, os, select, socket, sqlite3, ssl, tempfile, time, zoneinfo, resource
async def main():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n"); said = await reader.read(); writer.close(); server.close()
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=-1)
    return said, (await process.communicate())[0], await asyncio.to_thread(time.sleep, 0)
served = asyncio.run(main())
with tempfile.TemporaryFile() as file: file.write(b"x" * 5000); file.flush(); mapped = len(mmap.mmap(file.fileno(), 0))
left, right = socket.socketpair(); left.send(b"x")
rows = sqlite3.connect("db.sqlite").execute("select 6 * 7").fetchall()
served, mapped, select.select([right], [], [], 5)[0] == [right], rows, os.sched_getaffinity(0) != set()"""
    result = await box.python(code, timeout=60)
    assert result.value == "((b'HELLO\\n', b'child\\n', None), 5000, True, [(42,)], True)", result.stderr


async def test_bash_and_ordinary_programs(box: Executor) -> None:
    command = """
set -u
mkdir -p a/b && cd a && for i in 3 1 2; do echo $i; done | sort -r | tee list | head -2 | tr '\\n' ' '
sleep 0.01 & wait $!; echo $?
cat <(echo substituted) <<< here; coproc cat; echo "to coproc" >&${COPROC[1]}; read -r line <&${COPROC[0]}; echo "$line"
trap 'echo trapped' USR1; kill -USR1 $$
ln -s list link; cp -r . /tmp/copy; mv /tmp/copy /tmp/moved; find /tmp/moved -type l; rm -r /tmp/moved
(ulimit -n 64; ulimit -n); umask; printf '%s\\n' $((2 ** 10)); tar -cf - . | tar -tf - | wc -l; grep -c . list
timeout 0.05 sleep 5; echo $?"""
    result = await box.bash(command, timeout=30)
    assert result.stdout.splitlines() == [
        "3 2 0", "substituted", "to coproc", "trapped", "/tmp/moved/link", "64", "0022", "1024", "4", "3", "124",
    ]  # fmt: skip
