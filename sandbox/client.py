"""What docker-py does for us: blocking calls, for the threads of an `Engine`; their errors are ours."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import EngineError, EngineUnansweredError, ImageError
from .owner import LABEL

if TYPE_CHECKING:
    from docker import APIClient

Result = TypeVar("Result")

logger = logging.getLogger("gymnast.sandbox")

CALL_SECONDS = 30.0  # for one answer of the engine

INSTALL = (
    "On Debian or Ubuntu: `apt-get install docker.io`, then `systemctl start docker` (or run `dockerd`); "
    "elsewhere see https://docs.docker.com/engine/install/. DOCKER_HOST names another engine."
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Launched:
    """A running container, and the socket that its standard streams are attached to."""

    container: str
    socket: socket.socket
    warnings: tuple[str, ...]  # measures that the engine refused


@dataclass(kw_only=True, slots=True, frozen=True)
class Image:
    """What is asked about an image before a container is made of it."""

    id: str
    volumes: list[str]
    labels: dict[str, str]
    size: int  # bytes


class Client:
    """One connection to an engine.

    Args:
        threads: how many may use it at a time.

    Raises:
        EngineError: no engine answers, or it may not be used; the message says what to do.
    """

    def __init__(self, threads: int) -> None:
        self.api = _connect(threads)

    # Images.

    def inspect(self, name: str) -> Image | None:
        """What the engine knows of an image; None if it has none of this name."""
        from docker.errors import ImageNotFound

        try:
            answer = self.api.inspect_image(name)
        except ImageNotFound:
            return None
        config = answer.get("Config") or {}
        return Image(
            id=answer["Id"],
            volumes=sorted(config.get("Volumes") or {}),
            labels=config.get("Labels") or {},
            size=answer["Size"],
        )

    def pull(self, name: str) -> None:
        """Fetch an image from its registry.

        Raises:
            ImageError: it could not be fetched.
        """
        from docker.errors import APIError

        logger.info("fetching the image %s", name)
        try:
            lines = list(self.api.pull(name, tag=None if ":" in name else "latest", stream=True, decode=True))
        except APIError as error:
            raise ImageError(f"the image {name!r} could not be fetched: {error.explanation}") from error
        if lines and "error" in lines[-1]:
            raise ImageError(f"the image {name!r} could not be fetched: {lines[-1]['error']}")

    def remove_untagged(self, image: str) -> None:
        """Remove an image by its id if no name is left to it; one that something is made of stays."""
        from docker.errors import APIError, ImageNotFound

        try:
            if not self.api.inspect_image(image).get("RepoTags"):
                self.api.remove_image(image)
        except ImageNotFound:
            pass
        except APIError as error:
            if error.status_code != 409:
                raise

    # Containers.

    def launch(self, name: str, config: dict[str, Any]) -> Launched:
        """Create, attach and start a container; one that does not start is removed."""
        made = self.api.create_container_from_config(config, name)
        attached = None
        try:
            attached = _attach(self.api, made["Id"])
            self.api.start(made["Id"])
        except BaseException:
            if attached is not None:
                attached.close()
            self.remove(made["Id"])
            raise
        return Launched(container=made["Id"], socket=attached, warnings=tuple(made.get("Warnings") or ()))

    def process(self, container: str) -> int:
        """The number of a running container's first process, on the engine's machine; 0 if it is not told."""
        return int(self.api.inspect_container(container).get("State", {}).get("Pid") or 0)

    def remove(self, container: str) -> bool:
        """Remove a container, running or not, and wait until it is gone; returns whether it was there."""
        from docker.errors import APIError, NotFound

        try:
            self.api.remove_container(container, force=True, v=True)
        except NotFound:
            return False
        except APIError as error:
            if error.status_code != 409:
                raise
            # Somebody else, or the engine itself, is removing it.
            with contextlib.suppress(NotFound):
                self.api.wait(container, condition="removed", timeout=int(CALL_SECONDS))
        return True

    def remove_or_log(self, container: str) -> None:
        """`remove` where nobody waits for an error."""
        try:
            self.remove(container)
        except Exception as error:
            logger.warning("container %.12s was not removed; it ends by itself: %s", container, error)

    def containers(self) -> list[dict[str, Any]]:
        """The containers that boxes were made of, by any process, in any state."""
        return self.api.containers(all=True, filters={"label": LABEL})


def translate(function: Callable[..., Result], *args: Any) -> Result:
    """Run a blocking call, its errors as ours."""
    import requests
    from docker.errors import APIError, DockerException

    try:
        return function(*args)
    except APIError as error:
        raise EngineError(f"the engine refused: {error.explanation or error}") from error
    except (DockerException, requests.RequestException) as error:
        raise EngineUnansweredError(f"the engine does not answer: {error}") from error


def _connect(threads: int) -> APIClient:
    from docker import APIClient  # loading it takes longer than the rest of the package
    from docker.constants import DEFAULT_UNIX_SOCKET
    from docker.utils import kwargs_from_env

    settings = kwargs_from_env()
    address = settings.get("base_url") or DEFAULT_UNIX_SOCKET.replace("http+unix", "unix")
    _probe(address, tls="tls" in settings)
    # The default of ten connections would make the other threads open a new one for each call.
    return APIClient(version="auto", timeout=int(CALL_SECONDS), max_pool_size=threads, **settings)


def _probe(address: str, *, tls: bool) -> None:
    """Connect once, as docker-py's own errors are texts and leave sockets open."""
    parts = urllib.parse.urlsplit(address)
    if tls or parts.scheme not in ("unix", "tcp", "http"):
        raise EngineError(
            f"a box needs an engine at unix:// or plain tcp://, not {'TLS at ' if tls else ''}{address}; "
            "forward a remote engine's socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST"
        )
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CALL_SECONDS)
                probe.connect(parts.path)
        else:
            socket.create_connection((parts.hostname, parts.port or 2375), timeout=CALL_SECONDS).close()
    except PermissionError as error:
        raise EngineError(
            f"this user may not use the container engine at {address}: add it to the group `docker` "
            "(`usermod -aG docker $USER`, then log in again), or run as root"
        ) from error
    except OSError as error:
        raise EngineError(f"no container engine answers at {address} ({error}). {INSTALL}") from error


def _attach(api: APIClient, container: str) -> socket.socket:
    """The connection to a container's streams as a socket of our own, for the event loop."""
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    wrapper: Any = api.attach_socket(container, params=params)
    try:
        # docker-py closes the connection when its wrapper is collected: we keep a duplicate instead.
        attached = socket.socket(fileno=os.dup(wrapper.fileno()))
    finally:
        wrapper._response.close()
        wrapper.close()
    attached.setblocking(False)
    return attached
