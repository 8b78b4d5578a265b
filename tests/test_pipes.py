"""The short way to a box, beside the one through the engine: who takes it, when it is refused, and what is left."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from gymnast.sandbox import DockerExecutor, Engine, Status
from gymnast.sandbox.client import Client
from gymnast.sandbox.pipes import Pipes, open_pipes

from .boxes import LIMITS


def pipes_of(box: DockerExecutor) -> Pipes | None:
    return getattr(box._connection, "_pipes", None)


def open_pipes_here() -> list[str]:
    """The pipes that this process holds an end of."""
    folder = Path("/proc/self/fd")
    links = [os.readlink(each) for each in folder.iterdir() if each.exists()]
    return sorted(link for link in links if link.startswith("pipe:"))


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


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


async def test_others_than_root_do_not_try(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Engine().direct
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not Engine().direct


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


@pytest.mark.parametrize("wrong", ["inode", "kind", "descriptor"])
def test_only_the_pipes_that_were_offered_are_opened(pipe: tuple[int, int], tmp_path: Path, wrong: str) -> None:
    read, write = pipe
    with open(tmp_path / "file", "w") as file:
        offer = {
            "pid": os.getpid(),
            "requests": [write, os.fstat(write).st_ino],
            "answers": [read, os.fstat(read).st_ino],
        }
        opened = open_pipes(os.getpid(), offer)
        assert opened is not None
        assert all(stat.S_ISFIFO(os.fstat(each).st_mode) for each in opened)
        if wrong == "inode":
            offer["answers"] = [read, os.fstat(read).st_ino + 1]
        elif wrong == "kind":
            offer["requests"] = [file.fileno(), os.fstat(file.fileno()).st_ino]
        else:
            offer["answers"] = [4095, os.fstat(read).st_ino]
        before = open_pipes_here()
        assert open_pipes(os.getpid(), offer) is None
        assert open_pipes_here() == before
    for each in (read, write, *opened):
        os.close(each)


async def test_an_answer_just_before_the_end_is_not_lost(image: str) -> None:
    async with DockerExecutor(limits=LIMITS) as box:
        pipes = pipes_of(box)
        assert pipes is not None
        asyncio.get_running_loop().remove_reader(pipes.descriptors[1])  # as if it came at the same time as the end
        call = asyncio.create_task(box.python("'x' * 10_000", timeout=5))
        await asyncio.sleep(0.5)
        assert box._launched is not None
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
