"""Checks that code has no privileges, and reaches neither the network nor anything of the host."""

from __future__ import annotations

import os

from ...base import Executor, Status
from ...errors import SandboxFileError
from .checks import CODE, ISOLATION, box_check, expect, raises, require, require_usable

_REFUSED = """
def refused(call):
    try: call()
    except OSError: return True
    return False"""


@box_check(CODE, ISOLATION)
async def nothing_of_the_hosts_environment_is_seen(box: Executor) -> None:
    """The code sees no environment variable of the host, neither its own nor in another process."""
    os.environ["GYMNAST_CONFORMANCE"] = "hunter2"
    try:
        async with box.clone() as other:
            everything = await other.bash("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
    finally:
        del os.environ["GYMNAST_CONFORMANCE"]
    require("hunter2" not in everything.stdout, "the code sees an environment variable of the host")


@box_check(CODE, ISOLATION)
async def there_is_no_network(box: Executor) -> None:
    """There is no interface but the loopback, no route to any address, and no name service."""
    code = f"""{_REFUSED}
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # sends nothing, and asks for a route
(refused(lambda: udp.connect(("192.0.2.1", 53))), refused(lambda: socket.getaddrinfo("example.com", 80)),
 [name for _, name in socket.if_nameindex() if name != "lo"])"""
    expect(await box.python(code), value="(True, True, [])")


@box_check(CODE, ISOLATION)
async def the_code_has_no_privileges(box: Executor) -> None:
    """The code is not root, cannot become root, and has no capability."""
    code = f"""{_REFUSED}
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
(os.getuid() != 0, refused(lambda: os.setuid(0)), refused(lambda: os.chroot("/")), int(status["CapEff"], 16),
 int(status["NoNewPrivs"]))"""
    expect(await box.python(code), value="(True, True, True, 0, 1)")


@box_check(CODE, ISOLATION)
async def the_system_cannot_be_changed(box: Executor) -> None:
    """Neither the code nor the caller can write outside of the code's own folders."""
    name = ".gymnast-conformance"
    attempt = f"for d in / /etc /usr/bin /usr/lib; do touch $d/{name} && rm $d/{name} && echo $d; done 2>/dev/null"
    expect(await box.bash(attempt), status=Status.ERROR, stdout="")
    try:
        for folder in ("", "/etc"):
            path = f"{folder}/{name}"
            await raises(SandboxFileError, box.write_file(path, "x"), f"writing {path}")
    finally:
        await box.bash(f"rm -f /{name} /etc/{name}")


@box_check(CODE, ISOLATION)
async def processes_of_others_are_out_of_reach(box: Executor) -> None:
    """The code cannot signal or read the process that watches it."""
    code = """
import os
reached = []
for pid in {1, os.getppid()} - {0}:
    try: os.kill(pid, 0); reached.append((pid, "signal"))  # 0 harms nobody, and needs the same permission
    except PermissionError: pass
    for name in ("environ", "mem"):
        try: open(f"/proc/{pid}/{name}"); reached.append((pid, name))
        except PermissionError: pass
reached"""
    expect(await box.python(code), status=Status.OK, value="[]")
    await require_usable(box)
