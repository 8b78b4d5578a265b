"""The short way to a box, beside the one through the engine: who takes it, when it is refused, and what is left."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import select
import stat
import traceback
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import DockerExecutor, Engine, SandboxLostError, Status
from gymnast.sandbox import docker as docker_module
from gymnast.sandbox.client import Client
from gymnast.sandbox.pipes import Pipes, open_pipes

from .boxes import LIMITS, containers_of, eventually


def pipes_of(box: DockerExecutor) -> Pipes | None:
    return getattr(box._connection, "_pipes", None)


def streams_of(init: int) -> dict[str, Any]:
    """The standard streams of the supervisor in a container, as an offer."""
    processes = Path(f"/proc/{init}/root/proc")
    [pid, *_] = [int(each.name) for each in processes.glob("[0-9]*") if b"-c\0" in (each / "cmdline").read_bytes()[:20]]
    inodes = [(processes / str(pid) / "fd" / str(number)).stat().st_ino for number in (0, 1)]
    return {"pid": pid, "requests": [0, inodes[0]], "answers": [1, inodes[1]]}


def no_pipe_of(init: int, pid: int) -> list[int]:
    """A descriptor of a process in a container that stands for no pipe, and its inode."""
    folder = Path(f"/proc/{init}/root/proc/{pid}/fd")
    other = next(each for each in folder.iterdir() if not stat.S_ISFIFO(each.stat().st_mode))
    return [int(other.name), other.stat().st_ino]


def seen_by_a_child(descriptors: tuple[int, int]) -> str:
    """What descriptors stand for in a child that is forked now."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        os.write(write, " ".join(os.readlink(f"/proc/self/fd/{each}") for each in descriptors).encode())
        os._exit(0)
    os.waitpid(child, 0)
    seen = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    return seen


async def say_how_it_is_spoken_to(number: int) -> None:
    async with DockerExecutor(limits=LIMITS) as box:
        said = f"{(await box.python('1 + 1')).value} {pipes_of(box)}"
    if number:
        os.write(number, said.encode())


def open_pipes_here() -> list[str]:
    """The pipes that this process holds an end of."""
    folder = Path("/proc/self/fd")
    links = [os.readlink(each) for each in folder.iterdir() if each.exists()]
    return sorted(link for link in links if link.startswith("pipe:"))


async def test_root_on_the_engines_machine_takes_it(image: str) -> None:
    before = open_pipes_here()
    async with DockerExecutor(limits=LIMITS) as box:
        assert pipes_of(box) is not None
        assert len(open_pipes_here()) == len(before) + 2
        assert (await box.python("1 + 1")).value == "2"
    assert open_pipes_here() == before


async def test_it_can_be_turned_off(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, engine=Engine(direct=False)) as box:
        assert pipes_of(box) is None
        assert (await box.python("1 + 1")).value == "2"


def test_others_than_root_go_through_the_engine(image: str) -> None:
    """A user of the group that the engine's socket belongs to, as `usermod -aG docker` makes one."""
    asyncio.run(say_how_it_is_spoken_to(0))  # loads what another user may not be able to read
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        try:
            os.setgroups([os.stat("/var/run/docker.sock").st_gid])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            asyncio.run(say_how_it_is_spoken_to(write))
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = os.read(read, 1 << 16).decode()
    os.close(read)
    assert said == "2 None"


def test_it_is_taken_or_not() -> None:
    with pytest.raises(TypeError, match=r"direct must be True .* or False .*, got 'no'"):
        Engine(direct="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("process", [os.getpid(), 2**22 + 1], ids=["another process", "no process"])
async def test_with_the_engine_on_another_machine_the_socket_does(
    image: str, monkeypatch: pytest.MonkeyPatch, process: int
) -> None:
    monkeypatch.setattr(Client, "process", lambda self, container: process)  # as numbers of another machine look here
    before = open_pipes_here()
    async with DockerExecutor(limits=LIMITS) as box:
        assert pipes_of(box) is None
        assert (await box.python("1 + 1")).value == "2"
    assert open_pipes_here() == before


async def test_other_runtimes_are_spoken_to_through_the_engine(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, runtime="runc") as box:
        assert pipes_of(box) is None
        assert (await box.python("1 + 1")).value == "2"


async def test_an_offer_that_was_not_asked_for_is_not_taken(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = docker_module.box_settings
    monkeypatch.setattr(docker_module, "box_settings", lambda options, pipes: settings(options, pipes=True))
    async with DockerExecutor(limits=LIMITS, engine=Engine(direct=False)) as box:
        assert pipes_of(box) is None
        assert (await box.python("1 + 1")).value == "2"


@pytest.fixture
async def offer(image: str) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """The first process of a running box, and its supervisor's standard streams as an offer."""
    async with DockerExecutor(limits=LIMITS) as box:
        assert box._launched is not None
        init = await box.engine.call(box.engine.client.process, box._launched.container)
        yield init, streams_of(init)


async def test_what_is_offered_is_opened(offer: tuple[int, dict[str, Any]]) -> None:
    opened = open_pipes(*offer)
    assert opened is not None
    assert [os.fstat(each).st_ino for each in opened] == [offer[1]["requests"][1], offer[1]["answers"][1]]
    for each in opened:
        os.close(each)


@pytest.mark.parametrize(
    "change",
    [
        {"answers": [1, 1]},  # another inode
        {"answers": [4095, 1]},  # no such descriptor
        {"answers": [3]},
        {"answers": "ab"},
        {"answers": ["1", 2]},
        {"answers": [-1, 2]},
        {"answers": [True, 2]},
        {"answers": None},
        {"pid": "../../1"},
        {"pid": 4_000_000},
    ],
    ids=str,
)
async def test_nothing_else_is(offer: tuple[int, dict[str, Any]], change: dict[str, Any]) -> None:
    before = open_pipes_here()
    assert open_pipes(offer[0], offer[1] | change) is None
    assert open_pipes_here() == before


async def test_what_is_no_pipe_is_not_even_opened(offer: tuple[int, dict[str, Any]]) -> None:
    init, good = offer
    assert open_pipes(init, good | {"answers": no_pipe_of(init, good["pid"])}) is None


@pytest.mark.parametrize("offer", [None, 7, [], {}, {"pid": 1}], ids=str)
def test_what_is_no_offer_is_not_taken(offer: object) -> None:
    assert open_pipes(os.getpid(), offer) is None


def test_this_machines_own_processes_are_not_opened() -> None:
    read, write = os.pipe()
    inode = os.fstat(read).st_ino
    assert open_pipes(os.getpid(), {"pid": os.getpid(), "requests": [write, inode], "answers": [read, inode]}) is None
    os.close(read)
    os.close(write)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("ending", ["abandoned", "closed in a later loop", "closed when its loop was"])
def test_a_box_whose_event_loop_has_ended_holds_no_pipe(image: str, ending: str) -> None:
    before = open_pipes_here()
    loop = asyncio.new_event_loop()
    box: DockerExecutor | None = DockerExecutor(limits=LIMITS)
    assert box is not None
    loop.run_until_complete(box.start())
    if ending == "closed in a later loop":
        asyncio.run(box.close())
        loop.close()
    else:
        loop.close()
        if ending == "closed when its loop was":
            asyncio.run(box.close())
    box = loop = None  # type: ignore[assignment]
    gc.collect()
    assert open_pipes_here() == before


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_box_that_waits_to_be_read_ends_with_its_lifetime(image: str) -> None:
    async with DockerExecutor(limits=dataclasses.replace(LIMITS, lifetime=4.0)) as box:
        await box.write_file("large", bytes(8 << 20))
        pipes = pipes_of(box)
        assert pipes is not None
        assert box._launched is not None
        asyncio.get_running_loop().remove_reader(pipes.descriptors[1])  # nobody reads, and the pipe stays open
        container = box._launched.container[:12]
        call = asyncio.create_task(box.read_file("large"))

        assert await eventually(lambda: container not in containers_of(os.getpid()), 10)
        with pytest.raises(SandboxLostError):
            await call


async def test_a_child_that_is_forked_after_the_end_holds_no_pipe(image: str) -> None:
    async with DockerExecutor(limits=LIMITS) as box:
        connection, pipes = box._connection, pipes_of(box)
        assert connection is not None
        assert pipes is not None
        connection.abort("as if it was given up")
        assert seen_by_a_child(pipes.descriptors) == "/dev/null /dev/null"


async def test_an_answer_just_before_the_end_is_not_lost(image: str) -> None:
    async with DockerExecutor(limits=LIMITS) as box:
        pipes = pipes_of(box)
        assert pipes is not None
        asyncio.get_running_loop().remove_reader(pipes.descriptors[1])  # as if it came at the same time as the end
        call = asyncio.create_task(box.python("'x' * 10_000", timeout=5))
        assert box._launched is not None
        assert await eventually(lambda: bool(select.select([pipes.descriptors[1]], [], [], 0)[0]), 5)
        await box.engine.remove(box._launched.container)
        assert (await asyncio.wait_for(call, 5)).status is Status.OK


async def test_what_does_not_fit_into_a_pipe_is_sent_when_there_is_room(image: str) -> None:
    data = bytes(range(256)) * 100_000
    async with DockerExecutor(limits=LIMITS) as box:
        await box.write_file("large", data)
        assert await box.read_file("large") == data


async def test_pipes_pass_on_everything_in_order() -> None:
    ours, theirs = os.pipe(), os.pipe()
    for number in (ours[1], theirs[0]):
        os.set_blocking(number, False)
    received, ended = bytearray(), asyncio.Event()
    pipes = Pipes(ours[1], theirs[0], received.extend, ended.set)
    messages = [bytes([number]) * 50_000 for number in range(20)]
    for message in messages:
        pipes.write(message)

    def echo() -> None:
        left = sum(map(len, messages))
        while left:
            data = os.read(ours[0], 1 << 16)
            left -= len(data)
            while data:
                data = data[os.write(theirs[1], data) :]
        os.close(theirs[1])

    await asyncio.to_thread(echo)
    await asyncio.wait_for(ended.wait(), 5)
    assert bytes(received) == b"".join(messages)
    os.close(ours[0])
    pipes.write(b"nobody reads this, which is no error")
    pipes.close()
    pipes.close()
