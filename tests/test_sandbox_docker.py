"""DockerExecutor against a real engine: state, limits, faults, protection and clean-up."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gymnast.sandbox import (
    DEFAULT_IMAGE,
    DockerExecutor,
    Engine,
    EngineError,
    ExecutionResult,
    ImageError,
    Limits,
    SandboxClosedError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxLostError,
    SandboxPermissionError,
    SandboxTimeoutError,
    Status,
    reap,
)
from gymnast.sandbox import owner as owner_module
from gymnast.sandbox.container import BoxOptions, container_config

from .boxes import LIMITS, containers_of, eventually, usable


@pytest.fixture(scope="module")
async def shared_box(image: str) -> AsyncIterator[DockerExecutor]:
    async with DockerExecutor(limits=LIMITS) as box:
        yield box


@pytest.fixture
async def box(shared_box: DockerExecutor) -> DockerExecutor:
    """A clean box."""
    await shared_box.reset()
    return shared_box


# --- Python -----------------------------------------------------------------------------------------------------


async def test_python_keeps_its_state(box: DockerExecutor) -> None:
    first = await box.python("import math\nx = 6\ndef double(n): return 2 * n\nprint('said')", timeout=5)
    assert (first.status, first.stdout, first.value, first.exit_code) == (Status.OK, "said\n", None, 0)
    second = await box.python("double(x)")
    assert second.value == "12"
    assert second.ok
    assert 0 < second.duration < 5


async def test_an_exception_is_a_result_with_a_traceback_of_the_code_alone(box: DockerExecutor) -> None:
    await box.python("def f():\n    return 1 / 0")
    result = await box.python("f()")
    assert (result.status, result.exit_code, result.state_lost) == (Status.ERROR, 1, False)
    assert result.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "return 1 / 0" in result.stderr
    assert "inside_worker" not in result.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def", "SyntaxError"),
        ("x = '\0'", "null byte"),
        ("x = '\ud800'", "surrogates not allowed"),
        ("#" * 5_000_000, "Limits.max_code"),
        ("raise BaseException('all')", "BaseException: all"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", "E"),
        ("class V:\n    def __repr__(self): return 1 / 0\nV()", "ZeroDivisionError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("input()", "EOFError"),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        ("import os, sys; os.close(1); print('x', flush=True)", "Bad file descriptor"),
    ],
)
async def test_python_that_fails(box: DockerExecutor, code: str, said: str) -> None:
    await box.python("kept = 1")
    result = await box.python(code, timeout=10)
    assert result.status is Status.ERROR
    assert said in result.stderr
    assert (await box.python("kept")).value == "1"


@pytest.mark.parametrize(("code", "exit_code", "status"), [("", 0, "ok"), ("0", 0, "ok"), ("4", 4, "error")])
async def test_sys_exit_ends_the_cell_only(box: DockerExecutor, code: str, exit_code: int, status: str) -> None:
    result = await box.python(f"import sys; sys.exit({code})")
    assert (result.status, result.exit_code, result.state_lost) == (status, exit_code, False)


async def test_output_of_subprocesses_and_c_code_is_captured(box: DockerExecutor) -> None:
    code = (
        "import os, subprocess\nprint('a')\nos.write(1, b'b\\n')\nsubprocess.run('echo c; echo d >&2', shell=True)\n0"
    )
    result = await box.python(code)
    assert (result.stdout, result.stderr, result.value) == ("a\nb\nc\n", "d\n", "0")


async def test_odd_bytes_in_the_output_are_replaced(box: DockerExecutor) -> None:
    code = "import sys; sys.stdout.buffer.write(b'\\xff\\x00\\x1b[31m\\n'); print(chr(0xd800)); chr(0xdfff) + 'é'"
    result = await box.python(code)
    assert result.stdout == "\ufffd\x00\x1b[31m\n\\ud800\n"
    assert result.value == "'\\udfffé'"
    result.stdout.encode()


async def test_what_cells_define_can_be_pickled_and_forked(box: DockerExecutor) -> None:
    code = """
import concurrent.futures, multiprocessing, pickle, threading
def square(n): return n * n
with multiprocessing.get_context("fork").Pool(2) as pool:
    pooled = pool.map(square, range(4))
threads = [threading.Thread(target=square, args=(1,)) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
pooled, pickle.loads(pickle.dumps(square))(5)"""
    assert (await box.python(code, timeout=20)).value == "([0, 1, 4, 9], 25)"


async def test_the_standard_streams_can_be_opened_by_name(box: DockerExecutor) -> None:
    result = await box.bash("echo out > /dev/stdout; echo err > /dev/stderr")
    assert (result.stdout, result.stderr, result.status) == ("out\n", "err\n", Status.OK)


async def test_a_late_thread_speaks_in_the_next_result_and_breaks_nothing(box: DockerExecutor) -> None:
    code = "import threading\ngo = threading.Event()\n"
    code += "t = threading.Thread(target=lambda: (go.wait(), print('late')))\nt.start()"
    assert (await box.python(code)).stdout == ""
    result = await box.python("go.set(); t.join(); print('now')")
    assert result.stdout == "late\nnow\n"


async def test_only_the_parent_answers_after_a_fork(box: DockerExecutor) -> None:
    result = await box.python("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\npid > 0")
    assert (result.status, result.value) == (Status.OK, "True")
    assert await usable(box)


# --- Bash -------------------------------------------------------------------------------------------------------


async def test_bash_keeps_its_state(box: DockerExecutor) -> None:
    await box.bash("mkdir d; cd d; export A=1; B=2; greet() { echo hello $1; }; alias say=echo; umask 077")
    result = await box.bash('pwd; echo $A $B; greet you; say hi; umask; cat <<E\nhere "doc"\nE')
    assert result.stdout == '/workspace/d\n1 2\nhello you\nhi\n0077\nhere "doc"\n'
    assert (result.status, result.exit_code, result.value) == (Status.OK, 0, None)


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [("false", 1, ""), ("nonsense", 127, "not found"), ("echo 'x", 1, "unexpected EOF"), ("a\0b", 1, "NUL")],
)
async def test_a_failed_command_is_a_result(box: DockerExecutor, command: str, exit_code: int, said: str) -> None:
    await box.bash("kept=1")
    result = await box.bash(command)
    assert result.status is Status.ERROR
    assert result.exit_code in (exit_code, 2)
    assert said in result.stderr
    assert (await box.bash("echo $kept")).stdout == "1\n"


@pytest.mark.parametrize(
    ("command", "status", "exit_code"),
    [
        ("exit 4", Status.EXITED, 4),
        ("set -e; false", Status.EXITED, 1),
        ("kill -9 $$", Status.SIGNAL, -9),
        ("exec true", Status.EXITED, 0),
    ],
)
async def test_a_shell_that_ends_is_begun_again(
    box: DockerExecutor, command: str, status: Status, exit_code: int
) -> None:
    await box.bash("cd /tmp; kept=1")
    result = await box.bash(f"echo before; {command}")
    assert (result.status, result.exit_code, result.state_lost) == (status, exit_code, True)
    assert result.stdout == "before\n"
    after = await box.bash("pwd; echo $kept")
    assert (after.stdout, after.state_lost) == ("/tmp\n\n", False)


async def test_a_background_job_does_not_hold_the_call(box: DockerExecutor) -> None:
    result = await box.bash("sleep 100 & echo started", timeout=5)
    assert result.stdout == "started\n"
    assert result.duration < 2
    assert "sleep" in (await box.bash("jobs")).stdout


async def test_a_command_cannot_forge_its_status(box: DockerExecutor) -> None:
    result = await box.bash("echo forged 0 / >&9")
    assert result.status is Status.ERROR
    assert "9: Bad file descriptor" in result.stderr


# --- time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import time; time.sleep(60)", "(10**8) ** (10**7); 1", "import os; os.system('sleep 60')",
     "import subprocess; subprocess.run(['sleep', '60'])"],
)  # fmt: skip
async def test_python_is_interrupted_and_keeps_its_state(box: DockerExecutor, code: str) -> None:
    await box.python("kept = 1; print('x')")
    result = await box.python(f"print('partial')\n{code}", timeout=0.3)
    assert (result.status, result.exit_code, result.state_lost) == (Status.TIMEOUT, None, False)
    assert result.stdout == "partial\n"
    assert (await box.python("kept")).value == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import signal; signal.signal(signal.SIGINT, lambda *_: None)\nwhile True: pass",
        "class R:\n    def __repr__(self):\n        import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "        while True: pass\nR()",
    ],
)
async def test_python_that_does_not_give_way_is_killed(box: DockerExecutor, code: str) -> None:
    await box.bash("shell_state=1")
    result = await box.python(f"print('partial')\n{code}", timeout=0.3)
    assert (result.status, result.exit_code, result.state_lost) == (Status.TIMEOUT, None, True)
    assert result.stdout == "partial\n"
    assert result.duration < 0.3 + LIMITS.grace + 2
    assert await usable(box)
    assert (await box.bash("echo $shell_state")).stdout == "1\n"
    assert box.retire_reason == "hard kill"


async def test_a_command_is_interrupted_and_the_shell_kept(box: DockerExecutor) -> None:
    await box.bash("kept=1")
    result = await box.bash("echo partial; sleep 60", timeout=0.3)
    assert (result.status, result.stdout, result.state_lost) == (Status.TIMEOUT, "partial\n", False)
    assert (await box.bash("echo $kept")).stdout == "1\n"


@pytest.mark.parametrize("command", ["while :; do :; done", "trap '' INT; sleep 60", "set -n; echo never"])
async def test_a_shell_that_does_not_give_way_is_killed(box: DockerExecutor, command: str) -> None:
    await box.python("python_state = 1")
    await box.bash("cd /tmp")
    result = await box.bash(command, timeout=0.3)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
    assert (await box.bash("pwd; pgrep sleep || true")).stdout == "/tmp\n"
    assert (await box.python("python_state")).value == "1"


async def test_jobs_of_earlier_calls_survive_a_timeout_and_those_of_the_call_do_not(box: DockerExecutor) -> None:
    await box.bash("sleep 301 & true")
    await box.bash("true")  # a tick of the kernel's clock lies between
    await box.python("import time; time.sleep(0.03)")
    await box.python("import subprocess, time; subprocess.Popen(['sleep', '302'])\nwhile True: pass", timeout=0.3)
    assert (await box.bash("pgrep -r S -a sleep | cut -d' ' -f2-")).stdout == "sleep 301\n"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
async def test_a_timeout_is_positive_and_finite(box: DockerExecutor, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        await box.python("1", timeout=timeout)


# --- crashes and attacks on the channel -------------------------------------------------------------------------


SEGFAULT = "import ctypes; ctypes.string_at(0)"


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("import os; os._exit(3)", Status.EXITED, 3),
        (SEGFAULT, Status.SIGNAL, -signal.SIGSEGV),
        ("import os; os.abort()", Status.SIGNAL, -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Status.SIGNAL, -signal.SIGKILL),
    ],
)
async def test_a_crash_is_reported_and_the_session_begun_again(
    box: DockerExecutor, code: str, status: Status, exit_code: int
) -> None:
    result = await box.python(f"print('partial')\n{code}")
    assert (result.status, result.exit_code, result.state_lost) == (status, exit_code, True)
    assert (result.stdout, result.duration < 1) == ("partial\n", True)
    assert await usable(box)


@pytest.mark.parametrize(
    "attack",
    [
        "os.write(63, b'x' * 100)",
        "os.write(63, bytes(4) + bytes(4))",
        "os.write(63, b'\\xff' * 8)",
        "os.write(63, (2).to_bytes(4, 'big') + b'\\xff' * 4 + b'{}')",
        "frame(nonce='0' * 16, status='ok', code=0, value=False, dropped=0, lengths=[0, 0, 0])",
        "frame(nonce=None)",
        "os.close(63); time.sleep(60)",
        "os.closerange(3, 300); time.sleep(60)",
    ],
)
async def test_tampering_with_the_channel_is_reported(box: DockerExecutor, attack: str) -> None:
    code = f"""
import json, os, time
def frame(**header):
    text = json.dumps(header).encode()
    os.write(63, len(text).to_bytes(4, 'big') + bytes(4) + text)
{attack}
time.sleep(60)"""
    result = await box.python(code, timeout=10)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert result.duration < 3
    assert box.retire_reason == "protocol"
    assert await usable(box)


async def test_all_descriptors_closed(box: DockerExecutor) -> None:
    result = await box.python("import os; os.closerange(0, 300)")
    assert result.status in (Status.EXITED, Status.PROTOCOL)
    assert await usable(box)


async def test_a_session_killed_between_calls_is_reported_as_lost(box: DockerExecutor) -> None:
    pid = (await box.python("import os; x = 1; os.getpid()")).value
    await box.bash(f"kill -9 {pid}; while [ -d /proc/{pid} ]; do :; done", timeout=5)
    result = await box.python("6 * 7")
    assert (result.value, result.state_lost) == ("42", True)
    assert not (await box.python("1")).state_lost


async def test_the_supervisor_is_out_of_reach(box: DockerExecutor) -> None:
    code = """
import os, signal
denied = []
for pid in (1, os.getppid()):
    for number in (signal.SIGKILL, signal.SIGSTOP):
        try: os.kill(pid, number)
        except PermissionError: denied.append(pid)
    for name in ("environ", "mem", "fd/0"):
        try: open(f"/proc/{pid}/{name}")
        except PermissionError: denied.append(name)
len(denied)"""
    assert (await box.python(code)).value == "10"
    assert (await box.python("import os; os.kill(-1, 9)")).status in (Status.SIGNAL, Status.OK)
    assert await usable(box)


# --- memory, processes, output ----------------------------------------------------------------------------------


async def test_a_memory_bomb_is_told_from_a_crash(box: DockerExecutor) -> None:
    result = await box.python("print('partial')\nx = bytearray(1 << 30)", timeout=20)
    assert (result.status, result.exit_code, result.state_lost) == (Status.OOM, -9, True)
    assert box.retire_reason == "oom"
    assert await usable(box)


async def test_a_memory_bomb_in_the_shell_leaves_the_shell(box: DockerExecutor) -> None:
    await box.bash("kept=1")
    result = await box.bash("python3 -c 'x = bytearray(1 << 30)'", timeout=20)
    assert (result.status, result.exit_code, result.state_lost) == (Status.OOM, 137, False)
    assert (await box.bash("echo $kept")).stdout == "1\n"


async def test_children_die_of_memory_before_the_session(box: DockerExecutor) -> None:
    code = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, '-c', 'import time; x = bytearray(60 << 20); time.sleep(0.5)'])
            for _ in range(12)]
codes = [child.wait() for child in children]
-9 in codes"""
    result = await box.python(code, timeout=30)
    assert (result.status, result.value) == (Status.OK, "True")


@pytest.mark.parametrize(
    ("session", "bomb"),
    [
        ("python", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
        ("python", "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                   "while True:\n    try: os.fork()\n    except OSError: pass"),
        ("bash", ":(){ :|:& };:; sleep 60"),
    ],
)  # fmt: skip
async def test_a_fork_bomb_is_cleared(box: DockerExecutor, session: str, bomb: str) -> None:
    run = box.python if session == "python" else box.bash
    result = await run(bomb, timeout=1)
    assert result.status in (Status.TIMEOUT, Status.ERROR)
    await box.reset()
    count = await box.python("import os; len([p for p in os.listdir('/proc') if p.isdigit()])", timeout=5)
    assert count.value == "3"  # init, the supervisor, the session
    assert await usable(box)


async def test_a_flood_of_output_is_capped_and_counted(box: DockerExecutor) -> None:
    before = _resident_bytes()
    result = await box.bash("echo first; head -c 200000000 /dev/zero | tr '\\0' 'x'; echo; echo last", timeout=60)
    assert result.status is Status.OK
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("\nlast\n")
    assert result.dropped_bytes == 200_000_012 - (1 << 20)
    assert f"\n[... {result.dropped_bytes} bytes dropped ...]\n" in result.stdout
    assert _resident_bytes() - before < 20 << 20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_huge_value_is_capped(box: DockerExecutor) -> None:
    result = await box.python("'a' * 3_000_000")
    assert result.value is not None
    assert result.value.startswith("'aaa")
    assert result.dropped_bytes == 3_000_002 - (1 << 20)


async def test_a_full_disk_is_an_error_of_the_code_and_a_reset_cures_it(box: DockerExecutor) -> None:
    result = await box.python("open('big', 'wb').write(bytes(63 << 20)); open('more', 'wb').write(bytes(9 << 20))")
    assert "No space left on device" in result.stderr
    await box.reset()
    assert (await box.python("open('big', 'wb').write(bytes(60 << 20))")).status is Status.OK


async def test_inodes_run_out_and_a_reset_cures_it(box: DockerExecutor) -> None:
    code = "for i in range(100_000): open(f'/tmp/{i}', 'w').close()"
    assert "No space left on device" in (await box.python(code, timeout=60)).stderr
    await box.reset()
    assert await box.list_files("/tmp") == []


# --- files ------------------------------------------------------------------------------------------------------


async def test_files_go_in_and_come_out(box: DockerExecutor) -> None:
    data = bytes(range(256)) * 40_000
    await box.write_file("a/b/data.bin", data)
    await box.write_file("text.txt", "héllo")
    await box.write_file("empty", b"")
    assert await box.read_file("a/b/data.bin") == data
    assert await box.read_file("/workspace/text.txt") == "héllo".encode()
    assert await box.read_file("empty") == b""
    assert (await box.bash("stat -c '%s %u %a' text.txt")).stdout == "6 1000 644\n"
    await box.bash("ln -s a link; mkfifo pipe")
    listed = [(entry.path, entry.kind) for entry in await box.list_files(recursive=True)]
    assert listed == [("a", "directory"), ("a/b", "directory"), ("a/b/data.bin", "file"), ("empty", "file"),
                      ("link", "link"), ("pipe", "other"), ("text.txt", "file")]  # fmt: skip
    assert [entry.path for entry in await box.list_files("a")] == ["b"]


async def test_odd_names(box: DockerExecutor) -> None:
    await box.python("open(b'new\\nline', 'w').close(); open(b'\\xff', 'w').write('x')")
    names = [entry.path for entry in await box.list_files()]
    assert names == ["new\nline", "\udcff"]
    assert await box.read_file(names[1]) == b"x"


@pytest.mark.parametrize(
    ("prepare", "path", "error"),
    [
        ("", "missing", SandboxFileNotFoundError),
        ("", "", SandboxFileError),
        ("ln -s /etc/passwd f", "f", SandboxPermissionError),
        ("", "/etc/shadow", SandboxFileError),
        ("", "/proc/1/environ", SandboxPermissionError),
        ("", "/proc/1/mem", SandboxPermissionError),
        ("mkfifo f", "f", SandboxFileError),
        ("mkdir f", "f", SandboxFileError),
        ("", "/dev/zero", SandboxFileError),
        ("", "/proc/kmsg", SandboxPermissionError),
        ("truncate -s 40M f", "f", SandboxFileTooLargeError),
        ("", "x\0y", SandboxFileError),
        ("", "x" * 5000, SandboxFileError),
        ("chmod 000 .", "f", SandboxPermissionError),
    ],
)
async def test_reading_what_is_no_readable_file(
    box: DockerExecutor, prepare: str, path: str, error: type[SandboxFileError]
) -> None:
    await box.bash(prepare)
    with pytest.raises(error) as caught:
        await box.read_file(path)
    assert caught.value.filename == path
    assert await usable(box)


@pytest.mark.parametrize(
    ("prepare", "path", "error"),
    [
        ("", "/etc/x", SandboxPermissionError),
        ("ln -s /etc d", "d/x", SandboxPermissionError),
        ("ln -s /tmp/elsewhere f", "f", SandboxPermissionError),
        ("mkfifo f", "f", SandboxFileError),
        ("mkdir f", "f", SandboxFileError),
        ("ln -s /proc/self d", "d/mem", SandboxPermissionError),
        ("head -c 60M /dev/zero > full", "big", SandboxFileError),
    ],
)
async def test_writing_where_the_code_may_not(
    box: DockerExecutor, prepare: str, path: str, error: type[SandboxFileError]
) -> None:
    await box.bash(prepare)
    with pytest.raises(error):
        await box.write_file(path, bytes(9 << 20))
    assert await usable(box)


async def test_a_file_over_the_limit_is_not_sent(box: DockerExecutor) -> None:
    with pytest.raises(SandboxFileTooLargeError, match=r"Limits\.max_file is 33554432"):
        await box.write_file("f", bytes(33 << 20))


# --- reset ------------------------------------------------------------------------------------------------------


async def test_nothing_crosses_a_reset(box: DockerExecutor) -> None:
    await box.python(
        "import os, sys, resource\nx = 1; sys.y = 1; os.environ['Z'] = '1'; os.umask(0o77); os.chdir('/tmp')"
    )
    await box.python("resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50)); import builtins; builtins.w = 1")
    await box.bash("a=1; b() { :; }; cd /tmp; sleep 1000 & (setsid sleep 1001 &); umask 0; set -f")
    await box.bash("mkdir -p d/e; touch /tmp/x /dev/shm/y d/e/f; chmod 000 d/e d; touch $'new\\nline' ./-rf; chmod 0 .")
    deep = "import os\nfor i in range(600):\n    os.mkdir('n' * 200); os.chdir('n' * 200)\nopen('f', 'w').close()"
    assert (await box.python("import os; os.chmod('/workspace', 0o700); os.chdir('/workspace')\n" + deep)).ok

    old = box._launched
    await box.reset()
    assert box._launched is old  # in place, not by a new container
    assert await box.list_files() == []
    assert await box.list_files("/tmp") == []
    assert await box.list_files("/dev/shm") == []
    checks = "import os, sys, resource\n('x' in globals(), hasattr(sys, 'y'), os.environ.get('Z'), os.umask(0o22), "
    checks += "os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], hasattr(__builtins__, 'w'))"
    result = await box.python(checks)
    assert result.value == "(False, False, None, 18, '/workspace', 1024, False)"
    assert not result.state_lost
    shell = await box.bash('echo "$a"; type b; pwd; pgrep sleep; umask; echo $-')
    assert shell.stdout.split() == ["/workspace", "0022", "hBc"]


async def test_the_base_files_are_there_again_after_a_reset(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, files={"data/x.csv": "1,2\n"}, env={"KEY": "value"}) as box:
        assert await box.read_file("data/x.csv") == b"1,2\n"
        await box.bash("rm -r data")
        await box.reset()
        assert await box.read_file("data/x.csv") == b"1,2\n"
        assert (await box.bash("echo $KEY")).stdout == "value\n"
        assert (await box.python("import os; os.environ['KEY']")).value == "'value'"


async def test_a_box_that_can_write_its_root_is_replaced_at_a_reset(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, read_only=False) as box:
        old = box._launched
        await box.reset()
        assert box._launched is not old
        assert await usable(box)


async def test_modules_can_be_there_from_the_start(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, preload=["decimal"]) as box:
        for _ in range(2):
            assert (await box.python("import sys; 'decimal' in sys.modules")).value == "True"
            await box.reset()


# --- protection, seen from inside -------------------------------------------------------------------------------


async def test_the_code_has_no_privileges(box: DockerExecutor) -> None:
    status = await box.bash("grep -E '^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Seccomp):' /proc/self/status")
    fields = dict(line.split(":", 1) for line in status.stdout.splitlines())
    assert {name: value.split() for name, value in fields.items()} == {
        "Uid": ["1000"] * 4, "Gid": ["1000"] * 4, "Groups": [], "NoNewPrivs": ["1"], "Seccomp": ["2"],
        "CapInh": ["0" * 16], "CapPrm": ["0" * 16], "CapEff": ["0" * 16], "CapAmb": ["0" * 16],
    }  # fmt: skip
    for code in ("os.setuid(0)", "os.setgid(0)", "os.chroot('/tmp')"):
        assert "PermissionError" in (await box.python(f"import os; {code}")).stderr


async def test_limits_and_mounts(box: DockerExecutor) -> None:
    assert "Read-only file system" in (await box.bash("touch /etc/x /usr/bin/x /x 2>&1")).stdout
    cgroup = "cat /sys/fs/cgroup/{memory/memory.limit_in_bytes,memory.max,pids/pids.max,pids.max} 2>/dev/null"
    assert (await box.bash(cgroup)).stdout.split() == [str(256 << 20), "64"]
    assert (await box.bash("ulimit -c; ulimit -n")).stdout.split() == ["0", "1024"]
    mounts = (await box.bash("cat /proc/mounts")).stdout
    for path in ("/workspace", "/tmp", "/dev/shm"):
        [line] = [line for line in mounts.splitlines() if f" {path} " in line]
        assert {"nosuid", "nodev", "rw"} <= set(line.split()[3].split(","))
    assert "docker.sock" not in mounts


async def test_nothing_of_the_host_is_visible(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    async with DockerExecutor(limits=LIMITS) as box:
        everything = await box.bash(
            "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; hostname; cat /proc/1/cmdline"
        )
        assert "hunter2" not in everything.stdout
        assert os.uname().nodename not in everything.stdout


async def test_there_is_no_network(box: DockerExecutor) -> None:
    code = """
import socket
def attempt(call):
    try: call()
    except OSError as error: return type(error).__name__
    return "reached"
[attempt(lambda: socket.create_connection(("1.1.1.1", 53), timeout=2)),
 attempt(lambda: socket.getaddrinfo("example.com", 80)), [name for _, name in socket.if_nameindex()]]"""
    assert (await box.python(code, timeout=15)).value == "['OSError', 'gaierror', ['lo']]"


# Number on x86-64 and arguments; every one is refused by the filter, whatever the capabilities.
DENIED = {
    "io_uring_setup": (425, 1, 0), "ptrace": (101, 0, 1, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "process_vm_writev": (311, 1, 0, 0, 0, 0, 0), "shmget": (29, 0, 4096, 0o1600), "semget": (64, 0, 1, 0o1600),
    "msgget": (68, 0, 0o1600), "mq_open": (240, 0, 0o102, 0o600, 0), "add_key": (248, 0, 0, 0, 0, -1),
    "request_key": (249, 0, 0, 0, 0), "keyctl": (250, 0, -1, 0), "bpf": (321, 0, 0, 0), "unshare": (272, 0x10000000),
    "mount": (165, 0, 0, 0, 0), "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "setns": (308, 0, 0),
    "userfaultfd": (323, 0), "perf_event_open": (298, 0, 0, -1, -1, 0), "kexec_load": (246, 0, 0, 0, 0),
    "init_module": (175, 0, 0, 0), "open_by_handle_at": (304, 0, 0, 0), "name_to_handle_at": (303, 0, 0, 0, 0, 0),
    "io_setup": (206, 1, 0), "kcmp": (312, 1, 1, 0, 0, 0), "reboot": (169, 0, 0, 0, 0), "swapon": (167, 0, 0),
    "acct": (163, 0), "settimeofday": (164, 0, 0), "clock_settime": (227, 0, 0), "adjtimex": (159, 0),
    "memfd_secret": (447, 0), "fanotify_init": (300, 0, 0), "vmsplice": (278, 0, 0, 0, 0), "syslog": (103, 3, 0, 0),
    "modify_ldt": (154, 0, 0, 0), "personality": (135, 0x0040000), "clone NEWUSER": (56, 0x10000000, 0, 0, 0, 0),
    "socket VSOCK": (41, 40, 1, 0), "socket ALG": (41, 38, 5, 0), "socket PACKET": (41, 17, 3, 0),
    "socket NETLINK_NETFILTER": (41, 16, 3, 12), "socketpair TIPC": (53, 30, 1, 0, 0),
    "mount_setattr": (442, 0, 0, 0, 0, 0),
    "fsopen": (430, 0, 0), "pidfd_getfd": (438, 0, 0, 0),
}  # fmt: skip


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the system calls are those of x86-64")
async def test_the_filter_denies_what_it_should(box: DockerExecutor) -> None:
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
allowed = []
for name, (number, *arguments) in {DENIED!r}.items():
    result = libc.syscall(number, *[ctypes.c_long(a) for a in arguments])
    if (result, ctypes.get_errno()) != (-1, 1):
        allowed.append((name, result, ctypes.get_errno()))
allowed, libc.syscall(435, 0, 0), ctypes.get_errno()"""
    assert (await box.python(code)).value == "([], -1, 38)"


def test_the_request_to_the_engine_holds_every_measure() -> None:
    options = BoxOptions(image="x", limits=Limits(), runtime="runsc")
    host = container_config(options, options.image, {}, ["/data"])["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], ["SETUID", "SETGID", "KILL"])
    assert host["SecurityOpt"][0] == "no-new-privileges:true"
    assert '"defaultAction": "SCMP_ACT_ERRNO"' in host["SecurityOpt"][1]
    assert host["Memory"] == host["MemorySwap"] == 512 << 20
    assert (host["PidsLimit"], host["NanoCpus"], host["IpcMode"]) == (128, 10**9, "private")
    assert (host["Init"], host["AutoRemove"], host["LogConfig"]["Type"]) == (True, True, "none")
    assert (host["Runtime"], host["Binds"]) == ("runsc", [])
    assert set(host["Tmpfs"]) == {"/workspace", "/tmp", "/dev/shm", "/data"}


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"memory": "1x"}, "a size is a number of bytes"),
        ({"memory": "32m"}, "at least 64m"),
        ({"pids": 3}, "at least 16"),
        ({"cpus": 0}, "Limits.cpus must be positive"),
        ({"lifetime": float("inf")}, "Limits.lifetime must be positive and finite"),
        ({"workspace": "500m"}, "at most half of memory='512m'"),
        ({"max_output": 10}, "from 1k to 16m"),
        ({"max_file": "65m"}, "at most 64m"),
    ],
)
def test_limits_are_checked(limits: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("network", ["host", "container:abc"])
def test_networks_that_are_refused(network: str) -> None:
    with pytest.raises(ValueError, match="network namespace"):
        DockerExecutor(network=network)


async def test_a_box_is_used_between_start_and_close(image: str) -> None:
    box = DockerExecutor(limits=LIMITS)
    with pytest.raises(SandboxClosedError, match="new"):
        await box.python("1")
    async with box:
        assert await usable(box)
        with pytest.raises(SandboxClosedError, match="started once"):
            await box.start()
    for call in (box.python("1"), box.read_file("x"), box.reset(), box.ping()):
        with pytest.raises(SandboxClosedError, match="closed"):
            await call
    await box.close()


# --- engines and images that are not there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("unix:///nowhere.sock", "apt-get install docker.io"),
        ("tcp://127.0.0.1:9", "apt-get install docker.io"),
        ("ssh://somewhere", "ssh -L"),
    ],
)
async def test_no_engine(host: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(EngineError, match=message) as caught:
        await DockerExecutor().start()
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.usefixtures("nothing_left")
async def test_an_image_that_is_not_there(image: str) -> None:
    with pytest.raises(ImageError, match="has no image 'gymnast-missing'"):
        await DockerExecutor(image="gymnast-missing", pull="never").start()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["rm -f bin/python*"], "has no python3"),
        (["rm -rf lib/python3*/json"], "lacks the standard library's module json"),
    ],
)
async def test_an_unfit_image(engine: Engine, tmp_path: Path, changes: list[str], message: str) -> None:
    name = "gymnast-unfit:latest"
    (tmp_path / "Dockerfile").write_text(
        f"FROM {DEFAULT_IMAGE}\nRUN cd /usr/local && {' && '.join(changes)}\nVOLUME /data\n"
    )
    from gymnast.sandbox.images import build_dockerfile

    await build_dockerfile(engine, tmp_path, name)
    try:
        started = time.monotonic()
        with pytest.raises(ImageError, match=message):
            await DockerExecutor(image=name, limits=LIMITS).start()
        assert time.monotonic() - started < 5
    finally:
        await engine.call(lambda: engine.client.api.remove_image(name, force=True))


@pytest.mark.usefixtures("nothing_left")
async def test_a_runtime_that_is_not_there(image: str) -> None:
    with pytest.raises(EngineError, match="nonsense"):
        await DockerExecutor(runtime="nonsense").start()


# --- loss -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
async def test_a_box_that_is_removed_under_a_call(image: str, engine: Engine) -> None:
    async with DockerExecutor(limits=LIMITS, engine=engine) as box:
        assert box._launched is not None
        running = asyncio.ensure_future(box.python("while True: pass", timeout=30))
        await box_is_busy(box)
        await engine.remove(box._launched.container)
        with pytest.raises(SandboxLostError) as caught:
            await asyncio.wait_for(running, 5)
        assert isinstance(caught.value.result, ExecutionResult)
        assert caught.value.result.status is Status.SANDBOX_LOST
        with pytest.raises(SandboxLostError, match="reset"):
            await box.ping()
        assert "lost" in str(box.retire_reason)
        await box.reset()
        assert await usable(box)
        assert box.retire_reason is None


@pytest.mark.usefixtures("nothing_left")
async def test_a_box_that_does_not_answer_is_given_up(
    image: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandbox.supervised.MARGIN", 0.5)
    async with DockerExecutor(limits=LIMITS, engine=engine) as box:
        assert box._launched is not None
        paused = box._launched.container
        await engine.call(engine.client.api.pause, paused)
        with pytest.raises(SandboxLostError, match="did not answer"):
            await asyncio.wait_for(box.python("1", timeout=0.2), 5)
        await box.reset()
        assert await usable(box)


async def box_is_busy(box: DockerExecutor) -> None:
    """Wait until a call holds the box's turn and its request is on the way."""
    assert await eventually(lambda: box._connection is not None and bool(box._connection._waiting), 5)


@pytest.mark.parametrize("limit", ["idle", "lifetime"])
@pytest.mark.usefixtures("nothing_left")
async def test_a_box_ends_itself_when_its_time_is_over(image: str, limit: str) -> None:
    limits = dataclasses.replace(LIMITS, **{limit: 0.3})
    async with DockerExecutor(limits=limits) as box:
        assert await eventually(lambda: box._connection is None or box._connection.lost is not None, 5)
        with pytest.raises(SandboxLostError, match="lifetime or idle time is over"):
            await box.ping()


async def test_the_death_of_the_owner_ends_the_box(image: str) -> None:
    program = """
import asyncio, signal
from gymnast.sandbox import DockerExecutor
async def main():
    async with DockerExecutor() as box:
        ready = asyncio.ensure_future(box.python("1"))
        await ready
        print("ready", flush=True)
        await box.python("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\\nwhile True: pass", timeout=600)
asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert await asyncio.wait_for(owner.stdout.readline(), 30) == b"ready\n"
        assert len(containers_of(owner.pid)) == 1
    finally:
        owner.kill()
        await owner.wait()
    assert await eventually(lambda: containers_of(owner.pid) == [], 2)


# --- cancellation -----------------------------------------------------------------------------------------------


async def test_a_cancelled_call_leaves_the_box_at_rest(box: DockerExecutor) -> None:
    await box.python("kept = 1")
    running = asyncio.ensure_future(box.python("while True: pass", timeout=60))
    await box_is_busy(box)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await box.python("kept", timeout=5)).value == "1"


async def test_a_cancelled_call_that_ignores_its_interruption(box: DockerExecutor) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await box.python(code, timeout=60)
    assert await usable(box)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("milliseconds", [0, 5, 15, 40, 80, 120, 160, 220, 300, 400])
async def test_a_start_cancelled_at_any_point_leaves_nothing(image: str, milliseconds: int) -> None:
    box = DockerExecutor(limits=LIMITS)
    starting = asyncio.ensure_future(box.start())
    await asyncio.sleep(milliseconds / 1000)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await box.close()


@pytest.mark.usefixtures("nothing_left")
async def test_a_start_that_takes_too_long(image: str) -> None:
    with pytest.raises(SandboxTimeoutError, match=r"start_timeout=0\.1"):
        await DockerExecutor(limits=LIMITS, start_timeout=0.1).start()


# --- many -------------------------------------------------------------------------------------------------------


async def test_calls_on_one_box_take_turns(box: DockerExecutor) -> None:
    results = await asyncio.gather(*(box.python(f"print({n}); {n}") for n in range(20)))
    assert [(result.stdout, result.value) for result in results] == [(f"{n}\n", str(n)) for n in range(20)]


@pytest.mark.usefixtures("nothing_left")
async def test_eight_boxes_at_once(image: str, engine: Engine) -> None:
    async def use(number: int) -> str | None:
        async with DockerExecutor(limits=LIMITS, engine=engine) as box:
            await box.python(f"x = {number}")
            for _ in range(20):
                assert (await box.python("x")).value == str(number)
            await box.reset()
            return (await box.python("'x' in globals()")).value

    assert await asyncio.gather(*(use(number) for number in range(8))) == ["False"] * 8


# --- the reaper -------------------------------------------------------------------------------------------------


async def test_the_reaper_removes_what_dead_owners_left_and_nothing_else(image: str, engine: Engine) -> None:
    dead = owner_module.labels(3600) | {f"{owner_module.LABEL}.pid-started": "1"}
    living = owner_module.labels(3600)
    made = {}
    for name, labels in (("dead", dead), ("living", living)):
        config = container_config(BoxOptions(image=image, limits=LIMITS), image, labels, [])
        made[name] = (
            await engine.call(engine.client.api.create_container_from_config, config, f"gymnast-test-{name}")
        )["Id"]
    try:
        assert await reap(engine) == ["gymnast-test-dead"]
        assert [
            found["Id"] for found in await engine.call(engine.client.containers) if found["Id"] in made.values()
        ] == [made["living"]]
    finally:
        await engine.remove(made["living"])


@pytest.mark.parametrize(
    ("change", "abandoned"),
    [
        ({}, False),
        ({"boot": "another"}, True),
        ({"host": "another", "boot": "another"}, False),
        ({"namespace": "another", "pid": "1"}, False),
        ({"pid": "4194303"}, True),
        ({"created": "1000"}, True),
        ({"created": "nonsense"}, False),
    ],
)
def test_who_is_dead(change: dict[str, str], abandoned: bool) -> None:
    labels = owner_module.labels(3600) | {f"{owner_module.LABEL}.{key}": value for key, value in change.items()}
    assert owner_module.is_abandoned(labels) is abandoned
