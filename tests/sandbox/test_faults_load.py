"""Code that uses up memory, processes, disk or the caller's patience: limits hold, and the box is usable after them."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from gymnast.sandbox import DockerExecutor, Status

from . import faults
from .boxes import LIMITS, usable
from .faults import RealBox, docker_only

kind, shared_box, box = faults.kind, faults.shared_box, faults.box


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(10)
async def test_a_bomb_of_shared_memory_is_no_tampering(image: str) -> None:
    bomb = "import mmap\nm = mmap.mmap(-1, 3 << 30)\nfor _ in range(300): m.write(bytes(10 << 20))"
    async with DockerExecutor() as box:  # its 512m take the kernel long to free
        result = await box.python(bomb, timeout=60)
        assert (result.status, result.exit_code, result.state_lost) == (Status.OOM, -9, True)
        assert box.retire_reason == ("oom", "")
        assert await usable(box)


@docker_only
@pytest.mark.fault(10)
async def test_a_memory_bomb_in_the_shell_leaves_the_shell(box: RealBox) -> None:
    await box.bash("kept=1")
    result = await box.bash("python3 -c 'x = bytearray(1 << 30)'", timeout=60)
    assert (result.status, result.exit_code, result.state_lost) == (Status.OOM, 137, False)
    assert (await box.bash("echo $kept")).stdout == "1\n"


@docker_only
@pytest.mark.fault(10)
async def test_a_memory_kill_between_two_calls_is_not_blamed_on_the_next(box: RealBox) -> None:
    await box.bash("(sleep 0.2; python3 -c 'x = bytearray(1 << 30)'; touch died) >/dev/null 2>&1 &")
    assert await eventually_listed(box, "died")
    result = await box.bash("bash -c 'kill -9 $$'")
    assert (result.status, result.exit_code) == (Status.ERROR, 137)
    assert box.retire_reason is None


async def eventually_listed(box: RealBox, name: str) -> bool:
    for _ in range(100):
        if name in [entry.path for entry in await box.list_files()]:
            return True
        await asyncio.sleep(0.1)
    return False


@docker_only
@pytest.mark.fault(11)
async def test_children_die_of_memory_before_the_session(box: RealBox) -> None:
    code = """
import subprocess, sys
kept = 1
children = [subprocess.Popen([sys.executable, '-c', 'import time; x = bytearray(40 << 20); time.sleep(3)'])
            for _ in range(20)]
codes = [child.wait() for child in children]
-9 in codes"""
    result = await box.python(code, timeout=100)
    assert (result.status, result.value, result.state_lost) == (Status.OK, "True", False)
    assert (await box.python("kept")).value == "1"
    assert box.retire_reason is None
    assert box._box is not None
    await box._clean(box._box)
    assert box.retire_reason == ("oom", "")  # a process of the box was killed for memory, though no call failed


# --- processes --------------------------------------------------------------------------------------------------

LIVING = """
import os
def state(pid):
    try: return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError: return "X"
len([pid for pid in os.listdir("/proc") if pid.isdigit() and state(pid) not in "XZ"])"""


@docker_only
@pytest.mark.fault(12)
@pytest.mark.parametrize("prelude", ["", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"])
async def test_a_fork_bomb_is_killed(box: RealBox, prelude: str) -> None:
    bomb = f"{prelude}import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = await box.python(bomb, timeout=1)
    assert result.status is Status.TIMEOUT
    assert result.duration < 15
    assert (await box.python(LIVING, timeout=10)).value == "3"  # init, the supervisor, the session
    assert (await box.bash("echo $((6 * 7))")).stdout == "42\n"
    assert await usable(box)
    await box.reset()
    count = await box.python("import os; len([pid for pid in os.listdir('/proc') if pid.isdigit()])")
    assert count.value == "3"  # and no zombie is left


@docker_only
@pytest.mark.fault(12)
async def test_a_fork_bomb_in_the_shell_is_killed(box: RealBox) -> None:
    result = await box.bash(":(){ :|:& };:; sleep 60", timeout=1)
    assert result.status in (Status.TIMEOUT, Status.ERROR)  # it may be the shell itself that cannot fork any more
    if result.status is Status.ERROR:
        await box.reset()
    assert (await box.python(LIVING, timeout=10)).value in ("3", "4")  # and the shell
    assert await usable(box)


# --- processor time -----------------------------------------------------------------------------------------------

# On new kernels a long system call runs on beyond the limit, and the whole box is then stopped for minutes.
LONG_CALLS = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0: break
fd, buffer = os.open("/dev/urandom", os.O_RDONLY), bytearray(2 << 20)
def read():
    while True: os.readv(fd, [buffer] * 1000)
for _ in range(3): threading.Thread(target=read).start()
read()
"""


@pytest.mark.usefixtures("nothing_left")
async def test_long_system_calls_do_not_cost_the_box(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.host.supervised_executor.MARGIN", 1.0)
    async with DockerExecutor(limits=dataclasses.replace(LIMITS, cpus=0.2)) as box:
        result = await box.python(LONG_CALLS, timeout=3)
        assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
        await box.reset()
        assert await usable(box)


# --- output -----------------------------------------------------------------------------------------------------

FLOODS = [
    pytest.param(
        "import sys\nfor _ in range(500): n = sys.stdout.write(('x' * 99 + '\\n') * 10_000)",
        500_000_000,
        marks=pytest.mark.fault(16),
        id="500 MB",
    ),
    pytest.param(
        "import sys\nfor _ in range(100): n = sys.stdout.write('x' * 1_000_000)",
        100_000_000,
        marks=pytest.mark.fault(18),
        id="one line",
    ),
]

FLOODED = """
def memory(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return [int(line.split()[1]) << 10 for line in lines if line.startswith(field)][0]
async with make() as box:
    await box.python("print(1)")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    result = await box.python({code!r}, timeout=100)
    growth = memory("VmHWM") - before
    usable = (await box.python("6 * 7")).value
    print(json.dumps([growth, result.status, len(result.stdout), result.dropped_bytes, result.stdout[:5], usable]))
"""


@pytest.mark.parametrize(("code", "size"), FLOODS)
async def test_a_flood_of_output_is_capped_and_counted_and_costs_no_memory(kind: str, code: str, size: int) -> None:
    growth, status, kept, dropped, head, usable = await faults.run_alone(kind, FLOODED.format(code=code))
    assert (status, head, usable) == ("ok", "xxxxx", "42")
    assert dropped == size - (1 << 20)
    assert 1 << 20 < kept < (1 << 20) + 100
    assert growth < 10 << 20


# --- disk -------------------------------------------------------------------------------------------------------


@docker_only
@pytest.mark.fault(22)
async def test_a_full_disk_is_an_error_of_the_code_and_a_reset_cures_it(box: RealBox) -> None:
    code = "kept = 1; open('big', 'wb').write(bytes(63 << 20)); open('more', 'wb').write(bytes(9 << 20))"
    result = await box.python(code)
    assert (result.status, result.state_lost) == (Status.ERROR, False)
    assert "OSError: [Errno 28] No space left on device" in result.stderr
    assert (await box.python("kept")).value == "1"  # all else works
    assert (await box.bash("echo $((6 * 7))")).stdout == "42\n"
    await box.reset()
    assert (await box.python("open('big', 'wb').write(bytes(60 << 20))")).status is Status.OK


@docker_only
@pytest.mark.fault(23)
@pytest.mark.parametrize("folder", ["/workspace", "/tmp"])
async def test_inodes_run_out_and_a_reset_cures_it(box: RealBox, folder: str) -> None:
    code = f"for i in range(100_000): open(f'{folder}/{{i}}', 'w').close()"
    result = await box.python(code, timeout=100)
    assert result.status is Status.ERROR
    assert "OSError: [Errno 28] No space left on device" in result.stderr
    assert await usable(box)
    started = time.monotonic()
    await box.reset()
    assert time.monotonic() - started < 20  # a second on an idle machine
    assert await box.list_files(folder) == []
    assert (await box.bash(f"touch {folder}/x && ls {folder}")).stdout == "x\n"
