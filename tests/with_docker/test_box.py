"""The contract of a box on `DockerBox`: in an image with the usual tools, and in one with busybox alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gymnast.sandbox import Box, BoxImage, DockerBox
from gymnast.sandbox.testing.conformance import BOX_CHECKS, Check


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
