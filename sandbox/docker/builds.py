"""Has an engine build a Dockerfile, by BuildKit if the `docker` command has it, else by the classic builder."""

from __future__ import annotations

import asyncio
import os
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..cancellation import finish
from ..errors import EngineUnansweredError, ImageError
from ..images.image import ImageFacts, check_name
from .connect import StreamConnection
from .engine import Engine

BUILD_SECONDS = 600.0  # of silence: a step of a Dockerfile may print nothing for long

_SAID = 2000  # characters of a build's output in an error
_NONE: Mapping[str, str] = MappingProxyType({})
_NEEDS_BUILDKIT = re.compile(r"<<-?\s*['\"]?\w+|^\s*(RUN|COPY|ADD)\s+--(?!from|chown)\w", re.MULTILINE | re.IGNORECASE)


async def build_dockerfile(
    engine: Engine, folder: str | Path, name: str, *, arguments: Mapping[str, str] = _NONE, network: bool = True
) -> ImageFacts:
    """Build an image from the folder of a Dockerfile, as `docker build -t NAME FOLDER` does.

    Args:
        arguments: for its ARG lines.
        network: whether its RUN lines have a network.

    Raises:
        ImageError: the build failed (the message ends with its last lines), or the name is empty.
        EngineError: the engine does not answer, or refuses the name.
    """
    check_name(name)
    try:
        text = await asyncio.to_thread(Path(folder, "Dockerfile").read_text)
    except OSError as error:
        raise ImageError(f"there is no Dockerfile in {folder}: {error.strerror}") from error
    async with engine.connection.preparations:
        if has_buildkit := await _has_buildkit(engine.client.address):
            failure = await _by_buildkit(engine.client.address, folder, name, arguments, network)
        else:
            failure = await engine.talk(BUILD_SECONDS, _by_classic_builder, str(folder), name, arguments, network)
    if failure:
        if not has_buildkit and _NEEDS_BUILDKIT.search(text):
            failure += "\nThis Dockerfile needs BuildKit (heredocs, RUN --mount): install buildx for the docker command"
        raise ImageError(f"the Dockerfile in {folder} could not be built: {failure}")
    return await engine.image(name, "never")


async def _has_buildkit(address: str) -> bool:
    """Whether there is a `docker` command with BuildKit: with the plug-in buildx, or of version 20 to 22."""
    try:
        process = await _docker(address, "build", "--help", output=DEVNULL)
    except FileNotFoundError:
        return False
    return await process.wait() == 0


async def _docker(address: str, *arguments: str, output: int) -> asyncio.subprocess.Process:
    # The BuildKit of this engine, which knows its images, whatever context and builder this user has chosen.
    chosen = {"DOCKER_HOST": address, "DOCKER_CONTEXT": "", "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}
    environment = {**os.environ, **chosen}
    return await asyncio.create_subprocess_exec(
        "docker", *arguments, stdin=DEVNULL, stdout=output, stderr=STDOUT, env=environment
    )


async def _by_buildkit(address: str, folder: str | Path, name: str, arguments: Mapping[str, str], network: bool) -> str:
    """Build by the `docker` command; return the reason if that fails."""
    given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    network_of_steps = f"--network={'default' if network else 'none'}"
    process = await _docker(
        address, "build", "--progress=plain", f"--tag={name}", network_of_steps, *given, str(folder), output=PIPE
    )
    assert process.stdout is not None
    said = b""
    try:
        while True:
            async with asyncio.timeout(BUILD_SECONDS):
                piece = await process.stdout.read(1 << 16)
            if not piece:
                break
            said = (said + piece)[-_SAID:]
    except TimeoutError as error:
        raise EngineUnansweredError(f"a build printed nothing for {BUILD_SECONDS:g} s") from error
    finally:
        if process.returncode is None and not process.stdout.at_eof():
            process.kill()  # the engine then ends the build
        await finish(process.wait())
    return said.decode(errors="replace") if process.returncode else ""


def _by_classic_builder(
    stream: StreamConnection, folder: str, name: str, arguments: Mapping[str, str], network: bool
) -> str:
    """Build by the engine's builder; return the reason if that fails."""
    from docker.errors import APIError

    options = {"buildargs": dict(arguments), "network_mode": None if network else "none"}
    try:
        lines = list(stream.api.build(path=folder, tag=name, rm=True, forcerm=True, decode=True, **options))
    except APIError as error:
        if "dockerfile" not in str(error.explanation).lower():
            raise
        return str(error.explanation)
    if not lines or "error" not in lines[-1]:
        return ""
    said = "".join(line.get("stream", "") for line in lines)
    step = re.findall(r"^Step .*", said, re.MULTILINE)[-1:]
    return "\n".join([*step, lines[-1]["error"], said[-_SAID:]])
