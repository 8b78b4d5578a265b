"""Root in a box attacks its guest and the host: the kernel refuses, or the guest answers the next call nevertheless."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gymnast.sandbox import (
    Box,
    BwrapBox,
    Capability,
    DockerBox,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxLostError,
    Status,
)
from gymnast.sandbox.host import supervised_box

LIMITS = Limits(memory="128m", pids=64, shm="16m", tmp="16m", workspace="16m", max_file="4m", max_code="4m")
PTRACE, KCMP, BPF, KEYCTL, PIDFD_GETFD, VM_READ, SETNS = {
    "x86_64": (101, 312, 321, 250, 438, 310, 308),
    "aarch64": (117, 272, 280, 219, 438, 270, 268),
}[platform.machine()]

PROLOGUE = """
import ctypes, fcntl, os, resource, signal, socket, stat, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(one) for one in arguments]) == -1:
        raise OSError(ctypes.get_errno(), "refused")
def function(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "refused")
"""


@pytest.fixture(scope="module", params=[DockerBox, BwrapBox])
def kind(image: str, bubblewrap: None, request: pytest.FixtureRequest) -> type[DockerBox | BwrapBox]:
    return request.param


@pytest.fixture(scope="module")
async def shared(kind: type[DockerBox | BwrapBox]) -> AsyncIterator[DockerBox | BwrapBox]:
    async with kind(limits=LIMITS) as box:
        yield box


@pytest.fixture
async def fresh(kind: type[DockerBox | BwrapBox], nothing_left: None) -> AsyncIterator[DockerBox | BwrapBox]:
    async with kind(limits=LIMITS) as box:
        yield box


async def require_sound(box: Box) -> None:
    """The guest answers, and is neither slowed down, limited nor more likely to be killed than at its start."""
    await box.ping()
    guest = (await box.read_file("/proc/1/stat")).rpartition(b")")[2].split()
    own = os.getpriority(os.PRIO_PROCESS, 0)  # which the guest of a container does not inherit
    assert int(guest[16]) in (0, own)
    assert guest[38] == b"0"  # the scheduling policy
    score = b""
    for _ in range(20):  # the process that reads it may have been started with a higher one a moment ago
        if (score := (await box.read_file("/proc/1/oom_score_adj")).strip()) == b"0":
            break
    assert score == b"0"
    assert b"Max open files            1024                 1024" in await box.read_file("/proc/1/limits")


# --- what the kernel refuses --------------------------------------------------------------------------------------

REFUSED = {  # Python that must raise an OSError
    "read the guest's memory": "open('/proc/1/mem', 'rb').read(1)",
    "write to the guest's memory": "open('/proc/1/mem', 'wb')",
    "read the guest's environment": "open('/proc/1/environ', 'rb').read()",
    "see the guest's mappings": "open('/proc/1/maps').read()",
    "look through the guest's root": "os.listdir('/proc/1/root')",
    "enter the guest's directory": "os.chdir('/proc/1/cwd')",
    "open the guest's input": "open('/proc/1/fd/0', 'rb')",
    "forge an answer": "open('/proc/1/fd/1', 'wb')",
    "trace the guest": f"call({PTRACE}, 16, 1, 0, 0)",
    "seize the guest": f"call({PTRACE}, 0x4206, 1, 0, 0)",
    "copy the guest's memory": f"call({VM_READ}, 1, 0, 0, 0, 0, 0)",
    "take the guest's descriptors": f"call({PIDFD_GETFD}, os.pidfd_open(1), 0, 0)",
    "compare with the guest": f"call({KCMP}, 1, os.getpid(), 0, 0, 0)",
    "limit the guest": "resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
    "slow the guest down": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "slow everything of root down": "os.setpriority(os.PRIO_USER, 0, 19)",
    "slow the guest's group down": "os.setpriority(os.PRIO_PGRP, 1, 19)",
    "schedule the guest last": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "replace the guest's Python": "open('/.gymnast/bin/python3', 'wb')",
    "add to the guest's modules": "open('/.gymnast/lib/json.py', 'w')",
    "move the guest's folder away": "os.rename('/.gymnast', '/elsewhere')",
    "remove the guest's folder": "os.rmdir('/.gymnast')",
    "move /proc away": "os.rename('/proc', '/elsewhere')",
    "move /dev/pts away": "os.rename('/dev/pts', '/dev/elsewhere')",
    "make the guest's folder writable": "function('mount', b'', b'/.gymnast', b'', 32, None)",
    "mount over /proc": "function('mount', b'none', b'/proc', b'tmpfs', 0, None)",
    "mount the control groups": "function('mount', b'x', b'/tmp', b'cgroup', 0, b'memory')",
    "unmount": "function('umount2', b'/.gymnast', 2)",
    "become root of a new user namespace": "function('unshare', 0x10000000)",
    "make a mount namespace": "function('unshare', 0x20000)",
    "enter another namespace": f"call({SETNS}, os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)",
    "make a disk": "os.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))",
    "make the kernel's memory": "os.mknod('/tmp/kmem', 0o600 | stat.S_IFCHR, os.makedev(1, 2))",
    "open a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "open a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
    "reach the network": "socket.create_connection(('192.0.2.1', 53), 1)",
    "load a program into the kernel": f"call({BPF}, 0, 0, 0)",
    "use the kernel's keys": f"call({KEYCTL}, 0, -3, 0)",
    "set the host's core pattern": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
    "press a key of the host": "open('/proc/sysrq-trigger', 'w').write('b')",
    "raise the memory limit": "open([path for path in ('/sys/fs/cgroup/memory/memory.limit_in_bytes', "
    "'/sys/fs/cgroup/memory.max') if os.path.exists(path)][0], 'w').write('9000000000')",
    "leave the control group": "os.mkdir([path for path in ('/sys/fs/cgroup/memory/x', '/sys/fs/cgroup/x') "
    "if os.path.exists(os.path.dirname(path))][0])",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "reboot": "function('reboot', 0x1234567)",
    "name the host": "function('sethostname', b'x', 1)",
    "gain a capability": "function('prctl', 24, 21, 0, 0, 0) or function('capset', 0, 0)",
}


@pytest.mark.parametrize("attack", REFUSED.values(), ids=REFUSED)
async def test_the_kernel_refuses(shared: Box, attack: str) -> None:
    code = f"{PROLOGUE}\ntry:\n    {attack}\nexcept OSError as error:\n    print('refused', error)\n"
    result = await shared.exec(["python3", "-c", code])
    assert result.stdout.startswith("refused"), result
    await require_sound(shared)


# --- what changes nothing for the guest ---------------------------------------------------------------------------

HARMLESS = {  # shell commands, after which the box works as before
    "kill the guest": "kill -9 1; kill -STOP 1; kill -TERM 1; kill -SEGV 1; kill -CHLD 1",
    "kill everything": "kill -9 -1",
    "kill everything twice": "sh -c 'kill -9 -1' & sh -c 'kill -STOP -1'",
    "make the guest a target of the memory killer": "echo 1000 > /proc/1/oom_score_adj",
    "plant a library": "echo /tmp/evil.so > /etc/ld.so.preload; echo /tmp > /etc/ld.so.conf",
    "plant programs": "mkdir -p /usr/local/bin; for name in true id ps; do echo 'exit 9' > /usr/local/bin/$name; done",
    "print without an end": "yes & yes >&2 & sleep 0.3; kill -9 $!; kill -9 %1",
    "print a line of 50 MB": "head -c 50000000 /dev/zero | tr '\\0' x",
    "close every stream": "exec 0<&- 1>&- 2>&-; sleep 0.05",
    "write on after the end": "(while :; do echo late; echo late >&2; done) & sleep 0.05; (sleep 0.5; kill -9 $!) &",
    "fill the memory for files": "head -c 100000000 /dev/zero > /dev/shm/full; head -c 1 /dev/zero > /dev/full2",
    "chroot out": "mkdir -p /tmp/c/d; python3 -c \"import os; os.chroot('/tmp/c'); [os.chdir('..') for _ in range(9)]; "
    "os.chroot('.'); print(os.listdir('.'))\"",
    "stop the children of the guest": "for n in 1 2 3 4 5; do kill -STOP -1; done",
    "hold the terminals": 'python3 -c "import pty; [pty.openpty() for _ in range(40)]"',
}


@pytest.mark.parametrize("attack", HARMLESS.values(), ids=HARMLESS)
async def test_the_box_goes_on(shared: Box, attack: str) -> None:
    await shared.exec(attack, timeout=2)
    expected = await shared.exec(["/bin/echo", "works"], timeout=30)
    assert (expected.status, expected.stdout) == (Status.OK, "works\n")
    await require_sound(shared)
    await shared.exec(
        "rm -f /etc/ld.so.preload /dev/shm/full /dev/full2 /usr/local/bin/true /usr/local/bin/id /usr/local/bin/ps"
    )


async def in_terminal(box: Box) -> None:
    async with box.open(["/bin/echo"], tty=(80, 24)) as process:
        await process.read(timeout=5)


RUINOUS = {  # shell commands that ruin the box itself, and the next call's result may be any
    "remove everything": "rm -rf --no-preserve-root / 2>/dev/null",
    "remove the devices": "rm -rf /dev/null /dev/zero /dev/tty /dev/ptmx /dev/urandom",
    "replace the devices by pipes": "rm -f /dev/null /dev/ptmx /dev/tty; mkfifo /dev/null /dev/ptmx /dev/tty",
    "replace the list of users by a pipe": "rm /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group",
    "make the list of users huge": "head -c 300000000 /dev/zero | tr '\\0' '\\n' > /etc/passwd",
    "replace the shell": "cp /bin/cat /bin/bash.new; mv /bin/bash.new /bin/bash; ln -sf /nowhere /bin/sh",
    "signal everything for ever": "sh -c 'while :; do kill -9 -1; done' & sleep 0.2",
    "stop everything for ever": "sh -c 'while :; do kill -STOP -1; done' & sleep 0.2",
    "fork without an end": "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass' & sleep 0.5",
    "take every process": "for n in $(seq 100); do sleep 600 & done",
    "cover a folder of the system": "ln -sfn /proc/1 /tmp/to; rm -rf /root; ln -s /proc/1/root /root; mv /etc /etc2",
}


@pytest.mark.parametrize("attack", RUINOUS.values(), ids=RUINOUS)
async def test_a_ruined_box_still_answers(fresh: Box, attack: str) -> None:
    """Each call has a result or a typed error within its time, and the files can still be kept as an image."""
    await fresh.exec(attack, timeout=5)
    for user in (None, 65534) if Capability.USERS in fresh.capabilities else (None,):
        result = await fresh.exec(["/bin/echo", "hello"], user=user, timeout=5)
        assert result.status in (Status.OK, Status.ERROR, Status.SIGNAL, Status.TIMEOUT), result
    for call in (fresh.read_file("/etc/hostname"), fresh.write_file("/tmp/to/file", b"x"), in_terminal(fresh)):
        error = (await asyncio.gather(asyncio.wait_for(call, 60), return_exceptions=True))[0]
        assert (
            not isinstance(error, BaseException) or type(error) is SandboxError or isinstance(error, SandboxFileError)
        )
    await fresh.ping()
    async with fresh.snapshot() as image:
        assert image.source


async def test_code_that_takes_all_memory_has_a_result(fresh: Box) -> None:
    result = await fresh.exec(["python3", "-c", "x = [bytearray(1 << 20) for _ in range(10_000)]"])
    assert result.status is Status.OOM, result
    assert (await fresh.exec("echo on")).stdout == "on\n"


async def test_a_guest_that_is_killed_for_memory_is_the_codes_deed(fresh: Box) -> None:
    """Root makes itself less likely to be killed than the guest. It gets a result, and the box says why it is lost."""
    hog = """
import os, time
for pid in ("self", "1"): open(f"/proc/{pid}/oom_score_adj", "w").write("0" if pid == "self" else "1000")
while True:
    if os.fork() == 0:
        kept = bytearray(os.urandom(1 << 20)) * 6
        open("/proc/1/oom_score_adj", "w").write("1000")
        time.sleep(600)
"""
    result = await fresh.exec(["python3", "-c", hog], timeout=20)
    assert result.status in (Status.OOM, Status.SIGNAL, Status.TIMEOUT), result
    with contextlib.suppress(SandboxLostError):
        for _ in range(20):
            await fresh.exec(["/bin/true"], timeout=10)
    assert fresh.retire_reason is None or fresh.retire_reason.category == "oom"


async def test_hostile_folders_come_out_without_harm(fresh: Box, tmp_path: Path) -> None:
    """Links, pipes, devices and set-id bits stay inside; an endless tree or file is an error in the end."""
    make = "ln -s / root; ln -s ../../../../etc/passwd up; ln -s . loop; mkfifo pipe; echo ok > 'a\nb'; touch -- -rf"
    await fresh.exec(f"mkdir -p /h/sub; cd /h; {make}; cp /bin/true setuid; chmod 6777 setuid; printf x > $'\\377'")
    refused = await fresh.copy_out("/h", tmp_path / "out")
    assert sorted(line.rpartition(":")[0] for line in refused) == ["loop", "pipe", "root", "up"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["-rf", "a\nb", "setuid", "sub", "\udcff"]
    assert not (tmp_path / "out/setuid").stat().st_mode & 0o7000
    with pytest.raises(SandboxFileError):
        await fresh.copy_out("/dev/zero", tmp_path / "zero", limit=1000)
    await fresh.exec("head -c 3000000 /dev/zero > /big")
    with pytest.raises(SandboxFileError, match="limit"):
        await fresh.copy_out("/big", tmp_path / "big", limit=1_000_000)
    with pytest.raises(SandboxFileError, match=r"before its end|Permission denied"):
        await asyncio.gather(
            fresh.copy_out("/proc/1/task", tmp_path / "killed"), fresh.exec("for n in 1 2 3 4 5 6; do kill -9 -1; done")
        )


async def test_a_process_that_drops_its_mark_ends_with_the_box(fresh: Box, nothing_left: None) -> None:
    escaped = 'python3 -c "import resource, os, time; resource.setrlimit(10, (7, 7)); os.setsid(); time.sleep(600)" &'
    result = await fresh.exec(f"{escaped} echo $!; sleep 600", timeout=1)
    assert result.status is Status.TIMEOUT
    assert (await fresh.exec(f"kill -0 {result.stdout.split()[0]}")).ok  # said in the docstring of `Launcher`


async def test_a_call_beside_a_flood_returns_in_time(fresh: Box) -> None:
    """Endless output of one call, and a program that does not read its input, hold up nobody."""
    flood = asyncio.ensure_future(fresh.exec("yes", timeout=3))
    async with fresh.open(["sleep", "600"]) as deaf:
        stuck = asyncio.ensure_future(deaf.write(bytes(5_000_000)))
        began, slowest = time.monotonic(), 0.0
        while not flood.done():
            assert (await fresh.exec("echo x")).stdout == "x\n"
            slowest, began = max(slowest, time.monotonic() - began), time.monotonic()
        assert slowest < 2
        assert (await flood).dropped_bytes > 0
        stuck.cancel()


async def test_a_program_that_drops_its_mark_ends_at_its_timeout(fresh: Box) -> None:
    result = await fresh.exec("ulimit -x 5; while :; do :; done", timeout=1)
    assert result.status is Status.TIMEOUT
    assert (await fresh.exec("echo on")).stdout == "on\n"


async def test_copies_whose_process_is_stopped_end(fresh: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_box, "_STALL_SECONDS", 2.0)
    for folder in (tmp_path / "in", tmp_path / "out"):
        folder.mkdir()
    with (tmp_path / "in/file").open("wb") as file:
        file.truncate(300_000_000)  # the copies take long enough to be stopped, also on a busy machine
    await fresh.exec("mkdir /d; dd if=/dev/zero of=/d/file bs=1 count=1 seek=299999999")
    stop = "exec 2>/dev/null; kill -STOP -1; echo stopping; while sleep 0.05; do kill -STOP -1; done"
    async with fresh.open(["sh", "-c", stop]) as stopper:
        assert await stopper.read() == b"stopping\n"
        for copy in (lambda: fresh.copy_out("/d", tmp_path / "out"), lambda: fresh.copy_in(tmp_path / "in", "/in")):
            with pytest.raises(SandboxFileError, match=r"ended before its end, or stopped|its process was stopped"):
                await asyncio.wait_for(copy(), 60)
    await fresh.ping()


STOPPER = """
import os
while True:
    last = int(open("/proc/loadavg").read().split()[-1])
    for number in [last + 1, last + 2, last + 3] * 20:
        try: os.kill(number, 19)
        except OSError: pass
"""


async def test_programs_that_are_stopped_before_they_begin_do_not_hold_the_guest(fresh: Box) -> None:
    await fresh.write_file("/stopper.py", STOPPER)
    await fresh.exec("for n in 1 2; do python3 /stopper.py >/dev/null 2>&1 & done; sleep 0.3")
    for _ in range(15):
        assert (await fresh.exec(["true"], timeout=0.5)).status in (Status.OK, Status.TIMEOUT)
