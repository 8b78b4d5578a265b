"""Checks of processes, threads and descriptors of the code, and of the two sessions side by side."""

from __future__ import annotations

from ...base import Executor, Status
from .checks import CODE, box_check, expect, require, require_usable


@box_check(CODE)
async def only_the_parent_answers_after_a_fork(box: Executor) -> None:
    """A forked child that goes on after the code gives no second answer."""
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\npid > 0"
    expect(await box.python(code), status=Status.OK, value="True", state_lost=False)
    for number in range(3):
        expect(await box.python(f"print({number}); {number}"), stdout=f"{number}\n", value=str(number))


@box_check(CODE)
async def threads_and_processes_work(box: Executor) -> None:
    """Threads, process pools and subprocesses run, and functions that a call defines can be pickled."""
    code = """
import multiprocessing, pickle, subprocess, sys, threading
def square(n): return n * n
with multiprocessing.get_context("fork").Pool(2) as pool:
    pooled = pool.map(square, range(4))
threads = [threading.Thread(target=square, args=(1,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
said = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout
pooled, pickle.loads(pickle.dumps(square))(5), said"""
    expect(await box.python(code), status=Status.OK, value="([0, 1, 4, 9], 25, '42\\n')")


@box_check(CODE)
async def a_late_thread_speaks_in_the_next_result(box: Executor) -> None:
    """The output of an earlier call's thread comes at the front of the next call's output."""
    code = "import threading\ngo = threading.Event()\n"
    code += "t = threading.Thread(target=lambda: (go.wait(), print('late')))\nt.start()\nprint('first')"
    expect(await box.python(code), stdout="first\n")
    expect(await box.python("go.set(); t.join(); print('now')"), stdout="late\nnow\n")


@box_check(CODE)
async def closed_descriptors_are_survived(box: Executor) -> None:
    """Code that closes all its descriptors harms only its own session, and a lost session is reported."""
    result = await box.python("import os; kept = 1; os.closerange(0, 300)")
    after = await box.python("'kept' in globals()")
    kept = str(not (result.state_lost or after.state_lost))
    expect(after, status=Status.OK, value=kept)
    await require_usable(box)


@box_check(CODE)
async def garbage_on_the_channel_is_noticed(box: Executor) -> None:
    """Code that writes to every descriptor either reaches no channel or is reported for tampering."""
    code = """
import os, stat, time
kept = 1
for fd in range(3, 256):
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode): os.write(fd, b"\\xff" * 64)
    except OSError: pass
time.sleep(0.2)"""
    result = await box.python(code)
    tampered = result.status is Status.PROTOCOL
    expect(result, status=Status.PROTOCOL if tampered else Status.OK, state_lost=tampered)
    expect(await box.python("'kept' in globals()"), value=str(not tampered))
    require(not tampered or box.retire_reason is not None, "a box that was tampered with should give a retire_reason")
    await require_usable(box)


@box_check(CODE)
async def both_sessions_share_files_and_nothing_else(box: Executor) -> None:
    """Python and Bash begin in the same directory, and neither's directory or environment is the other's."""
    await box.bash("echo 1 > shared; mkdir elsewhere; cd elsewhere; export ONLY_SHELL=1")
    expect(await box.python("import os; open('shared').read(), 'ONLY_SHELL' in os.environ"), value="('1\\n', False)")
    await box.python("os.environ['ONLY_PYTHON'] = '1'; os.chdir('/')")
    expect(await box.bash("basename $PWD; echo [$ONLY_PYTHON]"), stdout="elsewhere\n[]\n")
