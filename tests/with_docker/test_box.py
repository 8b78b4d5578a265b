"""The contract of a box on `DockerBox`: in an image with the usual tools, and in one with busybox alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import (
    Box,
    BoxImage,
    DockerBox,
    ExecutionResult,
    SandboxFileError,
    SandboxFileTooLargeError,
    Screen,
)
from gymnast.sandbox.testing.conformance import BOX_CHECKS, Check


@pytest.fixture(scope="module")
async def usual(image: str) -> AsyncIterator[DockerBox]:
    async with DockerBox() as box:
        yield box


@pytest.fixture(scope="module")
async def bare(image: str, busybox: BoxImage) -> AsyncIterator[DockerBox]:
    async with DockerBox(image=busybox) as box:
        yield box


class Narrow(Box):
    """A box of somebody else's, which implements what it must: the rest is made of `exec`."""

    def __init__(self) -> None:
        self._inner = DockerBox()

    def variant(self, **changes: Any) -> Narrow:
        return Narrow()

    async def start(self) -> None:
        self._begin()
        await self._inner.start()

    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecutionResult:
        self._require_open()
        return await self._inner.exec(command, **options)

    async def close(self) -> None:
        self._state = "closed"
        await self._inner.close()


@pytest.fixture(scope="module")
async def narrow(image: str) -> AsyncIterator[Narrow]:
    async with Narrow() as box:
        yield box


@pytest.mark.parametrize("check", [check for check in BOX_CHECKS if not check.needs], ids=str)
async def test_what_a_box_has_by_default(check: Check[Box], narrow: Narrow) -> None:
    await check(narrow)


async def test_copies_of_tar_files_are_bounded(narrow: Narrow, tmp_path: Path) -> None:
    await narrow.exec(
        "mkdir -p '/a b'; echo x > '/a b/c d'; truncate -s 100M /hole; mkdir /h; mv /hole /h; echo y > /h/-y"
    )
    assert await narrow.copy_out("/a b/c d", tmp_path) == []
    assert (tmp_path / "c d").read_text() == "x\n"
    wrapper = 'm=$(command -v tar); mv $m /tar; printf "#!/bin/sh\\nexec /tar %s \\"\\$@\\"\\n" {} > $m; chmod +x $m'
    await narrow.exec(wrapper.format("-S"))  # a hole of 100 MB takes a few bytes of this tar file
    with pytest.raises(SandboxFileTooLargeError):
        await narrow.copy_out("/h", tmp_path, limit=1_000_000)
    await narrow.exec("rm -rf /h/hole; printf 'echo x > $2' > $(command -v tar)")
    with pytest.raises(SandboxFileError, match="the box sent no tar file"):
        await narrow.copy_out("/h", tmp_path)


async def test_what_a_box_cannot_do_is_said_by_name(narrow: Narrow) -> None:
    with pytest.raises(TypeError, match=r"Narrow cannot keep a program's streams: it lacks Capability\.STREAMS"):
        narrow.open("true")
    with pytest.raises(TypeError, match="SNAPSHOT"):
        narrow.snapshot()
    with pytest.raises(TypeError, match="IMAGES"):
        Box.variant(narrow)


@pytest.mark.parametrize("check", BOX_CHECKS, ids=str)
async def test_in_a_usual_image(check: Check[Box], usual: DockerBox) -> None:
    await check(usual)


@pytest.mark.parametrize("check", BOX_CHECKS, ids=str)
async def test_in_an_image_of_busybox(check: Check[Box], bare: DockerBox) -> None:
    await check(bare)


async def test_the_screen_of_a_program_in_its_terminal(usual: DockerBox) -> None:
    draw = r"printf '\033[2J\033[3;5Hready'; read answer; printf '\033[1;1Hgot %s' $answer; sleep 609"
    async with usual.open(draw, tty=(40, 5)) as process:
        screen = Screen(process, columns=40, rows=5)
        assert await screen.read(quiet=5) == "\n\n    ready"
        await process.write(b"word\n")
        assert (await screen.read(quiet=5)).splitlines()[0] == "got word"
