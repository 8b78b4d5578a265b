"""DockerExecutor: code in a container without network, privileges or a writable root.

The engine creates and removes the container (`engine.py`, `options.py`). Everything else goes over one socket to the
supervisor inside (`host/supervised_executor.py`, `guest/supervisor.py`). When this process dies, the socket closes, and
so the box ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import checked_environment, checked_modules
from ..base import WORKSPACE
from ..box_image import BoxImage, Pull
from ..errors import EngineError, ImageError
from ..host.connection import AttachedConnection, Connection
from ..host.messages import supervisor_settings
from ..host.supervised_executor import START_TIMEOUT, SupervisedExecutor
from ..images.image import DEFAULT_IMAGE, ImageFacts
from ..keywords import checks_keywords
from ..limits import Limits, check_limits
from . import labels
from .client import EVENT_SECONDS, Launched
from .engine import Engine
from .images import image_facts
from .options import BoxOptions, container_config
from .processor_time import revive
from .reaper import reap_once


@checks_keywords(limits=Limits)
class DockerExecutor(SupervisedExecutor):
    """A box in a Docker container.

        async with DockerExecutor(files={"data.csv": "a,b\n1,2\n"}) as box:
            print((await box.bash("wc -l data.csv")).stdout)

    Args:
        image: the name of an image with Python >= 3.8 (its volumes are empty folders here, and its USER and WORKDIR
            are not used); or, as a `Path`, the folder of a Dockerfile, which is built when it has changed; or a
            `BoxImage`. The default is made by `gymnast sandbox build`.
        limits: the resources that the box may use.
        network: "none"; or "bridge", or the name of another network, which give untrusted code a network.
        runtime: a container runtime that protects more than the shared kernel does, such as "runsc" (gVisor, with some
            differences: docs/security.md).
        env: environment variables for the code. The host's environment is not passed on.
        files: the content of `/workspace` after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        pull: when to fetch the image from its registry; "always" fetches it once for each `Engine`. The default image
            is never fetched. Leave this out with a Dockerfile's folder and a `BoxImage`.
        preload: modules to import before the first session, for which their import then takes no time.
        read_only: whether the root file system is read-only; otherwise `reset` replaces the box.
        seccomp: None for our filter of system calls; a profile as JSON, or "unconfined".
        engine: an `Engine` to share; without one the executor and its clones share their own.
        best_effort: whether a box may start although the engine does not hold one of its limits, which is then logged.
        start_timeout: seconds until the box must be ready. The time to fetch its image (given up after 60 s without a
            word from the engine) or to build it (after 10 minutes) does not count.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range, or two contradict one another.
    """

    def __init__(
        self,
        *,
        image: str | Path | BoxImage = DEFAULT_IMAGE,
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
        best_effort: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.image = _checked_image(image, pull)
        _check_network(network)
        limits = check_limits(limits)
        super().__init__(limits=limits, files=files, start_timeout=start_timeout)
        self.options = BoxOptions(
            limits=limits,
            network=network,
            runtime=runtime,
            read_only=read_only,
            seccomp=seccomp,
            environment=tuple(sorted(checked_environment(env).items())),
            preload=checked_modules(preload),
        )
        self.best_effort = best_effort
        self.engine = engine or Engine()
        self._given_engine = engine  # part of the key: two executors with engines of their own are alike
        self.what = f"the image {str(self.image)!r}"
        self._reusable = read_only

    @property
    def key(self) -> Hashable:
        return (type(self), self.image, self.options, self.best_effort, self._given_engine)

    @property
    def creators(self) -> int:
        return self.engine.creators

    def _renew(self) -> None:
        super()._renew()
        self._has_engine = False  # this executor has opened it
        self._facts: ImageFacts | None = None  # about the image
        self._launched: Launched | None = None
        self._user = 0  # the id of the code's user in the box

    async def prepare(self) -> None:
        async with self.engine:
            await image_facts(self.engine, self.image)

    async def _prepare(self) -> None:
        if not self._has_engine:
            await self.engine.open()
            self._has_engine = True
        self._facts = await image_facts(self.engine, self.image)

    async def _launch(self) -> Connection:
        assert self._facts is not None
        own_labels = labels.labels(self.limits.lifetime)
        self._user = await self.engine.new_user()
        config = container_config(self.options, self._facts.id, own_labels, self._facts.volumes, user=self._user)
        name = f"gymnast-{uuid.uuid4().hex[:12]}"
        self._launched = await self.engine.launch(name, config, best_effort=self.best_effort)
        reap_once(self.engine)
        loop = asyncio.get_running_loop()
        # The event loop gets a socket of its own: `_remove` may close ours before the loop has begun to read.
        sock = self._launched.socket.dup()
        _, connection = await loop.create_connection(lambda: AttachedConnection(self.limits), sock=sock)
        return connection

    def _settings(self) -> dict[str, Any]:
        options = self.options
        environment = dict(options.environment)
        return supervisor_settings(self.limits, WORKSPACE, environment, options.preload, user=self._user)

    def _explain(self, said: str) -> Exception | None:
        if "exec python3 failed" not in said:
            return None
        if "Exec format error" in said:
            return ImageError(f"{self.what} was built for another processor architecture")
        return ImageError(f"{self.what} has no python3 on its PATH")

    async def _ran_out_of_memory(self) -> bool:
        if self._launched is None:
            return False
        try:
            return await self.engine.talk(EVENT_SECONDS, self.engine.client.ran_out_of_memory, self._launched.container)
        except EngineError:
            return False

    async def _revive(self, was_revived: bool) -> bool:
        """Help a box that its processor limit holds up. Another silent box is paused or hostile: nothing helps it."""
        if self._launched is None:
            return False
        try:
            return await self.engine.call(revive, self.engine.client.api, self._launched.container, was_revived)
        except EngineError:
            return False

    def _remove(self, *, is_silent: bool) -> concurrent.futures.Future[None] | None:
        launched, self._launched = self._launched, None
        if launched is None:
            return None
        launched.socket.close()
        return self.engine.connection.remove(launched.container, is_silent=is_silent)

    async def _release(self, deadline: float) -> None:
        if self._has_engine:
            self._has_engine = False
            await self.engine.close(deadline)


def _checked_image(image: str | Path | BoxImage, pull: Pull) -> BoxImage:
    if isinstance(image, BoxImage):
        if pull != "missing":
            raise ValueError(f"a BoxImage says itself when to fetch it: give pull={pull!r} to BoxImage.named")
        return image
    if not isinstance(image, str | Path):
        raise TypeError(f"image must be a name, a Dockerfile's folder as a Path, or a BoxImage, got {image!r}")
    if isinstance(image, str) and image.startswith((".", "/", "~")):
        raise ValueError(
            f"image={image!r} is a folder: to build its Dockerfile, give it as a Path, image=Path({image!r})"
        )
    named = BoxImage.named(str(image), pull=pull)
    if (pull == "always" and image == DEFAULT_IMAGE) or (pull != "missing" and isinstance(image, Path)):
        raise ValueError(
            f"pull={pull!r} is for images from a registry, and {str(image)!r} is made on this machine: leave out pull="
        )
    return BoxImage.dockerfile(image) if isinstance(image, Path) else named


def _check_network(network: str) -> None:
    if not isinstance(network, str):
        raise TypeError(f"network must be a name, 'none' for no network, got {network!r}")
    if network in ("", "default"):  # the engine takes both for its bridge
        raise ValueError(f"network={network!r} would be the engine's bridge: say 'none', or 'bridge' if you mean it")
    if network == "host" or network.startswith("container:"):
        raise ValueError(f"network={network!r} would put untrusted code into another network namespace")
