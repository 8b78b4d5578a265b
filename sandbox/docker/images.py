"""Has an engine make images: the default one, of this machine's Python, and those of Dockerfiles."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from ..errors import EngineError, ImageError
from ..images.host_image import CHANGES, RECIPE_LABEL, make_archive, recipe
from ..images.image import DEFAULT_IMAGE, ImageFacts, check_name, dockerfile_image_name
from .client import BUILD_SECONDS, Client
from .connect import StreamConnection
from .engine import Engine

logger = logging.getLogger(__name__)


async def default_image(engine: Engine) -> ImageFacts:
    """Return the default image; ImageError if it has not been made yet."""
    try:
        return await engine.image(DEFAULT_IMAGE, "never")
    except ImageError:
        raise ImageError(
            f"there is no image {DEFAULT_IMAGE} yet: `gymnast sandbox build` makes it from this machine's "
            "Python within seconds and without a registry; or name an image of yours: DockerExecutor(image=...)"
        ) from None


async def build(engine: Engine, name: str = DEFAULT_IMAGE) -> ImageFacts:
    """Make an image of this machine's Python and command-line tools. It replaces an earlier image of this name.

    Raises:
        ImageError: this machine does not run Linux with glibc, or the name is empty.
        EngineError: the engine does not answer, or refuses the name.
    """
    check_name(name)
    previous = await engine.call(engine.client.inspect, name)
    with tempfile.TemporaryDirectory(prefix="gymnast-image-") as folder:
        archive = Path(folder, "rootfs.tar")
        await asyncio.to_thread(make_archive, Path(folder, "rootfs"), archive)
        await engine.call(_import, engine.client, archive, name)
    if previous is not None and RECIPE_LABEL in previous.labels:
        try:
            await engine.call(engine.client.remove_untagged, previous.id)
        except EngineError as error:
            logger.warning("the image that was %s before was not removed: %s", name, error)
    return await engine.image(name, "never")


async def build_if_changed(engine: Engine, name: str = DEFAULT_IMAGE) -> ImageFacts:
    """Make the image, unless the engine has one made from this Python by this recipe; raises what `build` raises."""
    try:
        found = await engine.image(name, "never")
    except ImageError:
        return await build(engine, name)
    return found if found.labels.get(RECIPE_LABEL) == recipe() else await build(engine, name)


async def build_image(name: str = DEFAULT_IMAGE) -> ImageFacts:
    """Make the image unless the engine has it. The first time takes some seconds.

    Raises:
        ImageError: this machine does not run Linux with glibc.
        EngineError: no engine answers, or this user may not use it; the message says what to do.
    """
    async with Engine() as engine:
        return await build_if_changed(engine, name)


async def build_dockerfile(engine: Engine, folder: str | Path, name: str) -> ImageFacts:
    """Build an image from the folder of a Dockerfile, as `docker build -t NAME FOLDER` does.

    Raises:
        ImageError: the build failed (the message ends with its last lines), or the name is empty.
        EngineError: the engine does not answer, or refuses the name.
    """
    check_name(name)

    def work(stream: StreamConnection) -> None:
        if not Path(folder, "Dockerfile").is_file():
            raise ImageError(f"there is no Dockerfile in {folder}")
        lines = list(stream.api.build(path=str(folder), tag=name, rm=True, forcerm=True, decode=True))
        if lines and "error" in lines[-1]:
            said = "".join(line.get("stream", "") for line in lines)[-2000:]
            raise ImageError(f"the image {name!r} could not be built: {lines[-1]['error']}\n{said}")

    await engine.talk(BUILD_SECONDS, work)
    return await engine.image(name, "never")


async def dockerfile_image(engine: Engine, folder: Path) -> ImageFacts:
    """Return the image of a Dockerfile's folder. It is built once for each content of the folder."""
    name = await asyncio.to_thread(dockerfile_image_name, folder)
    async with engine.lock(f"building {name}"):
        try:
            return await engine.image(name, "never")
        except ImageError:
            return await build_dockerfile(engine, folder, name)


def _import(client: Client, archive: Path, name: str) -> None:
    from docker.utils import parse_repository_tag  # imported late: it takes longer than the rest of the package

    repository, tag = parse_repository_tag(name)
    changes = [*CHANGES, f"LABEL {RECIPE_LABEL}={recipe()}"]
    answer: Any = client.api.import_image(src=str(archive), repository=repository, tag=tag or "latest", changes=changes)
    last = json.loads(answer.strip().splitlines()[-1])
    if "error" in last:
        raise ImageError(f"the engine did not take the image {name!r}: {last['error']}")
