"""Connects to the Docker engine: its address, and docker-py's client with a timeout for every request."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import EngineError, EngineUnansweredError

if TYPE_CHECKING:
    from docker import APIClient

Result = TypeVar("Result")

_CONNECT_SECONDS = 30.0

INSTALL = (
    "On Debian or Ubuntu: `apt-get install docker.io`, then `systemctl start docker` (or run `dockerd`); "
    "elsewhere see https://docs.docker.com/engine/install/. DOCKER_HOST names another engine."
)

_ADDRESSES = "a box needs an engine at unix:// or plain tcp://"
_FORWARD = "forward a remote engine's socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST"


class StreamConnection:
    """A connection to the engine for one streamed response; another thread may close it.

    Reading fails after `silence` seconds without a piece.
    """

    def __init__(self, version: str, silence: float, settings: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._hung_up = False
        self._response: Any = None
        self.api = make_api(version=version, timeout=silence, on_response=self._on_response, **settings)

    def _on_response(self, response: Any) -> None:
        with self._lock:
            self._response = response
            if self._hung_up:
                self._shut_down()

    def hang_up(self) -> None:
        """End the response now; the thread that reads it gets an error."""
        with self._lock:
            self._hung_up = True
            if self._response is not None:
                self._shut_down()

    def close(self) -> None:
        """Release the connection. No thread may be reading it."""
        with self._lock:
            if self._response is not None:
                self._response.close()
            self._response = None
        self.api.close()

    def _shut_down(self) -> None:
        with (
            contextlib.suppress(OSError, ValueError),  # it has ended already
            socket.socket(fileno=os.dup(self._response.raw.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)


def map_errors(function: Callable[..., Result], *args: Any) -> Result:
    """Run a blocking call, and convert docker-py's errors, and those of its libraries, to `EngineError`."""
    import requests
    import urllib3
    from docker.errors import APIError, DockerException

    try:
        return function(*args)
    except APIError as error:
        raise EngineError(f"the engine refused: {error.explanation or error}") from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise EngineUnansweredError(f"the engine does not answer: {error}") from error


@contextlib.contextmanager
def accepting(*statuses: int) -> Iterator[None]:
    """Accept that the engine refuses with one of these: 404, as the thing is gone, or 409, as it is in use."""
    from docker.errors import APIError

    try:
        yield
    except APIError as error:
        if error.status_code not in statuses:
            raise


def make_api(*, timeout: float, on_response: Callable[[Any], None] | None = None, **settings: Any) -> APIClient:
    """Return docker-py's client with a timeout for every request: docker-py's `pull` sets no timeout."""
    from docker import APIClient  # imported late: it takes longer than the rest of the package

    class Api(APIClient):
        def send(self, request: Any, **options: Any) -> Any:
            if options.get("timeout") is None:
                options["timeout"] = timeout
            response = super().send(request, **options)
            if on_response is not None:
                on_response(response)
            return response

    # `requests` accepts fractions of a second, unlike docker-py's annotation.
    return Api(timeout=timeout, **settings)  # pyright: ignore[reportArgumentType]


def engine_settings() -> dict[str, Any]:
    """Return the engine's address, for docker-py: DOCKER_HOST, or the current context of the `docker` command."""
    from docker.context import ContextAPI

    encrypted = " and ".join(name for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH") if os.environ.get(name))
    if encrypted:
        raise EngineError(f"{_ADDRESSES}, not over TLS, which {encrypted} asks for: unset it; {_FORWARD}")
    address = os.environ.get("DOCKER_HOST")
    if not address:
        name = os.environ.get("DOCKER_CONTEXT")
        context = ContextAPI.get_context(name)
        if context is None or not context.Host:
            raise EngineError(f"the Docker context {name or '(the current one)'} is not there: see `docker context ls`")
        address = context.Host
    _probe(address)
    return {"base_url": address}


def _probe(address: str) -> None:
    """Connect once, because docker-py reports errors only as text and leaves sockets open."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("unix", "tcp", "http"):
        raise EngineError(f"{_ADDRESSES}, not {address}; {_FORWARD}")
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_CONNECT_SECONDS)
                probe.connect(parts.path)
        else:
            socket.create_connection((parts.hostname, parts.port or 2375), timeout=_CONNECT_SECONDS).close()
    except PermissionError as error:
        raise EngineError(
            f"this user may not use the container engine at {address}: add it to the group `docker` "
            "(`usermod -aG docker $USER`, then log in again), or run as root"
        ) from error
    except OSError as error:
        raise EngineError(f"no container engine answers at {address} ({error}). {INSTALL}") from error
