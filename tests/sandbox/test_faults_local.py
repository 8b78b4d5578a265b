"""Mistakes that would make a `LocalExecutor` harm folders and processes outside its box."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gymnast.sandbox import LocalExecutor, SandboxFileError
from gymnast.sandbox.guest import processes

from .boxes import eventually, usable
from .faults import recipe


@pytest.fixture
async def box() -> AsyncIterator[LocalExecutor]:
    box = recipe("local")
    assert isinstance(box, LocalExecutor)
    async with box:
        yield box


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A folder of another program that looks like that of a box."""
    folder = tmp_path / "others"
    for name in ("workspace", "tmp"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious").write_text("x")
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- folders ----------------------------------------------------------------------------------------------------


@pytest.mark.fault(29)
@pytest.mark.parametrize("put", ["ln -s {others} {root}", "mv {others} {root}", "cp -r {others} {root}"])
@pytest.mark.parametrize("end", ["reset", "close"])
async def test_a_folder_that_replaced_the_one_of_the_box_is_left_alone(
    box: LocalExecutor, others: Path, tmp_path: Path, put: str, end: str
) -> None:
    root = box.workspace.parent
    swapped = await box.bash(f"cd /; mv {root} {tmp_path}/moved && {put.format(others=others, root=root)}")
    assert swapped.ok, swapped
    try:
        if end == "reset":
            await box.reset()
            assert box.workspace.parent != root  # the old folder was abandoned
            assert await usable(box)
        await box.close()
        there = root if put.startswith(("mv", "cp")) else others
        assert files_in(there) == ["tmp/precious", "workspace/precious"]
    finally:
        root.unlink() if root.is_symlink() else shutil.rmtree(root, ignore_errors=True)


@pytest.mark.fault(24)
@pytest.mark.parametrize("spoil", ["chmod 000 {root}", "rm -rf {root}", "chmod 000 {root}/workspace; rmdir {root}/tmp"])
async def test_a_damaged_folder_is_restored(box: LocalExecutor, spoil: str) -> None:
    root = box.workspace.parent
    await box.bash(f"cd /; {spoil.format(root=root)}")
    await box.reset()
    assert await usable(box)
    assert (await box.bash("stat -c %a $HOME $TMPDIR; ls $HOME $TMPDIR | grep -c .")).stdout == "700\n700\n2\n"
    await box.close()
    assert not root.exists()


# --- processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.fault(30)
@pytest.mark.parametrize("with_handles", [True, False])
def test_a_process_id_that_another_process_has_got_is_not_signalled(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, with_handles: bool
) -> None:
    if not with_handles:
        monkeypatch.delattr(os, "pidfd_open")  # as in Python 3.8
    with subprocess.Popen(
        [sys.executable, "-c", "import os; print(os.getppid()); input()"], stdin=subprocess.PIPE
    ) as it:
        processes.send([sleeper.pid, it.pid], signal.SIGKILL, under=it.pid)
        assert it.wait(10) == -signal.SIGKILL
    assert sleeper.poll() is None
    processes.send([sleeper.pid], signal.SIGKILL, under=os.getpid())
    assert sleeper.wait(10) == -signal.SIGKILL
    processes.send([sleeper.pid], signal.SIGKILL, under=os.getpid())  # it is gone, which is fine


def runs(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.fault(14)
async def test_a_hostile_process_name_hides_nothing(box: LocalExecutor) -> None:
    code = """
import os, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    open("/proc/self/comm", "w").write(") R 1 1\\n) S 1")
    os.setsid()
    if os.fork() == 0:
        os.write(write_end, str(os.getpid()).encode())
        time.sleep(1000)
    os._exit(0)
int(os.read(read_end, 20))"""
    pid = (await box.python(code)).value
    assert pid is not None
    assert runs(pid)
    await box.reset()
    assert not runs(pid)
    assert box.retire_reason is None


async def test_a_signal_to_many_short_lived_processes_reaches_no_other(
    box: LocalExecutor, sleeper: subprocess.Popen[bytes]
) -> None:
    """Process ids are reused quickly while this runs."""
    result = await box.bash("while :; do (:) & done 2>/dev/null", timeout=1.3)
    assert result.exit_code is None
    await asyncio.wait_for(box.reset(), 30)
    assert await eventually(lambda: sleeper.poll() is None, 1)
    assert await usable(box)


FLOOD = """
import os, signal
supervisor = os.getppid()
def children():
    with open(f"/proc/{supervisor}/task/{supervisor}/children") as file: return set(file.read().split())
def flood(pid):
    os.kill(int(pid), signal.SIGSTOP)
    try:
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "tTZX": pass
        stream = f"/proc/{pid}/fd/1"
        if os.readlink(stream) != os.readlink(f"/proc/{supervisor}/fd/1"):  # which it inherits, and replaces
            with open(stream, "wb", buffering=0) as pipe:
                for _ in range(40): pipe.write(bytes(1 << 20))
    finally: os.kill(int(pid), signal.SIGCONT)
if os.fork() == 0:
    known = children()
    while True:
        for pid in children() - known:
            try: flood(pid)
            except OSError: pass
"""


@pytest.mark.fault(27)
async def test_code_that_floods_the_report_about_a_file_does_not_cost_the_box(box: LocalExecutor) -> None:
    await box.write_file("f", "text")
    assert (await box.python(FLOOD)).ok
    while not (await box.python("")).state_lost:  # until a flood has come: then all code is killed
        with contextlib.suppress(SandboxFileError):  # the code may spoil a report
            await box.read_file("f")
    assert await box.read_file("f") == b"text"
    assert box.retire_reason is None
