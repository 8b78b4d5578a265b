"""Names in a box without a network: `localhost` is known, others are not, and whatever is asked costs no deadline."""

from __future__ import annotations

import logging
import os

import pytest

from gymnast.sandbox import DockerExecutor, Engine, Status
from gymnast.sandbox import docker as docker_module

from .boxes import LIMITS

LOOK = """
import socket
def attempt(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture
async def box(box: DockerExecutor) -> DockerExecutor:
    """A clean box in which names can be asked for."""
    await box.python(LOOK)
    return box


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("socket.gethostbyname, 'localhost'", "'127.0.0.1'"),
        ("socket.gethostbyname, 'LocalHost.'", "'127.0.0.1'"),
        ("socket.gethostbyname, socket.gethostname()", "'127.0.0.1'"),
        ("socket.gethostbyaddr, '127.0.0.1'", "('localhost', [], ['127.0.0.1'])"),
        ("socket.getaddrinfo, 'localhost', 80, socket.AF_INET6", "'gaierror'"),
        ("socket.gethostbyname, 'example.com'", "'gaierror'"),
        ("socket.gethostbyname, 'localhost.example.com'", "'gaierror'"),
        ("socket.gethostbyaddr, '8.8.8.8'", "'herror'"),
    ],
)
async def test_what_is_known(box: DockerExecutor, call: str, answer: str) -> None:
    result = await box.python(f"attempt({call})", timeout=3)
    assert result.value == answer, result


async def test_a_server_of_the_code_is_reached_by_its_name(box: DockerExecutor) -> None:
    await box.write_file("page", "hello")
    await box.bash("python3 -m http.server 8123 --bind localhost >/dev/null 2>&1 &")
    code = """
import time, urllib.request
for _ in range(100):
    try:
        page = urllib.request.urlopen("http://localhost:8123/page").read()
        break
    except OSError:
        time.sleep(0.05)
page"""
    assert (await box.python(code, timeout=20)).value == "b'hello'"


async def test_boxes_and_the_host_have_each_a_network_namespace(image: str, engine: Engine) -> None:
    async with DockerExecutor(limits=LIMITS, engine=engine) as one, DockerExecutor(limits=LIMITS, engine=engine) as two:
        processes = ["self"]
        for box in (one, two):
            assert box._launched is not None
            processes.append(str(await engine.call(engine.client.process, box._launched.container)))
        assert len({os.stat(f"/proc/{process}/ns/net").st_ino for process in processes}) == 3
        await one.python("import socket; server = socket.create_server(('127.0.0.1', 8124))")
        look = LOOK + "attempt(socket.create_connection, ('127.0.0.1', 8124), 1)"
        assert (await two.python(look)).value == "'ConnectionRefusedError'"
        assert (await one.python("socket.create_connection(('127.0.0.1', 8124), 1).close()")).status == Status.OK


async def test_what_is_no_question_is_passed_over(box: DockerExecutor) -> None:
    code = """
import os, struct
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
question = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + b"\\x09localhost\\0" + struct.pack(">HH", 1, 1)
for message in [b"", b"x", question[:-1], question[:14], question[:2] + b"\\x81" + question[3:], b"\\xff" * 600]:
    udp.sendto(message, ("127.0.0.1", 53))
for _ in range(1000):
    udp.sendto(os.urandom(40), ("127.0.0.1", 53))
udp.settimeout(2)
udp.connect(("127.0.0.1", 53))
udp.send(question)
while (answer := udp.recv(600))[:2] != question[:2] or not answer.endswith(b"\\x7f\\0\\0\\1"):
    pass
len(answer)"""
    assert (await box.python(code, timeout=10)).value == str(12 + 15 + 16)


async def test_a_flood_of_questions_holds_no_deadline(box: DockerExecutor) -> None:
    flood = (
        "udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True: udp.sendto(b'x' * 40, ('127.0.0.1', 53))"
    )
    result = await box.python(flood, timeout=0.5)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, False)
    assert result.duration < 0.5 + LIMITS.grace
    assert (await box.python("1 + 1")).value == "2"


async def test_with_a_network_the_engine_tells_names(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, network="bridge") as box:
        assert "localhost" in (await box.bash("cat /etc/hosts")).stdout
        assert (await box.python("import socket; socket.gethostbyname('localhost')")).value == "'127.0.0.1'"


async def test_an_engine_that_does_not_give_the_port_is_warned_about(
    image: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make = docker_module.container_config

    def without_the_port(*arguments: object) -> dict[str, object]:
        config = make(*arguments)  # type: ignore[arg-type]
        config["HostConfig"]["Sysctls"] = {"net.ipv4.ip_unprivileged_port_start": "1024"}
        return config

    monkeypatch.setattr(docker_module, "container_config", without_the_port)
    with caplog.at_level(logging.WARNING, "gymnast.sandbox"):
        async with DockerExecutor(limits=LIMITS) as box:
            assert (await box.python("1 + 1")).value == "2"
    assert "no name is known in the box, `localhost` included" in caplog.text
