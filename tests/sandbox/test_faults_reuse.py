"""One box, two episodes: the second sees no session, file, process or limit that the first one changed."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from gymnast.sandbox import DockerExecutor, Executor, ExecutorPool, LocalExecutor

from . import faults
from .faults import RealBox
from .pools import inner

kind, shared_box, box = faults.kind, faults.shared_box, faults.box

LOOK = """
import builtins, gc, json, locale, os, resource, signal, socket, sys, tempfile, threading, time
def handler(number):
    found = signal.getsignal(number)
    return getattr(found, "__qualname__", str(found))
def lines(path):
    try: return open(path).read().splitlines()
    except OSError as error: return type(error).__name__
print(dict(
    names=sorted(set(globals()) - {"LOOK"}),
    builtins=len(vars(builtins)), modules=hasattr(sys, "mark"), path=sys.path, recursion=sys.getrecursionlimit(),
    threads=threading.active_count(), hooks=[sys.excepthook is sys.__excepthook__, sys.gettrace() is None],
    descriptors=sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    environment=dict(os.environ), cwd=os.getcwd(), umask=os.umask(os.umask(0o22)),
    limits={name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")},
    nice=os.getpriority(os.PRIO_PROCESS, 0), affinity=sorted(os.sched_getaffinity(0)), policy=os.sched_getscheduler(0),
    handlers=[handler(number) for number in sorted(signal.valid_signals())],
    mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), pending=sorted(signal.sigpending()),
    timer=signal.getitimer(signal.ITIMER_REAL), timeout=socket.getdefaulttimeout(), locale=locale.setlocale(0),
    personality=lines("/proc/self/personality"), oom=lines("/proc/self/oom_score_adj"),
    workspace=sorted(os.listdir(os.environ["HOME"])), temporary=os.listdir(tempfile.gettempdir()),
    mode=oct(os.stat(os.environ["HOME"]).st_mode), attributes=os.listxattr(os.environ["HOME"]),
))
"""

IN_A_CONTAINER = """
def commands():
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid(): yield "".join(lines(f"/proc/{pid}/cmdline"))[:40]
print(dict(
    processes=sorted(commands()), shm=os.listdir("/dev/shm"), sysv=[lines("/proc/sysvipc/" + name) for name in
    ("shm", "sem", "msg")], sockets=lines("/proc/net/unix")[1:],
    locks=[lock for lock in lines("/proc/locks") if " -1 " not in lock],  # -1: of other processes of the machine
    keys=lines("/proc/keys"), hostname=socket.gethostname(), own=oct(os.stat("/tmp").st_mode),
    mounts=lines("/proc/mounts"),
))
"""

CHANGE = """
import builtins, ctypes, locale, os, resource, signal, socket, subprocess, sys, tempfile, threading
x = sys.mark = builtins.mark = 1
builtins.print = print = lambda *a: None
sys.path.append("/mark"); sys.setrecursionlimit(5000); sys.excepthook = lambda *a: None
os.environ["MARK"] = "1"; os.environ["PATH"] = "/tmp:" + os.environ["PATH"]
open(os.environ["HOME"] + "/sitecustomize.py", "w").write("import sys; sys.mark = 1")
open(os.environ["HOME"] + "/.bashrc", "w").write("mark=1")
os.umask(0o077); resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50)); resource.setrlimit(resource.RLIMIT_CPU, (90, 99))
signal.signal(signal.SIGUSR1, lambda *a: None); signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.kill(os.getpid(), signal.SIGUSR2)
signal.setitimer(signal.ITIMER_REAL, 500); os.nice(3); os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
socket.setdefaulttimeout(3); locale.setlocale(locale.LC_ALL, "C")
libc = ctypes.CDLL(None); libc.shmget(0, 4096, 0o1600); libc.prctl(38, 1, 0, 0, 0); libc.personality(0x20000)
file = open(tempfile.gettempdir() + "/kept", "w"); os.chmod(os.environ["HOME"], 0o711)
threading.Thread(target=threading.Event().wait, daemon=True).start()
for start_new_session in (False, True): subprocess.Popen(["sleep", "1000"], start_new_session=start_new_session)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: signal.pause()
    os._exit(0)
unix = socket.socket(socket.AF_UNIX); unix.bind("\\0mark"); os.chdir("/")
"""

SHELL = (
    "echo [$mark] $-; shopt; alias; declare -F; trap; pwd; umask; ulimit -a; export -p; jobs; set -o; ls -A; type ls"
)

CHANGE_SHELL = """
mark=1; export MARK=1; f() { :; }; declare() { :; }; alias say=echo; trap 'echo trapped' USR1 EXIT
set -f; shopt -s nullglob
umask 077; ulimit -n 60; touch file; mkdir -p a/b; cd a/b; sleep 1001 & sleep 1002 & disown; exec 7>/tmp/open
"""


async def seen(box: Executor, kind: str) -> list[Any]:
    """Everything that an episode can see of its box."""
    looks = [await box.python(LOOK)]
    if kind == "docker":
        looks.append(await box.python(IN_A_CONTAINER))
    shell = await box.bash(SHELL)
    assert all(look.ok for look in looks), looks
    return [*(ast.literal_eval(look.stdout) for look in looks), (shell.stdout, shell.stderr, shell.state_lost)]


def identity(box: Executor) -> object:
    """The identity of a container, or of a supervisor on this machine."""
    executor = inner(box)
    assert isinstance(executor, DockerExecutor | LocalExecutor)
    return executor._launched if isinstance(executor, DockerExecutor) else executor._process


@pytest.mark.fault(48)
async def test_nothing_crosses_from_an_episode_to_the_next_in_one_box(kind: str) -> None:
    async with ExecutorPool(faults.recipe(kind, files={"task.txt": "given"}), max_boxes=1) as pool:
        async with pool.lease() as box:
            first, fresh = identity(box), await seen(box, kind)
        async with pool.lease() as box:
            assert await seen(box, kind) == fresh
            changed = await box.python(CHANGE)
            assert changed.ok, changed.stderr
            assert (await box.bash(CHANGE_SHELL)).ok
            await box.write_file("task.txt", "changed")
            assert "x" in ((await box.python("' '.join(globals())")).value or "").split()
        async with pool.lease() as box:
            assert identity(box) is first
            assert await seen(box, kind) == fresh
            assert await box.read_file("task.txt") == b"given"
        assert (pool.statistics.created, pool.statistics.reused) == (1, 2)


SEARCH = """
import gc, sys
wanted = "OF THE " + "FIRST"
level, seen, found = gc.get_objects(), set(), []
frame = sys._getframe()
while frame:
    level.append(dict(frame.f_locals))
    frame = frame.f_back
while level:
    for thing in level:
        seen.add(id(thing))
        text = bytes(thing).decode("latin-1") if isinstance(thing, (bytes, bytearray)) else thing
        if isinstance(text, str) and wanted in text and text != wanted:
            found.append(text[:80])
    level = [other for thing in level for other in gc.get_referents(thing) if id(other) not in seen]
found
"""


@pytest.mark.fault(48)
async def test_no_object_of_an_episode_is_in_the_session_of_the_next(box: RealBox) -> None:
    """The next session is forked from the supervisor, which has handled all calls of the first episode."""
    assert (await box.python(SEARCH)).value == "[]"
    await box.write_file("file", "a file OF THE FIRST")
    assert (await box.python("'a value OF THE FIRST'")).ok
    assert (await box.bash("echo an output OF THE FIRST")).ok
    assert await box.read_file("file") == b"a file OF THE FIRST"
    assert "OF THE FIRST" in ((await box.python(SEARCH)).value or "")  # its own session has the object
    await box.read_file("file")
    await box.reset()
    assert (await box.python(SEARCH)).value == "[]"
