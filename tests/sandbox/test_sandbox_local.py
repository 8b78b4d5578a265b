"""LocalExecutor beyond the contract, which `test_conformance.py` checks."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gymnast.sandbox import (
    ImageError,
    Limits,
    LocalExecutor,
    SandboxClosedError,
    SandboxLostError,
    SandboxTimeoutError,
    Status,
)

from .boxes import daemon_of, eventually, processes_of

FORK_AND_WAIT = "import os, time\nfor _ in range({count}):\n    if os.fork() == 0: time.sleep(600)\n"


@pytest.fixture
async def box() -> AsyncIterator[LocalExecutor]:
    async with LocalExecutor() as box:
        yield box


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process outside every box."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Boxes of this test have their folders here. Afterwards no process and no folder is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- where the code is ------------------------------------------------------------------------------------------


async def test_the_workspace_is_a_private_folder_of_its_own(box: LocalExecutor) -> None:
    await box.bash("echo hello > greeting; echo $HOME $PWD $TMPDIR")
    assert (box.workspace / "greeting").read_text() == "hello\n"
    assert (box.workspace.parent.stat().st_mode & 0o777, box.workspace.stat().st_mode & 0o777) == (0o700, 0o700)
    where = await box.python("import os, tempfile; os.getcwd(), os.environ['HOME'], tempfile.gettempdir()")
    assert where.value == str((str(box.workspace), str(box.workspace), str(box.workspace.parent / "tmp")))


async def test_there_is_no_workspace_before_and_after() -> None:
    box = LocalExecutor()
    with pytest.raises(SandboxClosedError):
        _ = box.workspace
    async with box:
        root = box.workspace.parent
    assert not root.exists()
    with pytest.raises(SandboxClosedError):
        _ = box.workspace


async def test_the_packages_of_the_host_are_there(box: LocalExecutor) -> None:
    assert (await box.python("import pytest, sys; sys.executable")).value == repr(sys.executable)
    assert (await box.bash("python -c 'import pytest'")).ok
    own = await box.python("sys.path[-1]")  # where `pip install --user` installs
    assert str(own.value).startswith(f"'{box.workspace}/.local/")


async def test_the_hosts_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    async with LocalExecutor(env={"GIVEN": "yes"}) as box:
        result = await box.bash("env; tr '\\0' '\\n' < /proc/$PPID/environ")
    assert "hunter2" not in result.stdout
    assert "GIVEN=yes\n" in result.stdout


async def test_a_reset_empties_the_folders_and_nothing_else(box: LocalExecutor, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    workspace = box.workspace
    await box.bash(f"mkdir -p a/b; touch a/b/c $TMPDIR/x; chmod 000 a; ln -s {tmp_path} link; chmod 000 .")
    await box.reset()
    assert (await box.bash("ls -A . $TMPDIR | grep -v : || true")).stdout.strip() == ""
    assert (box.workspace, workspace.stat().st_mode & 0o777, box.retire_reason) == (workspace, 0o700, None)
    assert (tmp_path / "precious").read_text() == "data"


@pytest.mark.parametrize("trick", ["ln -s {target} $HOME", "true", "touch $HOME"])
async def test_a_workspace_that_was_replaced_is_made_again_and_no_link_followed(
    box: LocalExecutor, tmp_path: Path, trick: str
) -> None:
    (tmp_path / "precious").write_text("data")
    await box.bash("cd /; rmdir $HOME; " + trick.format(target=tmp_path))
    await box.reset()
    assert (await box.bash("touch here; ls")).stdout == "here\n"
    assert (tmp_path / "precious").read_text() == "data"


# --- limits -----------------------------------------------------------------------------------------------------


async def test_limits_that_cannot_be_held_are_named_once() -> None:
    with pytest.warns(UserWarning, match=r"ignores these limits: cpus, pids; Docker"):
        box = LocalExecutor(limits=Limits(pids=64, cpus=2.0, memory="640m"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert box.clone().key == box.key
        LocalExecutor(limits=Limits(memory="640m", open_files=100, max_output="2k", grace=1.0))
        LocalExecutor(limits=Limits(memory="256m"))  # `shm` follows the memory
    with pytest.warns(UserWarning, match="ignores these limits: shm, max_inodes; Docker"):
        LocalExecutor(limits=Limits(shm="1m", max_inodes=100))


async def test_limits_of_one_process() -> None:
    async with LocalExecutor(limits=Limits(memory="640m", open_files=100)) as box:
        held = await box.bash("ulimit -n; ulimit -d; ulimit -c; ulimit -f")
        assert held.stdout.split() == ["100", str(640 << 10), "0", str(160 << 10)]
        bomb = await box.python("kept = 1; x = bytearray(1 << 30)")
        assert (bomb.status, bomb.state_lost) == (Status.ERROR, False)
        assert bomb.stderr.endswith("MemoryError\n")
        large = await box.python("with open('large', 'wb') as file: file.truncate(1 << 30)")
        assert large.stderr.endswith("OSError: [Errno 27] File too large\n")
        assert (await box.python("kept")).value == "1"


async def test_a_broken_pipe_is_an_error_of_the_code_and_not_its_death(box: LocalExecutor) -> None:
    result = await box.python("import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')")
    assert result.stderr.endswith("BrokenPipeError: [Errno 32] Broken pipe\n")
    assert (await box.bash("yes | head -1; echo ${PIPESTATUS[0]}")).stdout == "y\n141\n"


# --- processes --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
async def test_a_daemon_dies_at_the_close() -> None:
    async with LocalExecutor() as box:
        pid = await daemon_of(box)
        assert alive(pid)
    assert not alive(pid)


async def test_a_process_outside_the_box_is_never_killed(bystander: subprocess.Popen[bytes]) -> None:
    async with LocalExecutor() as box, LocalExecutor() as other:
        await other.python("kept = 1")
        await box.python(FORK_AND_WAIT.format(count=5))
        await box.python("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", timeout=0.2)
        await box.reset()
        assert bystander.poll() is None
        await box.close()
        assert bystander.poll() is None
        assert (await other.python("kept")).value == "1"


async def test_many_processes_are_cleared(nothing_left: Path) -> None:
    bomb = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(6): os.fork()
end = time.monotonic() + 20  # whatever happens: each has at most one child at a time, and they end by themselves
while time.monotonic() < end:
    if os.fork() == 0: os._exit(0)
    os.wait()"""
    async with LocalExecutor() as box:
        result = await box.python(bomb, timeout=1)
        assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
        assert (await box.python("6 * 7")).value == "42"
        running = asyncio.ensure_future(box.python(bomb, timeout=60))
        assert await eventually(lambda: len(processes_of(nothing_left)) > 60, 15)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await box.reset()
        await box.python("1")
        assert len(processes_of(nothing_left)) == 2  # the supervisor and the session


async def test_process_ids_of_dead_orphans_are_not_taken_for_the_session(box: LocalExecutor) -> None:
    await box.python("kept = 1")
    await box.bash("for i in $(seq 200); do (true &) ; done")
    result = await box.python("kept")
    assert (result.value, result.state_lost) == ("1", False)


@pytest.mark.usefixtures("nothing_left")
async def test_a_supervisor_that_is_killed_leaves_nothing() -> None:
    async with LocalExecutor() as box:
        pid = await daemon_of(box)
        with pytest.raises(SandboxLostError):
            await box.python("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
        await box.reset()
        assert not alive(pid)
        assert (await box.python("6 * 7")).value == "42"


# --- life and death ---------------------------------------------------------------------------------------------

OWNER = """
import asyncio, os, sys, time
from gymnast.sandbox import LocalExecutor
async def main():
    async with LocalExecutor() as box:
        await box.python("import os\\nif os.fork() == 0:\\n    os.setsid()\\n    import time; time.sleep(600)")
        child = os.fork()
        if child == 0:
            os.close(1)  # so the reader of the owner's output need not wait for this process
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        await box.python("while True: pass", timeout=600)
asyncio.run(main())
"""


async def test_the_death_of_an_owner_ends_the_box_though_its_child_lives(nothing_left: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(nothing_left)}
    )
    child = 0
    try:
        assert owner.stdout is not None
        said = await asyncio.wait_for(owner.stdout.readline(), 30)
        child = int(said)
        assert len(processes_of(nothing_left)) >= 2
        owner.kill()
        await owner.wait()
        assert await eventually(lambda: not processes_of(nothing_left) and not list(nothing_left.iterdir()), 2)
        assert alive(child)
    finally:
        for pid in filter(None, [child, owner.pid if owner.returncode is None else 0]):
            os.kill(pid, signal.SIGKILL)
        await owner.wait()


@pytest.mark.usefixtures("nothing_left")
async def test_a_start_that_takes_too_long(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("modules")
    slow = folder / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    with pytest.raises(SandboxTimeoutError, match=r"start_timeout=0\.1"):
        await LocalExecutor(python=slow, start_timeout=0.1).start()


@pytest.mark.usefixtures("nothing_left")
async def test_an_interpreter_that_is_missing() -> None:
    with pytest.raises(ImageError, match=r"python='/nowhere/python' could not be started: .*No such file"):
        await LocalExecutor(python="/nowhere/python").start()


async def test_a_system_that_is_not_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(ImageError, match=r"needs Linux with /proc.*this is Darwin: use DockerExecutor"):
        await LocalExecutor().start()


async def test_a_machine_without_bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with LocalExecutor() as box:
        with pytest.raises(ImageError, match="this machine has no bash"):
            await box.bash("true")
        assert (await box.python("6 * 7")).value == "42"


@pytest.mark.usefixtures("nothing_left")
async def test_eight_boxes_at_once() -> None:
    async def one(number: int) -> str | None:
        async with LocalExecutor() as box:
            await box.write_file("number", str(number))
            return (await box.python("int(open('number').read())")).value

    assert await asyncio.gather(*map(one, range(8))) == [str(number) for number in range(8)]
    assert await eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("gymnast-local")], 5)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of the event loop that was closed before its box
def test_a_box_whose_event_loop_is_closed_ends_when_it_is_closed(nothing_left: Path) -> None:
    box = LocalExecutor()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(box.start())
    loop.close()
    assert processes_of(nothing_left)
    asyncio.run(box.close())
    assert not processes_of(nothing_left)
    del box
    gc.collect()  # the warning must appear here, not in the next test
