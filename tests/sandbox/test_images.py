"""Images: valid names, and the fate of the image that had the name before."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from gymnast.sandbox import DEFAULT_IMAGE, Engine, EngineError, ImageError
from gymnast.sandbox.docker.images import build, build_dockerfile

NAME = "localhost:5000/gymnast-test"  # a registry with a port, which is never contacted


@pytest.fixture
async def names(engine: Engine) -> AsyncIterator[list[str]]:
    """Names of images, which are removed after the test."""
    names: list[str] = []
    yield names
    for name in names:
        with contextlib.suppress(EngineError):
            await engine.call(lambda name=name: engine.client.api.remove_image(name))


async def test_a_rebuilt_image_replaces_the_old_one_unless_that_has_another_name(
    engine: Engine, names: list[str]
) -> None:
    names += [f"{NAME}:1"]
    first = await engine.image(DEFAULT_IMAGE, "never")
    await engine.call(engine.client.api.tag, first.id, NAME, "1")
    second = await build(engine, names[0])
    assert (await engine.image(DEFAULT_IMAGE, "never")).id == first.id != second.id
    await build(engine, names[0])
    assert await engine.call(engine.client.inspect, second.id) is None


async def test_an_image_of_others_is_not_removed(engine: Engine, names: list[str]) -> None:
    empty = bytes(1024)  # an archive without files
    await engine.call(engine.client.api.import_image_from_data, empty, NAME, "latest")
    theirs = await engine.image(NAME, "never")
    names += [NAME, theirs.id]
    await build(engine, NAME)
    assert await engine.call(engine.client.inspect, theirs.id) is not None


@pytest.mark.parametrize(
    ("name", "message"), [("Gymnast-Review:x", "must be lowercase"), ("", "an image needs a name")]
)
async def test_impossible_names(engine: Engine, name: str, message: str) -> None:
    command = [sys.executable, "-m", "gymnast.cli", "sandbox", "build", f"--name={name}"]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    said = (await process.communicate())[1].decode()
    assert process.returncode == 2
    assert "\nerror: " in said
    assert message in said
    with pytest.raises((EngineError, ImageError), match=message):
        await build(engine, name)


async def test_a_dockerfile_needs_a_name(engine: Engine) -> None:
    with pytest.raises(ImageError, match="an image needs a name"):
        await build_dockerfile(engine, "any", "")
