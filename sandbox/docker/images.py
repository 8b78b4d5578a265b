"""The images of boxes, which the engine has or makes; the default one is made of this machine's Python."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..box_image import BoxImage
from ..errors import EngineError, ImageError
from ..images.digest import digest_of
from ..images.host_image import CHANGES, RECIPE_LABEL, make_archive, recipe
from ..images.image import DEFAULT_IMAGE, ImageFacts, check_name
from .builds import BUILD_SECONDS, build_dockerfile
from .connect import StreamConnection
from .engine import Engine

logger = logging.getLogger(__name__)

MADE = {kind: f"gymnast-{kind}" for kind in ("dockerfile", "rootfs")}  # begin the names of images made of files


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
        ImageError: this machine does not run Linux with glibc, or the name is empty or impossible.
        EngineError: the engine does not answer.
    """
    check_name(name)
    previous = await engine.call(engine.client.inspect, name)
    with tempfile.TemporaryDirectory(prefix="gymnast-image-") as folder:
        archive = Path(folder, "rootfs.tar")
        await asyncio.to_thread(make_archive, Path(folder, "rootfs"), archive)
        changes = [*CHANGES, f"LABEL {RECIPE_LABEL}={recipe()}"]
        await engine.talk(BUILD_SECONDS, _import, archive, name, changes)
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


async def image_facts(engine: Engine, image: BoxImage) -> ImageFacts:
    """Return the facts about a box's image. It is fetched, built or imported first if the engine does not have it.

    A Dockerfile's folder and a tar file are named by the digest of their content, so they are made once for each. Two
    images are made at a time, and each one once, however many boxes wait for it.

    Raises:
        ImageError: there is no such image, or it could not be made.
        EngineError: the engine does not answer.
    """
    if image.kind == "named":
        # The default image never comes from a registry, where anybody may own its name.
        is_default = image.source == DEFAULT_IMAGE
        return await (default_image(engine) if is_default else engine.image(image.source, image.pull))
    path = Path(image.source)
    async with engine.lock(image.source):  # the second of two boxes finds the digest
        digest = await asyncio.to_thread(digest_of, path)
    name = f"{MADE[image.kind]}:{sha256(f'{digest} {image.arguments} {image.network}'.encode()).hexdigest()[:16]}"
    async with engine.lock(f"making {name}"):
        try:
            return await engine.image(name, "never")
        except ImageError:
            if image.kind == "dockerfile":
                arguments = dict(image.arguments)
                return await build_dockerfile(engine, path, name, arguments=arguments, network=image.network)
            async with engine.connection.preparations:
                await engine.talk(BUILD_SECONDS, _import, path, name, ())
            return await engine.image(name, "never")


def _import(stream: StreamConnection, archive: Path, name: str, changes: Sequence[str]) -> None:
    from docker.errors import APIError  # imported late: it takes longer than the rest of the package
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(name)
    tag = tag or "latest"
    try:
        answer: Any = stream.api.import_image(src=str(archive), repository=repository, tag=tag, changes=list(changes))
        failure = json.loads(answer.strip().splitlines()[-1]).get("error")
    except APIError as error:
        failure = error.explanation
    if failure:
        raise ImageError(f"the engine did not make the image {name!r} from {archive}: {failure}")
