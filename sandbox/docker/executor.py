"""DockerExecutor: code in a container without network, privileges or a writable root.

The container is made as `options.py` says. Everything else goes over one socket to the supervisor inside
(`host/supervised_executor.py`, `guest/supervisor.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..arguments import checked_environment, checked_modules
from ..base import WORKSPACE
from ..box_image import BoxImage, Pull
from ..errors import ImageError
from ..host.connection import Connection
from ..host.messages import supervisor_settings
from ..host.supervised import START_TIMEOUT
from ..host.supervised_executor import SupervisedExecutor
from ..images.image import DEFAULT_IMAGE
from ..keywords import checks_keywords
from ..limits import Limits, check_limits
from . import labels
from .container import DockerSandbox
from .engine import Engine
from .options import BoxOptions, container_config


@checks_keywords(limits=Limits)
class DockerExecutor(DockerSandbox, SupervisedExecutor):
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
        image = _checked_image(image, pull)
        check_network(network)
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
        self._take_image(image)
        self._reusable = read_only

    def variant(self, *, image: str | Path | BoxImage) -> Self:
        twin = self.clone()
        twin._take_image(_checked_image(image, self.image.pull if isinstance(image, str) else "missing"))
        return twin

    @property
    def key(self) -> Hashable:
        return (type(self), self.image, self.options, self.best_effort, self._given_engine)

    def _renew(self) -> None:
        super()._renew()
        self._user = 0  # the id of the code's user in the box

    async def _launch(self) -> Connection:
        own_labels = labels.labels(self.limits.lifetime)
        self._user = await self.engine.new_user()
        config = container_config(self.options, self.facts.id, own_labels, self.facts.volumes, user=self._user)
        return await self._start_container(config)

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


def check_network(network: str) -> None:
    if not isinstance(network, str):
        raise TypeError(f"network must be a name, 'none' for no network, got {network!r}")
    if network in ("", "default"):  # the engine takes both for its bridge
        raise ValueError(f"network={network!r} would be the engine's bridge: say 'none', or 'bridge' if you mean it")
    if network == "host" or network.startswith("container:"):
        raise ValueError(f"network={network!r} would put untrusted code into another network namespace")
