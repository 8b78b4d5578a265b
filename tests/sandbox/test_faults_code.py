"""Code that loops, blocks, crashes, exits, or is not code at all: the result says so, and the next call works."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gymnast.sandbox import DockerExecutor, LocalExecutor, Status

from . import faults
from .boxes import LIMITS, usable
from .faults import RealBox

kind, shared_box, box = faults.kind, faults.shared_box, faults.box

NOISE = 10.0  # seconds that a busy machine may add to a call that must end at once


# --- time -------------------------------------------------------------------------------------------------------


@pytest.mark.fault(2)
@pytest.mark.parametrize(
    "code",
    [
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nwhile True: pass",
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        "class R:\n    def __repr__(self):\n        import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "        while True: pass\nR()",
    ],
)
async def test_python_that_ignores_interruption_is_killed(box: RealBox, code: str) -> None:
    await box.bash("shell_state=1")
    result = await box.python(f"print('partial')\n{code}", timeout=0.4)
    assert (result.status, result.exit_code, result.state_lost) == (Status.TIMEOUT, None, True)
    assert result.stdout == "partial\n"
    assert result.duration < 0.4 + LIMITS.grace + NOISE
    assert await usable(box)
    assert (await box.bash("echo $shell_state")).stdout == "1\n"
    assert box.retire_reason == ("hard kill", "")


@pytest.mark.fault(2)
@pytest.mark.parametrize("command", ["set -n; echo never", pytest.param("kill -STOP $$", marks=pytest.mark.fault(3))])
async def test_a_shell_that_ignores_interruption_is_killed(box: RealBox, command: str) -> None:
    await box.python("python_state = 1")
    await box.bash("cd /tmp; lost=1")
    result = await box.bash(command, timeout=0.4)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
    assert result.duration < 0.4 + LIMITS.grace + NOISE
    assert (await box.bash("pwd; echo [$lost]")).stdout == "/tmp\n[]\n"
    assert (await box.python("python_state")).value == "1"


@pytest.mark.fault(4)
@pytest.mark.parametrize(
    "code",
    [
        "(10**8) ** (10**7)",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "import threading; threading.Lock().acquire() and threading.Event().wait()",
        "sum(range(10**12))",
        "import re; re.match('(a+)+$', 'a' * 50 + 'b')",
        "import os; r, w = os.pipe(); os.read(r, 1)",
    ],
)
async def test_a_block_in_c_is_interrupted_or_killed(box: RealBox, code: str) -> None:
    await box.python("kept = 1")
    result = await box.python(f"print('partial')\n{code}", timeout=0.4)
    assert (result.status, result.exit_code, result.stdout) == (Status.TIMEOUT, None, "partial\n")
    assert result.duration < 0.4 + LIMITS.grace + NOISE
    assert (await box.python("'kept' in globals()")).value == str(not result.state_lost)
    assert await usable(box)


CLOCKED_PYTHON = """#!{python}
import itertools, os, sys, time
days = itertools.cycle((1, -2, 40))
time.time = lambda: 1e9 + next(days) * 86400.0
time.time_ns = lambda: int(time.time() * 1e9)
exec(sys.argv[3])  # the interpreter is started with -u -c PROGRAM
"""


@pytest.mark.fault(47)
async def test_deadlines_do_not_depend_on_the_wall_clock(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wall clock jumps by days at every reading, for the host and, where possible, for the supervisor."""
    grace, minute = 10.0, 60.0  # enough for a busy machine, and nothing beside the jumps of this clock
    limits = dataclasses.replace(faults.recipe(kind).limits, grace=grace)
    days = itertools.cycle((1, -2, 40))
    monkeypatch.setattr(time, "time", lambda: 1e9 + next(days) * 86400.0)
    if kind == "local":
        launcher = tmp_path / "python"
        launcher.write_text(CLOCKED_PYTHON.format(python=sys.executable))
        launcher.chmod(0o755)
        recipe: RealBox = LocalExecutor(python=launcher, limits=limits)
    else:
        recipe = DockerExecutor(limits=limits)
    async with recipe as box:
        jumps = await box.python("import time; time.time() > time.time() + 3600 or time.time() > time.time() + 3600")
        assert jumps.value == str(kind == "local")
        for _ in range(3):
            patient = await box.python("import time; time.time = lambda: 0.0; time.sleep(0.2); 42", timeout=minute)
            assert (patient.status, patient.value) == (Status.OK, "42")
            assert 0.2 <= patient.duration < minute
        late = await box.python("while True: pass", timeout=0.4)
        assert (late.status, late.state_lost) == (Status.TIMEOUT, False)
        assert 0.4 <= late.duration < minute
        await box.ping(timeout=minute)
        await box.reset()
        assert await usable(box)


# --- the end of a session ---------------------------------------------------------------------------------------


@pytest.mark.fault(45)
async def test_a_shell_without_output_goes_on(box: RealBox) -> None:
    """It closed its own output; its status and standard error still arrive."""
    await box.bash("kept=1")
    result = await box.bash("echo before; exec >/dev/null; echo lost; (exit 7)", timeout=60)
    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 7, "before\n")
    assert not result.state_lost
    assert (await box.bash("echo $kept >&2")).stderr == "1\n"
    await box.reset()
    assert (await box.bash("echo there")).stdout == "there\n"


# --- errors that leave the session as it was --------------------------------------------------------------------


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("#" * 10_000_000, "Limits.max_code is 4194304"),
        ("raise BaseException('all')", "BaseException: all"),
        ("-" * 100_000 + "1", "Error"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", "E"),
    ],
    ids=["10 MB", "base", "nested", "exit"],
)
async def test_python_that_fails(box: RealBox, code: str, said: str) -> None:
    await box.python("kept = 1")
    result = await box.python(code, timeout=20)
    assert (result.status, result.exit_code, result.state_lost) == (Status.ERROR, 1, False)
    assert said in result.stderr
    assert (await box.python("kept")).value == "1"


@pytest.mark.fault(44)
async def test_a_command_that_is_too_long(box: RealBox) -> None:
    result = await box.bash("#" * 10_000_000, timeout=20)
    assert (result.status, result.exit_code, result.state_lost) == (Status.ERROR, 1, False)
    assert "Limits.max_code is 4194304" in result.stderr


async def test_an_exit_code_of_a_class_of_its_own_is_a_number(box: RealBox) -> None:
    result = await box.python("class I(int):\n    def __and__(self, other): return 'x'\nraise SystemExit(I(7))")
    assert (result.status, result.exit_code, result.state_lost) == (Status.ERROR, 7, False)


@pytest.mark.fault(1)
async def test_code_that_ends_well_after_its_time_has_no_value(box: RealBox) -> None:
    result = await box.python(
        "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('late')\n7", timeout=0.3
    )
    assert (result.status, result.value, result.exit_code) == (Status.TIMEOUT, None, None)
    assert (result.stdout, result.state_lost) == ("late\n", False)


@pytest.mark.parametrize("session", ["python", "bash"])
async def test_a_timeout_ends_what_its_own_call_has_started_and_nothing_older(box: RealBox, session: str) -> None:
    # `sleep` ends at its interruption at once; a Python may still be busy with its end when it is killed.
    assert (await box.python("import subprocess\ndef start(): return subprocess.Popen(['sleep', '60'])")).ok
    assert (await box.python("older = start()")).ok
    if session == "python":
        result = await box.python("younger = start()\nyounger.wait()", timeout=0.3)
    else:
        result = await box.bash("sleep 60", timeout=0.3)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, False)
    assert (await box.python("older.poll()")).value is None
    if session == "python":
        assert (await box.python("younger.wait(5)")).value == str(-signal.SIGINT)


async def test_a_child_that_a_timeout_ends_keeps_its_exit_status(box: RealBox) -> None:
    """The cell waits for its child, and gets the processor long after the child: busy processes share its core."""
    crowd = """
import os, subprocess, sys
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[:1])
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]"""
    wait = """
child = subprocess.Popen(["sleep", "60"])
os.sched_setaffinity(child.pid, cores[-1:])
os.nice(19)
child.wait()"""
    assert (await box.python(crowd)).ok
    result = await box.python(wait, timeout=1)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, False)
    assert (await box.python("child.wait(5)")).value == str(-signal.SIGINT)


async def test_a_timeout_may_be_any_number(box: RealBox) -> None:
    assert (await box.python("1", timeout=np.float32(5))).value == "1"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        await box.python("1", timeout=10**400)
