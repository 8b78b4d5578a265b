"""Tests that `test_version_2.py` runs inside the machine, beside the usual ones of bubblewrap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gymnast.sandbox import BoxImage, BwrapBox, BwrapExecutor, EngineError, Status

from ..sandbox.boxes import LIMITS

USER = os.environ["MACHINE_USER"]
ROOT = Path("/sys/fs/cgroup")
OWN = ROOT / Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
IS_HELD = USER != "login"


def group_of(pid: int) -> Path:
    return ROOT / Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::/")


def family(pid: int) -> set[int]:
    """The descendants of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children}.union(*(family(int(child)) for child in children))


async def test_a_group_holds_every_process_of_a_box() -> None:
    async with BwrapExecutor(limits=LIMITS) as box:
        await box.bash("sleep 60 &")
        assert box._process is not None
        pids = family(box._process.popen.pid)
        assert len(pids) >= 3
        [group] = {group_of(pid) for pid in pids}
        if IS_HELD:
            assert group.parent == OWN.parent
            values = [(group / name).read_text().strip() for name in ("memory.max", "memory.swap.max", "pids.max")]
            assert values == [str(256 << 20), "0", "64"]
        else:
            assert group == OWN
    assert group.exists() == (group == OWN)


async def test_the_code_sees_its_memory_and_cannot_change_it() -> None:
    code = """
import os
seen = []
for path in ("memory.max", "pids.max", "cgroup.procs"):
    try: open(f"/sys/fs/cgroup/{path}", "w").write("1")
    except OSError as error: seen.append(error.strerror)
try: os.mkdir("/sys/fs/cgroup/more")
except OSError as error: seen.append(error.strerror)
seen, open("/sys/fs/cgroup/memory.max").read(), open("/proc/self/cgroup").read()"""
    async with BwrapExecutor(limits=LIMITS) as box:
        seen = await box.python(code)
    if IS_HELD:
        assert seen.value == str((["Read-only file system"] * 4, f"{256 << 20}\n", "0::/\n"))
    else:
        assert "No such file or directory: '/sys/fs/cgroup/memory.max'" in seen.stderr


async def test_the_kernel_kills_a_process_that_takes_too_much() -> None:
    async with BwrapExecutor(limits=LIMITS) as box:
        for _ in range(2):
            assert (await box.python("x = b'x' * (600 << 20)", timeout=60)).status is Status.OOM
            assert (await box.python("6 * 7")).value == "42"
            result = await box.bash("python3 -c \"x = b'x' * (600 << 20)\"", timeout=60)
            assert result.status is Status.OOM, result
            await box.reset()


def test_the_doctor_says_whether_memory_is_held() -> None:
    command = [Path(sys.executable).with_name("gymnast"), "sandbox", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert ("memory is measured" in " ".join(done.stdout.split())) != IS_HELD


# --- groups that are delegated in part -----------------------------------------------------------------------------


async def held() -> tuple[bool, bool]:
    """Whether a group holds the memory of a new box, and its processes."""
    async with BwrapExecutor(limits=LIMITS) as box:
        assert box._process is not None
        groups = {group_of(pid) for pid in family(box._process.popen.pid)}
        held = box._process.group.folders
        assert set(held.values()) in ({*groups}, set())
        assert (await box.python("x = b'x' * (600 << 20)", timeout=60)).status is Status.OOM
        return "memory" in held, "pids" in held


async def test_a_delegated_group_that_shares_processes_only() -> None:
    (OWN.parent / "cgroup.subtree_control").write_text("-memory")
    try:
        assert await held() == (True, True)
        (OWN.parents[1] / "cgroup.subtree_control").write_text("-memory")
        assert await held() == (False, True)
    finally:
        for path in (OWN.parents[1], OWN.parent):
            (path / "cgroup.subtree_control").write_text("+memory")


async def test_a_delegated_group_whose_processes_this_user_may_not_move() -> None:
    (OWN.parent / "cgroup.procs").chmod(0o444)
    try:
        assert await held() == (True, True)
        (OWN.parents[1] / "cgroup.procs").chmod(0o444)
        assert await held() == (False, False)
    finally:
        for path in (OWN.parents[1], OWN.parent):
            (path / "cgroup.procs").chmod(0o644)


NESTED = """
import asyncio
from tests.with_cgroups.inside import held
print(asyncio.run(held()))
"""


@pytest.mark.parametrize("has_leaf", [True, False])
def test_a_container_has_a_namespace_of_control_groups(has_leaf: bool) -> None:
    (container := OWN.parent / "container.scope").mkdir()
    leaf = "mkdir leaf; echo 0 > leaf/cgroup.procs; echo +memory +pids > cgroup.subtree_control" if has_leaf else ":"
    script = f"""
    mount -t cgroup2 cgroup2 /mnt && mount --bind /mnt /sys/fs/cgroup && cd /sys/fs/cgroup || exit
    {leaf}; cd {Path.cwd()}; exec {sys.executable} -c 'import sys; sys.path.insert(0, "{Path.cwd()}"){NESTED}'"""
    become = "" if USER == "root" else "--user --map-root-user"
    enter = f'echo 0 > {container}/cgroup.procs; exec unshare {become} --cgroup --mount sh -c "$0"'
    done = subprocess.run(["sh", "-c", enter, script], capture_output=True, text=True)
    for folder in (container / "leaf", container):
        if folder.exists():
            folder.rmdir()
    assert done.stdout.strip() == str((has_leaf, has_leaf)), done


async def test_files_in_memory_hold_a_whole_machine_or_are_refused(
    busybox: BoxImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lack attributes of users before Linux 6.6, and then a folder that was made anew would show its old files."""
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
    remedy = "let TMPDIR name a folder on a disk"
    listed, refusal = "", remedy
    try:
        async with BwrapBox(image=busybox) as box:
            anew = "cat /bin/busybox > b; chmod +x b; ./b rm -r /bin; ./b mkdir /bin; ./b ls /bin"
            listed = (await box.exec(anew, cwd="/root")).stdout
    except EngineError as error:
        refusal = str(error)
    assert (listed, remedy in refusal, os.listdir("/dev/shm")) == ("", True, [])
