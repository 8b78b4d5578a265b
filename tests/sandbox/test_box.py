"""The contract of a box on `DockerBox`: in an image with the usual tools, and in one with busybox alone."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import AsyncIterator

import pytest

from gymnast.sandbox import Box, BoxImage, DockerBox
from gymnast.sandbox.testing.conformance import BOX_CHECKS, Check

_PROGRAMS = (
    "sh cat sleep true kill grep mkfifo rm touch test ls stat id head pwd printf ln mkdir chmod echo ps find tail"
)


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> BoxImage:
    """An image of a static busybox, its links and empty folders: no Python, no Bash, no C library, no users."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("there is no busybox: apt-get install busybox-static")
    root = tmp_path_factory.mktemp("busybox")
    for folder in ("bin", "etc", "proc", "dev", "sys", "tmp", "root"):
        (root / folder).mkdir()
    shutil.copy(program, root / "bin/busybox")
    for name in _PROGRAMS.split():
        (root / "bin" / name).symlink_to("busybox")
    with tarfile.open(root.with_suffix(".tar"), "w") as tar:
        tar.add(root, ".")
    return BoxImage.rootfs(root.with_suffix(".tar"))


@pytest.fixture(scope="module")
async def usual(image: str) -> AsyncIterator[DockerBox]:
    async with DockerBox() as box:
        yield box


@pytest.fixture(scope="module")
async def bare(image: str, busybox: BoxImage) -> AsyncIterator[DockerBox]:
    async with DockerBox(image=busybox) as box:
        yield box


@pytest.mark.parametrize("check", BOX_CHECKS, ids=str)
async def test_in_a_usual_image(check: Check[Box], usual: DockerBox) -> None:
    await check(usual)


@pytest.mark.parametrize("check", BOX_CHECKS, ids=str)
async def test_in_an_image_of_busybox(check: Check[Box], bare: DockerBox) -> None:
    await check(bare)
