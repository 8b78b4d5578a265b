"""DockerExecutor: code in a container without network, privileges or a writable root, as fast as a local process.

The engine creates and removes the container (`engine.py`, `container.py`); everything else goes over one socket, or
over two pipes (`pipes.py`), to the supervisor inside (`supervised.py`, `supervisor.py`). When this process dies, the
socket closes and the box ends.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from . import owner
from .arguments import checked_environment, checked_modules
from .base import Limits
from .client import Image, Launched
from .connection import AttachedConnection, Connection, Reply
from .container import BoxOptions, box_settings, container_config
from .engine import CLOSE_SECONDS, Engine, Pull, Session
from .errors import EngineError, ImageError
from .images import DEFAULT_IMAGE, default_image, dockerfile_image
from .pipes import open_pipes
from .reaper import reap_once
from .supervised import SupervisedExecutor
from .supervised_life import START_TIMEOUT

logger = logging.getLogger("gymnast.sandbox")


class DockerExecutor(SupervisedExecutor):
    """A box in a Docker container.

        async with DockerExecutor(files={"data.csv": "a,b\n1,2\n"}) as box:
            print((await box.bash("wc -l data.csv")).stdout)

    Args:
        image: any image with Python >= 3.8, by name; or, as a `Path`, the folder of a Dockerfile, which is built when
            it has changed. The default is made by `python -m gymnast.sandbox build`.
        limits: what the box may use.
        network: "none"; or "bridge", or the name of another network, which give untrusted code a network.
        runtime: a container runtime that protects more than the shared kernel does, such as "runsc" (gVisor).
        env: environment variables for the code; nothing of the host's environment is passed on.
        files: what `/workspace` holds after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        pull: when to fetch the image from its registry, once for each `Engine` if "always"; the default image is never
            fetched, and for a Dockerfile's folder this is left out.
        preload: modules to import before the first session, which then begins with them in no time.
        read_only: whether the root file system is; a box that can write it is replaced at `reset`.
        seccomp: None for our filter of system calls; a profile as JSON, or "unconfined".
        engine: an `Engine` to share; without one the executor and its clones share their own.
        start_timeout: seconds until the box must be ready. The fetching or building of its image is not among them; in
            that, an engine that says nothing for 30 s is given up.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range, or two contradict one another.
    """

    def __init__(
        self,
        *,
        image: str | Path = DEFAULT_IMAGE,
        limits: Limits | None = None,
        network: str = "none",
        runtime: str | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        pull: Pull = "missing",
        preload: Sequence[str] = (),
        read_only: bool = True,
        seccomp: str | None = None,
        engine: Engine | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        _check_image(image, pull)
        _check_network(network)
        limits = limits or Limits()
        super().__init__(limits=limits, files=files, start_timeout=start_timeout)
        self.dockerfile = image.resolve() if isinstance(image, Path) else None
        self.options = BoxOptions(
            image=str(self.dockerfile or image),
            limits=limits,
            network=network,
            runtime=runtime,
            read_only=read_only,
            seccomp=seccomp,
            environment=tuple(sorted(checked_environment(env).items())),
            preload=checked_modules(preload),
        )
        self.pull: Pull = pull
        self.engine = engine or Engine()
        self.what = f"the image {str(image)!r}"
        self._session: Session | None = None  # of the engine, while this executor has it open
        self._image: Image | None = None
        self._launched: Launched | None = None

    @property
    def key(self) -> Hashable:
        return (type(self), self.options, self.dockerfile, self.pull, self._file_key)

    @property
    def creators(self) -> int:
        return self.engine.creators

    def clone(self) -> Self:
        options = self.options
        return type(self)(
            image=self.dockerfile or options.image,
            limits=options.limits,
            network=options.network,
            runtime=options.runtime,
            env=dict(options.environment),
            files=self.files,
            pull=self.pull,
            preload=options.preload,
            read_only=options.read_only,
            seccomp=options.seccomp,
            engine=self.engine,
            start_timeout=self.start_timeout,
        )

    # How.

    async def _prepare(self) -> None:
        if self._session is None:
            await self.engine.open()
            self._session = self.engine.session
        if self.dockerfile is not None:
            self._image = await dockerfile_image(self.engine, self.dockerfile)
        elif self.options.image == DEFAULT_IMAGE:  # never from a registry, where the name may be anybody's
            self._image = await default_image(self.engine)
        else:
            self._image = await self.engine.image(self.options.image, self.pull)

    async def _launch(self) -> Connection:
        assert self._image is not None
        labels = owner.labels(self.limits.lifetime)
        config = container_config(self.options, self._image.id, labels, self._image.volumes)
        self._launched = await self.engine.launch(f"gymnast-{uuid.uuid4().hex[:12]}", config)
        reap_once(self.engine)
        for warning in self._launched.warnings:
            logger.warning("the engine refused a limit: %s", warning)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: AttachedConnection(self._max_payload), sock=self._launched.socket
        )
        return connection

    def _settings(self) -> dict[str, Any]:
        return box_settings(self.options, pipes=self._may_be_direct)

    async def _answer_offer(self, connection: Connection, offer: dict[str, Any]) -> Reply:
        pipes = await self._open_pipes(offer) if self._may_be_direct else None
        if pipes is None:
            return await super()._answer_offer(connection, offer)
        assert isinstance(connection, AttachedConnection)
        reply = connection.hello({"op": "pipes", "taken": True})
        connection.use_pipes(*pipes)
        return await reply

    async def _open_pipes(self, offer: dict[str, Any]) -> tuple[int, int] | None:
        assert self._launched is not None
        try:
            init = await self.engine.call(self.engine.client.process, self._launched.container)
        except EngineError:
            return None  # the container has ended, which the socket tells, or the engine cannot say
        return open_pipes(init, offer)

    @property
    def _may_be_direct(self) -> bool:
        return self.engine.direct and self.options.runtime is None  # what another runtime's processes are, it knows

    def _explain(self, said: str) -> Exception | None:
        return ImageError(f"{self.what} has no python3 on its PATH") if "exec python3 failed" in said else None

    def _remove_soon(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.socket.close()
            self.engine.remove_soon(launched.container)

    async def _remove(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.engine.remove(launched.container)
            except (EngineError, TimeoutError) as error:
                logger.warning("container %.12s was not removed; it ends by itself: %s", launched.container, error)
        session, self._session = self._session, None
        if session is not None:
            await self.engine.close(session)

    @property
    def _reusable(self) -> bool:
        return self.options.read_only


def _check_image(image: str | Path, pull: str) -> None:
    if not isinstance(image, str | Path):
        raise TypeError(f"image must be a name, or a Dockerfile's folder as a Path, got {image!r}")
    if not str(image).strip():
        raise ValueError(f"image must name an image, such as 'python:3.12-slim', got {image!r}")
    if pull not in ("never", "missing", "always"):
        raise ValueError(f"pull must be 'never', 'missing' or 'always', got {pull!r}")
    if pull == "always" and (isinstance(image, Path) or image == DEFAULT_IMAGE):
        raise ValueError(
            f"pull='always' fetches an image from its registry, and {str(image)!r} is made on this machine: "
            "leave out pull="
        )
    if pull == "never" and isinstance(image, Path):
        raise ValueError(
            f"pull='never' is about an image from a registry, and that of the folder {str(image)!r} is built here, "
            "which fetches what its Dockerfile begins FROM: leave out pull=, or build the image yourself and name it"
        )


def _check_network(network: str) -> None:
    if not isinstance(network, str):
        raise TypeError(f"network must be a name, 'none' for no network, got {network!r}")
    if network in ("", "default"):  # the engine takes both for its bridge
        raise ValueError(f"network={network!r} would be the engine's bridge: say 'none', or 'bridge' if you mean it")
    if network == "host" or network.startswith("container:"):
        raise ValueError(f"network={network!r} would put untrusted code into another network namespace")
