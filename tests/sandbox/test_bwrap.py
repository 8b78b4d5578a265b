"""BwrapExecutor: the contract, its isolation, its limits and its end. `test_bwrap_without_root.py` runs this, too."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gymnast.sandbox import (
    BwrapExecutor,
    EngineError,
    ExecutorPool,
    ImageError,
    Limits,
    SandboxLostError,
    SandboxTimeoutError,
    Status,
)
from gymnast.sandbox.guest.memory import _of_process
from gymnast.sandbox.local.bubblewrap import Installation
from gymnast.sandbox.local.control_groups import make_control_group, remove_ownerless
from gymnast.sandbox.testing.conformance import CHECKS, ISOLATION, Check

from .boxes import GRACE, LIMITS, cancel_a_start, daemon_of, eventually

pytestmark = pytest.mark.usefixtures("bubblewrap")
PACKAGES = str(Path(pytest.__file__).parents[1])


def descendants(root: int) -> set[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parents = dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid for pid in found - {root} if os.path.exists(f"/proc/{pid}")}


@pytest.fixture(scope="module")
async def one_box() -> AsyncIterator[BwrapExecutor]:
    async with BwrapExecutor(limits=LIMITS) as box:
        yield box


@pytest.fixture
async def box(one_box: BwrapExecutor) -> BwrapExecutor:
    await one_box.reset()
    return one_box


@pytest.fixture
async def no_box_left() -> AsyncIterator[None]:
    before = descendants(os.getpid())
    yield
    assert await eventually(lambda: descendants(os.getpid()) <= before, 3)


@pytest.fixture(scope="module")
async def box_of_the_contract() -> AsyncIterator[BwrapExecutor]:
    async with BwrapExecutor(limits=Limits(grace=GRACE)) as box:
        yield box


# For root the supervisor works as in a container, where `test_conformance.py` runs every check.
@pytest.mark.parametrize("check", [check for check in CHECKS if os.geteuid() or ISOLATION in check.needs], ids=str)
async def test_the_contract(check: Check, box_of_the_contract: BwrapExecutor) -> None:
    await check(box_of_the_contract)


# --- isolation --------------------------------------------------------------------------------------------------


async def test_nothing_of_the_host_is_seen_but_system_folders(box: BwrapExecutor, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    look = f"""
import os
folders = []
for path, inner, files in os.walk("/"):
    if path == "/": inner[:] = set(inner) - {{"usr", "lib", "lib64", "bin", "sbin", "proc", "dev", "sys"}}
    if path.startswith({sys.base_prefix!r}): inner.clear()
    elif files: folders.append(path)
pids = [name for name in os.listdir("/proc") if name.isdigit()]
folders, len(pids), os.path.exists({str(tmp_path)!r}), os.path.exists("/run"), os.uname().nodename"""
    expected = (["/etc", "/etc/alternatives"], 2, False, False, "sandbox")
    assert (await box.python(look)).value == str(expected)


GUARD = """
import ctypes, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
def kill_by_a_wide_number():  # the kernel reads the lower half as the id 1
    if libc.syscall(ctypes.c_long({kill}), ctypes.c_long((1 << 32) + 1), ctypes.c_long(9)):
        raise OSError(ctypes.get_errno(), "kill")
{attack}"""
KILL = {"x86_64": 62, "aarch64": 129}[os.uname().machine]


@pytest.mark.parametrize(
    "attack",
    [
        "os.kill(1, signal.SIGKILL)", "kill_by_a_wide_number()", "signal.pidfd_send_signal(os.pidfd_open(1), 9)",
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))", "os.sched_setaffinity(1, {0})",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))", "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "open('/proc/1/mem', 'rb')", "os.listdir('/proc/1/fd')", "open('/proc/1/oom_score_adj', 'w')",
        "open('/proc/1/environ')", "open('/proc/sys/kernel/core_pattern', 'w')", "open('/dev/shm/../new', 'w')",
        "os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else open('/new', 'w')",
    ],
)  # fmt: skip
async def test_the_supervisor_is_out_of_reach(box: BwrapExecutor, attack: str) -> None:
    result = await box.python(GUARD.format(attack=attack, kill=KILL))
    assert "PermissionError" in result.stderr or "Read-only file system" in result.stderr, result
    assert (await box.python("6 * 7")).value == "42"


async def test_code_that_signals_everything_ends_its_own_sessions_only(box: BwrapExecutor) -> None:
    await box.python("kept = 1; import os\ntry: os.setpriority(os.PRIO_USER, 0, 19)\nexcept PermissionError: pass")
    gone = "until set -- /proc/[0-9]*; [ $# = 2 ]; do sleep 0.01; done"  # a killed process ends a little later
    assert (await box.bash(f"kill -9 -1; {gone}")).ok
    nice = await box.python("open('/proc/1/stat').read().rpartition(')')[2].split()[16], 'kept' in globals()")
    assert (nice.value, nice.state_lost, box.retire_reason) == ("('0', False)", True, None)


async def test_packages_are_those_of_the_interpreter() -> None:
    look = f"import os, sys; sys.prefix, os.path.exists({sys.prefix!r})"
    async with BwrapExecutor() as box:
        assert (await box.python(look)).value == str((sys.base_prefix, sys.prefix == sys.base_prefix))
    async with BwrapExecutor(python=sys.executable) as box:
        assert (await box.python(look)).value == str((sys.prefix, True))
        assert (await box.bash("python3 -c 'import sys; print(sys.prefix)'")).stdout == f"{sys.prefix}\n"


def test_an_interpreter_that_would_show_a_home_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for folder in ("user/bin", "user/lib/python3.12", "prefix/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for prefix in ("user", "prefix"):
        python = tmp_path / prefix / "bin/python3"
        python.write_bytes(b"#!/bin/sh\n")
        python.chmod(0o755)
        with pytest.raises(ImageError, match=f"not in a folder of its own, and the box would show all of .*{prefix}"):
            Installation.of(python)
    with pytest.raises(ImageError, match="python='/nowhere' is no program of this machine"):
        Installation.of("/nowhere")


# --- limits -----------------------------------------------------------------------------------------------------


async def test_limits_that_cannot_be_held_are_refused_if_they_were_set(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineError, match=r"cannot hold Limits\.cpus and Limits\.max_inodes on this machine"):
        await BwrapExecutor(limits=Limits(cpus=2.0, max_inodes=100)).start()
    with caplog.at_level(logging.WARNING, "gymnast"):
        async with BwrapExecutor(limits=Limits(cpus=2.0), best_effort=True) as box:
            assert (await box.bash("ulimit -n; ulimit -c; ulimit -f")).stdout.split() == ["1024", "0", str(128 << 10)]
    assert len([record for record in caplog.records if "do not hold" in record.getMessage()]) <= 1


BOMBS = {
    "many small processes": """
for _ in range(20):
    if os.fork() == 0: x = b'x' * (30 << 20); time.sleep(20); os._exit(0)""",
    "memory that could be shared": """
import mmap
for _ in range(12):
    kept.append(mmap.mmap(-1, 64 << 20)); kept[-1].write(b'x' * (64 << 20))""",
    "a process whose first thread has ended": """
import ctypes, threading
if os.fork() == 0:
    threading.Thread(target=lambda: (time.sleep(0.2), globals().update(x=b'x' * (600 << 20)), time.sleep(20))).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)""",
    "a process that hides": "import ctypes\nctypes.CDLL(None).prctl(4, 0)\nx = b'x' * (600 << 20)",
    "files beside a process": "open('/workspace/f', 'wb').write(b'x' * (60 << 20))\nx = b'x' * (250 << 20)",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_memory_of_the_whole_box_is_held(box: BwrapExecutor, bomb: str) -> None:
    """A control group ends one process of the box, the supervisor all of them."""
    count = """
time.sleep(2)
def memory(path):
    try: return sum(int(line.split()[1]) for line in open(path) if line.startswith(("RssAnon", "RssShmem"))) >> 10
    except OSError: return 0
sum(max(map(memory, glob.glob(f"/proc/{pid}/task/*/status")), default=0) for pid in os.listdir("/proc"))"""
    result = await box.python(f"import glob, os, sys, time\nkept = []\n{bomb}{count}", timeout=120)
    assert result.status is Status.OOM or int(result.value or 10_000) < 400, result  # of 600 or more
    await box.reset()
    assert ((await box.python("6 * 7")).value, box.retire_reason) == ("42", None)


async def test_memory_that_processes_share_counts_once(box: BwrapExecutor) -> None:
    code = """
import os, time
kept = b"x" * (120 << 20)
children = []
for _ in range(6):
    if not (pid := os.fork()): time.sleep(1.5); os._exit(0)
    children.append(pid)
[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]"""
    assert (await box.python(code, timeout=30)).value == str([0] * 6)


def test_a_process_that_is_just_ending_uses_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _: [])  # the kernel shows its threads so for a moment
    assert _of_process(2**30, exact=False) == 0


async def test_memory_that_is_used_up_between_two_calls(box: BwrapExecutor) -> None:
    assert box._process is not None
    bubblewrap = box._process.popen.pid

    def is_hungry() -> bool:
        return any(b"600 <<" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(bubblewrap))

    await box.bash("python3 -c 'import time; time.sleep(1); x = b\"x\" * (600 << 20); time.sleep(60)' &")
    assert await eventually(is_hungry, 5)
    assert await eventually(lambda: not is_hungry(), 10)
    await box.reset()
    assert (await box.python("6 * 7")).value == "42"


async def test_processes_of_the_whole_box_are_held(box: BwrapExecutor) -> None:
    bomb = """
import os, time
count = 0
try:
    while count < 500:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        count += 1
except BlockingIOError: pass
count"""
    for _ in range(2):
        result = await box.python(bomb)
        assert result.value is not None, result
        assert 30 < int(result.value) < LIMITS.pids
        await box.write_file("still", "there")
        assert (await box.bash("read -r line < still; echo $line")).stdout == "there\n"
        await box.reset()
        assert box.retire_reason is None


async def test_files_in_memory_have_a_size(box: BwrapExecutor) -> None:
    result = await box.python(
        "import shutil; [shutil.disk_usage(p).total >> 20 for p in ('/workspace', '/tmp', '/dev/shm')]"
    )
    assert result.value == "[64, 32, 8]"
    assert "No space left" in (await box.bash("head -c 40m /dev/zero > /tmp/a; head -c 40m /dev/zero > /tmp/b")).stderr


# --- life and death ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_box_left")
async def test_nothing_is_left_after_a_close_a_failed_start_and_a_cancelled_one() -> None:
    async with BwrapExecutor(limits=LIMITS) as box:
        daemon = await daemon_of(box)
        assert daemon > 2
    with pytest.raises(SandboxTimeoutError):
        await BwrapExecutor(start_timeout=0.01).start()
    with pytest.raises(ImageError, match="this machine lacks the module no_such, named in preload"):
        await BwrapExecutor(preload=["no_such"]).start()
    await cancel_a_start(BwrapExecutor)


@pytest.mark.usefixtures("no_box_left")
async def test_a_supervisor_that_is_killed_or_stopped_is_replaced() -> None:
    async with BwrapExecutor(limits=LIMITS) as box:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            assert box._process is not None
            [supervisor] = [pid for pid in descendants(box._process.popen.pid) if is_first(pid)]
            os.kill(supervisor, number)
            with pytest.raises(SandboxLostError):
                await box.ping(timeout=0.5)
            await box.reset()
            assert (await box.python("6 * 7")).value == "42"


def is_first(pid: int) -> bool:
    """Whether a process is the first of its namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    return status.partition("NSpid:")[2].splitlines()[0].split()[1:] == ["1"]


OWNER = """
import asyncio, os, sys
from gymnast.sandbox import BwrapExecutor
async def main():
    async with BwrapExecutor() as box:
        await box.bash("setsid sleep 600 &")
        folders = [str(path) for path in box._process.group.folders.values()]
        print(box._process.popen.pid, *folders, flush=True)
        await box.python("import signal; signal.signal(2, signal.SIG_IGN)\\nwhile True: pass", timeout=600)
asyncio.run(main())
"""


@pytest.mark.parametrize("with_the_shell_around_the_box", [False, True])
async def test_the_death_of_an_owner_ends_the_box(with_the_shell_around_the_box: bool) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import site; site.addsitedir({PACKAGES!r})\n{OWNER}", stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    pid, *groups = (await asyncio.wait_for(owner.stdout.readline(), 30)).decode().split()
    family = descendants(int(pid)) | {int(pid)}
    assert len(family) >= 3
    owner.kill()
    if with_the_shell_around_the_box:  # as systemd kills what it has started, but not what is in the box's group
        os.killpg(int(pid), signal.SIGKILL)
    await owner.wait()
    assert await eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in family), 3)
    if with_the_shell_around_the_box:
        for age in (0, 3600):  # the box of a young group may be about to start, in another container
            assert all(map(os.path.exists, groups))
            for group in groups:
                os.utime(group, times=(time.time() - age, time.time() - age))
            remove_ownerless.cache_clear()
            make_control_group(LIMITS).remove()  # as for the first box of every process
    assert await eventually(lambda: not any(map(os.path.exists, groups)), 3)


@pytest.mark.usefixtures("no_box_left")
async def test_a_pool_reuses_boxes() -> None:
    async with ExecutorPool(BwrapExecutor(limits=LIMITS), max_boxes=2) as pool:
        for number in range(6):
            async with pool.lease() as box:
                assert (await box.python(f"import os; os.listdir('.'), {number}")).value == f"([], {number})"
                await box.write_file("left", "x")
        assert (pool.statistics.leases, pool.statistics.created <= 2, pool.statistics.retired) == (6, True, {})
