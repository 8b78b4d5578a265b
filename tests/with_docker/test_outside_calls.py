"""Attacks on the way from a box to functions outside: nothing reaches them but bounded bytes, one call at a time."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    Executor,
    ExecutorPool,
    LocalExecutor,
    SandboxFileError,
    SandboxLostError,
    Status,
)

from ..sandbox.boxes import LIMITS, eventually, usable
from ..sandbox.test_hostile_supervisor import CounterfeitBox, encode

FUNCTIONS = '''
@_tool("echo", {"value": "value"})
def echo(value: object = None) -> object:
    """Return the value."""
'''
SEND = """
import os, socket, sys, tools
def send(data, wait=True):
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(tools._SOCKET)
    try:
        channel.sendall(data)
        return channel.recv(1 << 20) if wait else channel
    except OSError as error:
        return type(error).__name__
def framed(data):
    return len(data).to_bytes(4, "big") + data
"""


class Outside:
    """Answers the calls of a box, and keeps them."""

    def __init__(self, box: Executor) -> None:
        self.box = box
        self.calls: list[bytes] = []
        self.running = self.most = 0
        self.then: Callable[[], Any] | None = None

    async def answer(self, call: bytes) -> bytes:
        self.calls.append(call)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.then is not None:
                await self.then()
            return json.dumps({"content": call.decode("utf-8", "replace")[-80:], "is_json": False}).encode()
        finally:
            self.running -= 1


@pytest.fixture(params=[LocalExecutor, lambda: DockerExecutor(limits=LIMITS)], ids=["local", "docker"])
async def outside(request: pytest.FixtureRequest, image: str) -> AsyncIterator[Outside]:
    async with request.param() as box:
        outside = Outside(box)
        await box.offer(FUNCTIONS, outside.answer)
        yield outside


@pytest.mark.parametrize(
    ("attack", "arrives"),
    [
        ("send(b'\\xff\\xff\\xff\\xff' + b'x' * 100)", 0),  # announces 4 GB
        ("send(framed(b'x' * (100 << 20)))", 0),
        ("send(framed(b'x' * (1 << 20)))[:4]", 1),  # the largest
        ("send(framed(b'one') + framed(b'two'))", 0),  # a second call behind the first
        ("for n in range(300): send(b'\\0\\0', wait=False).close()", 0),  # hangs up within the length
        ("for n in range(50): send(framed(b'gone'), wait=False).close()", 50),
        ("tools.echo('x' * (20 << 20))", 0),
        ("import pickle; send(framed(pickle.dumps(print)))[:4]", 1),
        ("send(framed(b''))[:4]", 1),
    ],
)
async def test_a_forged_call_harms_nobody(outside: Outside, attack: str, arrives: int) -> None:
    result = await outside.box.python(f"{SEND}\n{attack}", timeout=20)
    assert result.status in (Status.OK, Status.ERROR), result
    assert len(outside.calls) <= arrives
    assert all(len(call) <= 1 << 20 for call in outside.calls)
    again = await outside.box.python("import tools\ntools.echo(7)")
    assert "7" in (again.value or ""), again
    assert outside.box.retire_reason is None


async def test_many_callers_wait_for_one_another(outside: Outside) -> None:
    outside.then = lambda: asyncio.sleep(0.002)
    threads = "from concurrent.futures import ThreadPoolExecutor as Threads\nimport tools"
    code = f"{threads}\nlist(Threads(24).map(tools.echo, range(200)))[-1]"
    result = await outside.box.python(code, timeout=20)
    assert "199" in (result.value or ""), result
    assert (len(outside.calls), outside.most) == (200, 1)


async def test_a_call_without_an_end_holds_up_its_own_code_only(outside: Outside) -> None:
    started = time.perf_counter()
    result = await outside.box.python(f"{SEND}\nheld = send(b'\\0\\0\\0\\5abc', wait=False)\ntools.echo(1)", timeout=1)
    assert result.status is Status.TIMEOUT
    assert time.perf_counter() - started < 8
    assert "2" in ((await outside.box.python("tools.echo(2)")).value or "")


async def test_a_call_ends_with_the_code_that_it_belongs_to(outside: Outside) -> None:
    cancelled = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    outside.then = wait
    code = "import threading, tools, time\nthreading.Thread(target=tools.echo, args=['late'], daemon=True).start()"
    await outside.box.python(f"{code}\ntime.sleep(1)")
    assert cancelled.is_set()
    count, outside.then = len(outside.calls), None
    later = "(sleep 0.3; tools echo --value between > out.txt 2>&1) &"
    assert (await outside.box.bash(later)).ok
    await asyncio.sleep(0)
    assert len(outside.calls) == count  # between two requests nobody is listening
    result = await outside.box.bash("for n in $(seq 100); do [ -s out.txt ] && break; sleep 0.1; done; cat out.txt")
    assert "between" in result.stdout
    await outside.box.python(
        "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(0.2)\n    import tools; tools.echo('end')"
    )
    await outside.box.reset()
    assert (await outside.box.bash("sleep 0.5; tools echo")).exit_code == 127
    assert b"end" not in b"".join(outside.calls)


async def test_a_tool_that_uses_the_box_is_told_so_at_once(outside: Outside) -> None:
    said = []

    async def reenter() -> None:
        for use in (lambda: outside.box.python("1"), lambda: outside.box.read_file("x"), outside.box.reset):
            with pytest.raises(RuntimeError, match="so the tool cannot use the box"):
                await use()
            said.append(use)

    outside.then = reenter
    assert (await outside.box.python("import tools\ntools.echo()", timeout=10)).ok
    assert len(said) == 3


async def test_an_error_of_the_answering_side_stops_the_code(outside: Outside) -> None:
    async def fail() -> None:
        raise LookupError("the tools are gone")

    outside.then = fail
    with pytest.raises(LookupError, match="the tools are gone"):
        await outside.box.python("import time, tools\ntry: tools.echo()\nfinally: time.sleep(60)", timeout=30)
    assert await usable(outside.box)


async def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    async with LocalExecutor() as box:
        for _ in range(2):
            with pytest.raises(SandboxFileError, match="path too long"):
                await box.offer(FUNCTIONS, Outside(box).answer)
        assert (await box.python("1")).ok


async def test_code_cannot_change_the_functions_of_a_later_episode(image: str) -> None:
    async with ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=1, warm=1) as pool:
        for _ in range(2):
            async with pool.lease() as box:
                outside = Outside(box)
                await box.offer(FUNCTIONS, outside.answer)
                assert (await box.python("import tools; tools.echo('mine')")).value == repr(outside.calls[0].decode())
                attack = (
                    "cd /tmp; rm -rf .tools; mv .tools x; echo x >> .tools/tools.py; ln -s /tmp .tools/y; ls .tools"
                )
                assert (await box.bash(attack)).stdout.split() == ["socket", "tools", "tools.py"]
                await box.reset()  # within the lease the functions stay
                assert "tools" in (await box.bash("ls /tmp/.tools")).stdout
        assert pool.statistics.created == 1


@pytest.mark.parametrize(
    ("header", "size"), [({"call": True}, 3), ({"call": "1"}, 3), ({"call": [1]}, 3), ({"call": 1}, (1 << 20) + 1)]
)
async def test_a_supervisor_that_forges_calls_costs_the_box(header: dict[str, Any], size: int) -> None:
    async with CounterfeitBox() as box:
        outside = Outside(box)
        box.answer = {"lengths": [0]}, b""
        await box.offer(FUNCTIONS, outside.answer)
        box.answer = header, b"x" * size
        with pytest.raises(SandboxLostError, match="broke the protocol: a call"):
            await box.python("1", timeout=5)
        assert outside.calls == []


async def test_a_supervisor_makes_one_call_at_a_time_and_none_on_its_own() -> None:
    async with CounterfeitBox() as box:
        outside = Outside(box)
        box.answer = {"lengths": [0]}, b""
        await box.offer(FUNCTIONS, outside.answer)
        outside.then = asyncio.Event().wait
        box.answer = {"call": 1}, b"x"
        running = asyncio.ensure_future(box.python("1", timeout=5))
        assert await eventually(lambda: bool(outside.calls), 5)
        box.supervisor.transport.write(encode({"call": 2}, b"x"))
        with pytest.raises(SandboxLostError, match="a call while another one is open"):
            await running
        assert (len(outside.calls), outside.running) == (1, 0)
    async with CounterfeitBox() as box:
        box.supervisor.transport.write(encode({"call": 1}, b"x"))
        box.answer = None
        with pytest.raises(SandboxLostError, match="which no running code can make"):
            await box.ping(timeout=5)
