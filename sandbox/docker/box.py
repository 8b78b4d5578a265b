"""DockerBox: a whole machine in a container, in which the code may be root."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Hashable, Mapping
from typing import Any, Self

from ..arguments import checked_environment
from ..box import Capability
from ..box_image import BoxImage
from ..cancellation import removed_at_end
from ..errors import ImageError
from ..host.connection import Connection
from ..host.supervised import START_TIMEOUT
from ..host.supervised_box import SupervisedBox
from ..images.image import DEFAULT_IMAGE
from ..keywords import checks_keywords
from ..limits import Limits, check_limits
from . import labels, snapshots
from .box_options import GUEST_VARIABLES, box_config
from .container import DockerSandbox
from .engine import Engine
from .executor import check_network
from .guest_volume import guest_volume
from .options import BoxOptions

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where the image has none


@checks_keywords(limits=Limits)
class DockerBox(DockerSandbox, SupervisedBox):
    """A box in a Docker container: any image, its user or any other, a root file system that can be written.

        async with DockerBox(image=BoxImage.named("debian:12-slim")) as box:
            print((await box.exec("id; uname -a")).stdout)

    The image needs no Python, no shell and nothing else. Its ENV, USER and WORKDIR hold. Root in the box has no
    privilege outside of it, but trusts the kernel of the host more than the code of a `DockerExecutor` does:
    docs/security.md. Nothing limits the disk that a box fills; `Limits.workspace` and `tmp` are not used.

    Args:
        image: a `BoxImage`, or the name of one. The default is made by `gymnast sandbox build`.
        limits: the resources that the box may use.
        network: "none"; or "bridge", or the name of another network, which give untrusted code a network.
        runtime: a container runtime that protects more than the shared kernel does, such as "runsc" (gVisor).
        env: environment variables for every program, beside the image's.
        user: a name or an id, for programs that name none; None for the image's.
        seccomp: None for our filter of system calls; a profile as JSON, or "unconfined".
        engine: an `Engine` to share; without one the box and its clones share their own.
        best_effort: whether a box may start although the engine does not hold one of its limits, which is then logged.
        start_timeout: seconds until the box must be ready. The time to make its image does not count.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """

    capabilities = SupervisedBox.capabilities | {Capability.SNAPSHOT, Capability.IMAGES}

    def __init__(
        self,
        *,
        image: BoxImage | str = DEFAULT_IMAGE,
        limits: Limits | None = None,
        network: str = "none",
        runtime: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        seccomp: str | None = None,
        engine: Engine | None = None,
        best_effort: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.engine = engine or Engine()
        self._given_engine = engine  # part of the key: two boxes with engines of their own are alike
        self.best_effort = best_effort
        limits = check_limits(limits)
        super().__init__(limits=limits, start_timeout=start_timeout)
        self._take_image(BoxImage.of(image))
        self.user = None if user is None else str(user)
        check_network(network)
        self.options = BoxOptions(
            limits=limits,
            network=network,
            runtime=runtime,
            read_only=False,
            seccomp=seccomp,
            environment=tuple(sorted(checked_environment(env).items())),
        )

    @property
    def key(self) -> Hashable:
        return (type(self), self.image, self.user, self.options, self.best_effort, self._given_engine)

    def variant(
        self, *, image: BoxImage | None = None, limits: Limits | None = None, network: str | None = None
    ) -> Self:
        twin = self.clone()
        if image is not None:
            twin._take_image(BoxImage.of(image))
        if network is not None:
            check_network(network)
        twin.limits = self.limits if limits is None else check_limits(limits)
        twin.options = dataclasses.replace(self.options, limits=twin.limits, network=network or self.options.network)
        return twin

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[BoxImage]:
        """See `Box.snapshot`. The image's volumes are not in it. SandboxFileTooLargeError if it has over 16 GiB."""
        self._require_open()

        def remove(image: str) -> Coroutine[Any, Any, None]:
            return self.engine.call(snapshots.remove, self.engine.client, image)

        async with self.engine, removed_at_end(remove) as make:
            async with self._frozen():
                assert self._launched is not None
                arguments = self._launched.container, self.facts, labels.labels(self.limits.lifetime)
                image = await make(self.engine.talk(snapshots.COMMIT_SECONDS, snapshots.commit, *arguments))
            yield BoxImage.named(image, pull="never")

    async def prepare(self) -> None:
        async with self.engine:
            await super().prepare()
            await guest_volume(self.engine)

    async def _prepare(self) -> None:
        await super()._prepare()
        self._volume = await guest_volume(self.engine)

    async def _launch(self) -> Connection:
        own_labels = labels.labels(self.limits.lifetime)
        return await self._start_container(box_config(self.options, self.facts, own_labels, self._volume))

    def _settings(self) -> dict[str, Any]:
        of_image = self.facts.environment.items()
        of_image = {name: value for name, value in of_image if value or name not in GUEST_VARIABLES}  # of a snapshot
        return {
            "environment": {"PATH": _PATH, **of_image, **dict(self.options.environment)},
            "cwd": self.facts.workdir or "/",
            "user": self.facts.user if self.user is None else self.user,
            "idle": self.limits.idle,
            "lifetime": self.limits.lifetime,
            "measured": 0,
        }

    def _explain(self, said: str) -> Exception | None:
        if "Exec format error" in said:
            return ImageError(f"{self.what} was built for another processor architecture")
        return None
