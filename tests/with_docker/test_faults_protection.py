"""Code cannot reach the supervisor, the host, the network, or other users' rights. Seen from inside a box."""

from __future__ import annotations

import os

import pytest

from gymnast.sandbox import DockerExecutor, Limits, Status
from gymnast.sandbox.docker.options import BoxOptions, container_config

from ..sandbox.boxes import LIMITS, usable

ATTEMPT = """
import os, signal, socket, resource
def attempt(call):
    try: call()
    except OSError as error: return type(error).__name__
    return "done"
"""


# --- the supervisor and other processes -------------------------------------------------------------------------


@pytest.mark.fault(30)
async def test_the_supervisor_and_init_cannot_be_signalled(box: DockerExecutor) -> None:
    code = """
numbers = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, 0)
{attempt(lambda: os.kill(pid, number)) for pid in (1, os.getppid()) for number in numbers}"""
    assert (await box.python(ATTEMPT + code)).value == "{'PermissionError'}"
    group = await box.python(ATTEMPT + "attempt(lambda: os.killpg(os.getpgid(os.getppid()), 9)), os.getppid()")
    assert group.value is not None
    assert group.value.startswith("('PermissionError'")
    assert await usable(box)


@pytest.mark.fault(30)
async def test_kill_minus_one_kills_only_processes_of_the_code(box: DockerExecutor) -> None:
    """The kernel spares the sender. All other processes of the code die, and no process of anyone else."""
    supervisor = (await box.python("import os; os.getppid()")).value
    shell = (await box.bash("sleep 1000 & kept=1; echo $$")).stdout.strip()
    # Each waits until the other session is gone: a call during its death would report that death.
    code = f"import os; os.kill(-1, 9)\nwhile os.path.exists('/proc/{shell}'): pass\nos.getpid()"
    result = await box.python(code, timeout=20)
    assert result.status is Status.OK
    assert await usable(box)
    command = f"kill -9 -1; while [ -d /proc/{result.value} ]; do :; done; echo survived"
    begun_anew = await box.bash("echo [$kept]; pgrep sleep || echo none")
    assert (begun_anew.stdout, begun_anew.state_lost) == ("[]\nnone\n", True)
    assert (await box.bash(command, timeout=20)).stdout == "survived\n"
    after = await box.python("import os; os.getppid()")
    assert (after.value, after.state_lost) == (supervisor, True)


@pytest.mark.fault(31)
async def test_other_processes_cannot_be_read(box: DockerExecutor) -> None:
    code = """
names = ("environ", "mem", "maps", "fd/0", "cwd", "root", "exe", "io", "stack", "syscall", "auxv", "ns/net")
{(pid == 1, name): attempt(lambda: os.open(f"/proc/{pid}/{name}", os.O_RDONLY)) for pid in (1, os.getppid())
 for name in names if attempt(lambda: os.open(f"/proc/{pid}/{name}", os.O_RDONLY)) != "PermissionError"}"""
    assert (await box.python(ATTEMPT + code)).value == "{}"
    change = """
ppid = os.getppid()
[attempt(lambda: resource.prlimit(ppid, resource.RLIMIT_NOFILE, (10, 10))),
 attempt(lambda: os.sched_setaffinity(ppid, {0})), attempt(lambda: os.setpriority(os.PRIO_PROCESS, ppid, 19)),
 attempt(lambda: open(f"/proc/{ppid}/oom_score_adj", "w").write("1000")),
 attempt(lambda: open(f"/proc/{ppid}/comm", "w").write("x"))]"""
    assert (await box.python(ATTEMPT + change)).value == str(["PermissionError"] * 5)


@pytest.mark.fault(31)
async def test_the_host_is_not_visible(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    async with DockerExecutor(limits=LIMITS) as box:
        everything = await box.bash(
            "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; hostname; cat /proc/*/cmdline; ls -a / /root 2>&1"
        )
        assert "PATH=" in everything.stdout
        assert "hunter2" not in everything.stdout
        assert os.uname().nodename not in everything.stdout
        names = (await box.python("import os; print(*os.environ)")).stdout.split()
        assert not [name for name in names if name.startswith(("HOST_", "DOCKER", "PYTEST"))]


# --- the network ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["localhost", "socket.gethostname()"])
async def test_a_server_in_the_box_is_reached_by_name(box: DockerExecutor, name: str) -> None:
    code = f"""
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(({name if "(" in name else repr(name)}, server.getsockname()[1]), 2)
client.send(b"hello"), server.accept()[0].recv(9)"""
    result = await box.python(code, timeout=5)
    assert result.value == "(5, b'hello')", result.stderr


async def test_each_box_has_its_own_loopback(box: DockerExecutor, image: str) -> None:
    await box.python("import socket; server = socket.create_server(('127.0.0.1', 8124))")
    connect = "import socket; socket.create_connection(('127.0.0.1', 8124), 1).close()"
    async with DockerExecutor(limits=LIMITS) as other:
        assert (await other.python(connect)).stderr.endswith("ConnectionRefusedError: [Errno 111] Connection refused\n")
    assert (await box.python(connect)).ok


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    "socket",
    [
        "AF_INET, SOCK_RAW, IPPROTO_ICMP",
        "AF_INET6, SOCK_RAW, 58",
        "AF_PACKET, SOCK_RAW, 3",
        "AF_VSOCK, SOCK_STREAM",
        "AF_ALG, SOCK_SEQPACKET",
        "AF_NETLINK, SOCK_RAW, 12",
        "31, SOCK_RAW",
        "AF_CAN, SOCK_RAW",
        "AF_TIPC, SOCK_STREAM",
        "AF_QIPCRTR, SOCK_DGRAM",
        "44, SOCK_RAW",
    ],
)
async def test_odd_sockets_are_denied(box: DockerExecutor, socket: str) -> None:
    code = f"from socket import *\nsocket({socket})"
    result = await box.python(code)
    assert result.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")


# --- rights -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    "call",
    [
        "os.setuid(0)",
        "os.setgid(0)",
        "os.setgroups([0])",
        "os.setresuid(0, 0, 0)",
        "os.seteuid(65534)",
        "os.chroot('/tmp')",
        "os.nice(-1)",
        "os.mknod('x', 0o20600, os.makedev(1, 3))",
        "os.chown('.', 0, 0)",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
        "open('/proc/sys/kernel/hostname', 'w')",
        "open('/proc/self/oom_score_adj', 'w').write('-1000')",
        "open('/proc/sysrq-trigger', 'w')",
        "open('/dev/mem')",
    ],
)
async def test_rights_cannot_be_gained(box: DockerExecutor, call: str) -> None:
    result = await box.python(f"import os, resource; {call}")
    assert result.status is Status.ERROR
    last = result.stderr.splitlines()[-1]
    assert last.startswith(("PermissionError: ", "OSError: [Errno 30]", "FileNotFoundError: ")) or (
        "not allowed to raise maximum limit" in last
    )


@pytest.mark.fault(33)
async def test_a_setuid_program_gains_no_rights(box: DockerExecutor) -> None:
    """A set-uid bit has no effect, whether the code sets it or the image has it."""
    setuid = "cp /bin/bash mine; chmod 6755 mine; ./mine -p -c 'id -u'; find / -xdev -perm /6000 -type f 2>/dev/null"
    result = await box.bash(setuid, timeout=30)
    assert result.stdout.splitlines()[0] == str(box._user)
    for tool in ("unshare -U true", "mount -t tmpfs x /tmp", "su -c id", "nsenter -t 1 -m true"):
        refused = await box.bash(tool, timeout=20)
        assert refused.status is Status.ERROR, tool


async def test_limits_and_mounts(box: DockerExecutor) -> None:
    assert "Read-only file system" in (await box.bash("touch /etc/x /usr/bin/x /x 2>&1")).stdout
    cgroup = "cat /sys/fs/cgroup/{memory/memory.limit_in_bytes,memory.max,pids/pids.max,pids.max} 2>/dev/null"
    assert (await box.bash(cgroup)).stdout.split() == [str(256 << 20), "64"]
    assert (await box.bash("cut -d: -f3 /proc/self/cgroup | sort -u")).stdout == "/\n"  # not the host's
    assert (await box.bash("ulimit -c; ulimit -n")).stdout.split() == ["0", "1024"]
    mounts = (await box.bash("cat /proc/mounts")).stdout
    for path in ("/workspace", "/tmp", "/dev/shm"):
        [line] = [line for line in mounts.splitlines() if f" {path} " in line]
        assert {"nosuid", "nodev", "rw"} <= set(line.split()[3].split(","))
    assert "docker.sock" not in mounts
    assert (await box.bash("ls /sys/fs/cgroup/*; find /sys/fs/cgroup -writable 2>/dev/null | wc -l")).stdout.endswith(
        "\n0\n"
    )


# --- objects that outlive processes -----------------------------------------------------------------------------

SHARED_MEMORY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)]
made, ctypes.get_errno()"""


@pytest.mark.fault(34)
async def test_system_v_objects_are_denied(box: DockerExecutor) -> None:
    assert (await box.python(SHARED_MEMORY)).value == "([-1, -1, -1], 1)"
    assert (await box.bash("cat /proc/sysvipc/{shm,sem,msg} | wc -l")).stdout == "3\n"  # the headings


@pytest.mark.fault(34)
async def test_a_box_with_system_v_objects_left_behind_is_replaced(image: str) -> None:
    """Another filter may allow them."""
    async with DockerExecutor(limits=LIMITS, seccomp="unconfined") as box:
        old = box._launched
        made = await box.python(SHARED_MEMORY)
        assert made.value is not None
        assert "-1" not in made.value
        await box.reset()
        assert box._launched is not old
        assert (await box.bash("cat /proc/sysvipc/{shm,sem,msg} | wc -l")).stdout == "3\n"
        assert box.retire_reason is None
        old = box._launched
        await box.reset()
        assert box._launched is old


# --- the request to the engine ----------------------------------------------------------------------------------


def test_the_request_to_the_engine_holds_every_measure() -> None:
    options = BoxOptions(limits=Limits(), runtime="runsc")
    config = container_config(options, "x", {}, ["/data"])
    host = config["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert "NetworkDisabled" not in config
    assert host["ReadonlyRootfs"] is True
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], ["SETUID", "SETGID", "KILL"])
    assert host["SecurityOpt"][0] == "no-new-privileges:true"
    assert '"defaultAction": "SCMP_ACT_ERRNO"' in host["SecurityOpt"][1]
    assert host["Memory"] == host["MemorySwap"] == 512 << 20
    assert (host["PidsLimit"], host["CpuQuota"], host["IpcMode"]) == (128, 100_000, "private")
    assert (host["Init"], host["AutoRemove"], host["LogConfig"]["Type"]) == (True, True, "none")
    assert (host["Runtime"], host["Binds"]) == ("runsc", [])
    assert set(host["Tmpfs"]) == {"/workspace", "/tmp", "/dev/shm", "/dev/mqueue", "/data"}
    assert host["CgroupnsMode"] == "private"
    assert not {"Devices", "Privileged", "PidMode", "UsernsMode", "Mounts", "CgroupParent"} & set(host)
