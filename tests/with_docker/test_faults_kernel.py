"""Kernel resources that boxes share through a user id, and that the leases of one box share: files, ports, sockets."""

from __future__ import annotations

import ast

import pytest

from gymnast.sandbox import DockerExecutor, Engine, Limits, Status

from ..sandbox import faults
from ..sandbox.boxes import LIMITS, usable
from ..sandbox.faults import RealBox, docker_only

kind, shared_box, box = faults.kind, faults.shared_box, faults.box

# --- among boxes --------------------------------------------------------------------------------------------------

USE_UP = """
import ctypes, fcntl, os
libc = ctypes.CDLL(None)
watchers = []
while (watcher := libc.inotify_init()) >= 0:
    watchers.append(watcher)
pipes = [os.pipe() for _ in range(66)]
for _, end in pipes:
    try: fcntl.fcntl(end, 1031, 1 << 20)  # F_SETPIPE_SZ
    except PermissionError: break
while len(pipes) < 200 and fcntl.fcntl(pipes[-1][1], 1032) == 1 << 16: pipes.append(os.pipe())  # F_GETPIPE_SZ
len(watchers) > 0, fcntl.fcntl(pipes[-1][1], 1032)"""

ASK = """
import ctypes, fcntl, os
ctypes.CDLL(None).inotify_init() >= 0, fcntl.fcntl(os.pipe()[1], 1032)  # F_GETPIPE_SZ"""


async def test_a_box_does_not_use_up_the_kernel_limits_of_a_user(image: str, engine: Engine) -> None:
    """Inotify instances and the pages of pipes are counted for a user id, in all containers together."""
    async with DockerExecutor(limits=LIMITS, engine=engine) as one, DockerExecutor(limits=LIMITS, engine=engine) as two:
        used = await one.python(USE_UP, timeout=20)
        assert used.value is not None, used.stderr
        assert ast.literal_eval(used.value)[1] < 1 << 16  # only its own pipes have become small
        assert (await two.python(ASK)).value == str((True, 1 << 16))


async def test_live_boxes_have_different_users_that_the_host_does_not_use(image: str, engine: Engine) -> None:
    async with DockerExecutor(limits=LIMITS, engine=engine) as one, DockerExecutor(limits=LIMITS, engine=engine) as two:
        users = [int((await box.bash("id -u; exit 0")).stdout) for box in (one, two)]
        assert users[0] != users[1]
        assert min(users) >= 20_000
        before = users[0]
        await one.reset()
        assert int((await one.bash("id -u")).stdout) == before


# --- among the leases of a box ------------------------------------------------------------------------------------

MARK_INPUT = """
import fcntl, os, struct
fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
fcntl.fcntl(0, 10, 33)  # F_SETSIG
fcntl.fcntl(0, 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 100, 7, 0))  # F_OFD_SETLK: a read lock
"""
LOOK_AT_INPUT = """
import fcntl, os, struct
other = os.open("/dev/null", os.O_RDWR)  # sees the locks of all other openings
found = fcntl.fcntl(other, 36, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 100, 7, 0))  # F_OFD_GETLK: whose lock is there?
kind, _, start, length, _ = struct.unpack("hhqqi4x", found)
flags = fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK)
flags, fcntl.fcntl(0, 11), kind != fcntl.F_UNLCK and (start, length) == (100, 7)"""


@pytest.mark.fault(48)
@pytest.mark.parametrize("session", ["python", "bash"])
async def test_standard_input_carries_nothing_to_the_next_lease(box: RealBox, session: str) -> None:
    if session == "python":
        marked = await box.python(MARK_INPUT)
    else:
        await box.write_file("mark.py", MARK_INPUT)
        marked = await box.bash("python3 mark.py </proc/self/fd/0; python3 mark.py")
    assert (marked.status, marked.stdout) == (Status.OK, ""), marked.stderr
    if session == "python":
        assert (await box.python(LOOK_AT_INPUT)).value != "(0, 0, False)"
    else:
        assert (await box.python(LOOK_AT_INPUT)).value == "(0, 0, False)"  # the other session has a different input
    await box.reset()
    assert (await box.python(LOOK_AT_INPUT)).value == "(0, 0, False)"


SEEN_TIMES = """
import os, tempfile
[(status.st_atime_ns, status.st_mtime_ns) for status in
 map(os.stat, (os.environ["HOME"], tempfile.gettempdir()))]"""


@pytest.mark.fault(48)
async def test_the_times_of_folders_do_not_cross_a_reset(box: RealBox) -> None:
    mark = "import os\nos.utime(os.environ['HOME'], ns=(4242424242000000007, 4242424242000000008))"
    assert (await box.python(mark)).ok
    marked = (await box.python(SEEN_TIMES)).value
    assert "4242424242000000008" in str(marked)
    await box.reset()
    after = (await box.python(SEEN_TIMES)).value
    assert "424242424" not in str(after)
    await box.reset()
    later = (await box.python(SEEN_TIMES)).value
    assert min(ast.literal_eval(str(later))) > max(ast.literal_eval(str(after)))  # all have the time of the last reset


@docker_only
async def test_ports_do_not_cross_a_reset(box: RealBox) -> None:
    """If a server closes a connection first, its port stays in use for another minute."""
    serve = """
import socket
server = socket.socket()
server.bind(("127.0.0.1", 8042)); server.listen()
client = socket.create_connection(("127.0.0.1", 8042))
connection, _ = server.accept()
connection.close(); client.recv(1); client.close(); server.close()"""
    assert (await box.python(serve)).ok
    await box.reset()
    again = await box.python(serve)
    assert again.ok, again.stderr
    again = await box.python(serve)
    assert again.ok, again.stderr


@docker_only
@pytest.mark.fault(34)
async def test_no_message_queue_can_be_made(box: RealBox) -> None:
    made = await box.python("open('/dev/mqueue/mark', 'w')")
    assert made.stderr.endswith("PermissionError: [Errno 13] Permission denied: '/dev/mqueue/mark'\n")


# --- processes and pipes of an odd kind ---------------------------------------------------------------------------

HEADLESS = """
import ctypes, threading, time
def work():
    while True:
        with open("ticks", "a") as file: file.write("x")
        time.sleep(0.001)
threading.Thread(target=work).start()
while True:  # this thread ends, and with it, for the kernel, the process: it is a zombie with a thread
    ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_process_whose_first_thread_has_ended_dies_at_the_timeout_too(box: RealBox) -> None:
    await box.write_file("headless.py", HEADLESS)
    code = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "headless.py"], start_new_session=True)
while open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[0] != "Z" or not os.path.exists("ticks"): pass
print(len(os.listdir(f"/proc/{child.pid}/task")) > 1)
while True: pass"""
    result = await box.python(code, timeout=1.5)
    assert (result.status, result.stdout) == (Status.TIMEOUT, "True\n"), result
    size = "import os; os.path.getsize('ticks')"
    before = (await box.python(size)).value
    await box.bash("sleep 0.05")
    assert (await box.python(size)).value == before


async def test_output_written_in_packets_comes_with_its_own_call(box: RealBox) -> None:
    """In packet mode (O_DIRECT) a pipe gives one write at a time, however large the read."""
    await box.python("import fcntl, os; fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)")
    for number in range(3):
        result = await box.python(f"for _ in range(40): os.write(1, b'{number}')")
        assert result.stdout == str(number) * 40
    assert await usable(box)


# --- processor time -----------------------------------------------------------------------------------------------

# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.fault(23)
async def test_the_smallest_box_survives_as_many_files_as_it_may_have(image: str) -> None:
    """Names take memory, just as contents do."""
    limits = Limits(memory="64m", workspace="16m", tmp="8m", shm="8m", grace=0.3)
    code = """
import os
for folder in ("/workspace", "/tmp"):
    try:
        for number in range(1 << 20): os.close(os.open(f"{folder}/{number:0200}", os.O_CREAT))
    except OSError as error: print(error.errno)
try:
    with open("/dev/shm/full", "wb") as file:
        while True: file.write(bytes(1 << 16))
except OSError as error: print(error.errno)"""
    async with DockerExecutor(limits=limits) as box:
        launched = box._launched
        result = await box.bash(f"python3 -I -S -c '{code}'", timeout=60)
        assert result.stdout.split()[:1] in (["28"], []), result
        await box.reset()
        assert await usable(box)
        assert result.status is Status.ERROR or box._launched is launched


@pytest.mark.parametrize(("memory", "workspace", "size"), [("64m", "24m", 23), ("96m", "40m", 32)])
async def test_a_small_box_takes_and_gives_files_of_the_largest_size(
    image: str, memory: str, workspace: str, size: int
) -> None:
    """Files move in pieces, because there is no memory for a copy. The sessions of the agent go on."""
    limits = Limits(memory=memory, workspace=workspace, tmp="4m", shm="4m", max_file="32m", grace=0.3)
    async with DockerExecutor(limits=limits) as box:
        await box.python("kept = 1")
        await box.bash("kept=1")
        data = bytes(range(256)) * (size << 12)
        await box.write_file("large", data)
        assert await box.read_file("large") == data
        await box.write_file("large", b"short")
        assert await box.read_file("large") == b"short"
        assert (await box.python("kept")).value == "1"
        assert (await box.bash("echo $kept")).stdout == "1\n"
        assert box.retire_reason is None
