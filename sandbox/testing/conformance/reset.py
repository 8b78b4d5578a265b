"""Checks of `reset`, after which a box is as it was at its start."""

from __future__ import annotations

from ...base import Executor, Status
from .checks import CODE, box_check, expect, require, require_usable
from .python import IGNORE


@box_check()
async def reset_removes_files(box: Executor) -> None:
    """No file or folder of the workspace crosses a reset."""
    for path in ("f", "a/b/c", "-rf", "new\nline"):
        await box.write_file(path, "x")
    await box.reset()
    left = await box.list_files(recursive=True)
    require(left == [], f"a reset left {left}")


@box_check(CODE)
async def reset_removes_files_that_resist(box: Executor) -> None:
    """A reset removes locked folders, links, pipes, temporary files and folders nested beyond the longest path."""
    path = (await box.python("import tempfile; tempfile.mkstemp(prefix='conformance-')[1]")).value
    await box.bash("mkdir -p d/e; touch d/e/f; ln -s / link; mkfifo pipe; touch $'new\\nline' ./-rf; chmod 0 d/e d")
    deep = "import os\nfor _ in range(60):\n    os.mkdir('n' * 200); os.chdir('n' * 200)\nopen('f', 'w').close()"
    expect(await box.python(deep), status=Status.OK)
    await box.bash("chmod 0 .")
    await box.reset()
    left = await box.list_files(recursive=True)
    require(left == [], f"a reset left {left}")
    expect(await box.bash("touch f && ls"), stdout="f\n")
    expect(await box.python(f"import os; os.path.exists({path})"), value="False")


@box_check(CODE)
async def reset_forgets_pythons_state(box: Executor) -> None:
    """Variables, changed modules, environment, directory, mask and limits are those of a new session."""
    look = "import builtins, os, resource, sys\nlook = lambda: (sorted(set(globals()) - {'look', '__builtins__'}), "
    look += "hasattr(sys, 'mark'), hasattr(builtins, 'mark'), dict(os.environ), os.getcwd(), os.umask(0o22), "
    look += "resource.getrlimit(resource.RLIMIT_NOFILE), sys.path)\nlook()"
    fresh = await box.python(look)
    expect(fresh, status=Status.OK)
    change = "x = 1; sys.mark = builtins.mark = 1; os.environ['MARK'] = '1'; sys.path.append('mark')\n"
    change += "os.chdir('/'); u = os.umask(0o77); resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))"
    expect(await box.python(change), status=Status.OK)
    await box.reset()
    expect(await box.python(look), status=Status.OK, value=fresh.value, state_lost=False)


@box_check(CODE)
async def reset_forgets_the_shells_state(box: Executor) -> None:
    """Variables, functions, options, directory, mask and environment are those of a new shell."""
    look = "echo [$x] $-; type f 2>&1; basename $PWD; umask; export -p"
    fresh = await box.bash(look)
    await box.bash("mkdir d; x=1; f() { :; }; set -f; cd d; umask 0; export MARK=1")
    await box.reset()
    expect(await box.bash(look), stdout=fresh.stdout, state_lost=False)


@box_check(CODE)
async def reset_ends_processes(box: Executor) -> None:
    """Background jobs, children of Python, and daemons that left their session are gone."""
    expect(await box.bash("sleep 1000 & echo $! >> pids; (sleep 1001 & echo $! >> pids)"), status=Status.OK)
    code = """
import subprocess
child = subprocess.Popen(["sleep", "1002"], start_new_session=True)
print(child.pid, file=open("pids", "a"))
subprocess.run(["bash", "-c", "sleep 1003 & echo $! >> pids"], start_new_session=True).returncode"""
    expect(await box.python(code), status=Status.OK, value="0")
    pids = (await box.read_file("pids")).decode().split()
    require(len(pids) == 4, f"the shell and Python should have started two processes each, got {pids}")
    await box.reset()
    look = f"""
import os
def command(pid):
    try: return open(f"/proc/{{pid}}/cmdline", "rb").read().decode()
    except OSError: return ""
[pid for pid in {pids} if command(pid).startswith("sleep")]"""
    expect(await box.python(look), value="[]")


@box_check(CODE)
async def reset_cures_a_session_that_was_killed(box: Executor) -> None:
    """After hard kills, crashes and an exited shell, a reset gives a fresh box; it may be repeated."""
    await box.python(IGNORE + "while True: pass", timeout=0.2)
    await box.python("import os; os._exit(1)")
    await box.bash("exit 1")
    for _ in range(3):
        await box.reset()
    await require_usable(box)
    require(box.retire_reason is None, f"retire_reason after a reset is {box.retire_reason!r}")
