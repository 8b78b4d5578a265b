"""The blocking calls to the engine, by docker-py, for the threads of an `Engine`; their errors become ours."""

from __future__ import annotations

import datetime
import logging
import os
import re
import socket
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import EngineError, ImageError
from ..images.image import ImageFacts
from .connect import StreamConnection, accepting, engine_settings, make_api
from .labels import LABEL
from .processor_time import forgive_processor_time

if TYPE_CHECKING:
    from docker import APIClient


logger = logging.getLogger(__name__)

CALL_SECONDS = 30.0  # for one answer of the engine
PULL_SECONDS = 60.0  # of silence, while the engine fetches an image
EVENT_SECONDS = 1.0  # of silence, while it lists the events of a container
_ENDING_SECONDS = 8  # in which the engine removes a container that ends
_REMOVALS = 3  # attempts
_HELD = {"MemoryLimit": "memory", "SwapLimit": "swap", "CpuCfsQuota": "cpus", "PidsLimit": "pids"}  # in `info`: ours
_KILLED = "137"  # the exit code of a container whose first process was killed

_REMEDY = (
    "Enable it on the engine's machine (a rootless engine needs control groups of version 2, delegated to it by "
    "systemd), use an engine that runs as root, or accept code without this limit: DockerExecutor(best_effort=True)"
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Launched:
    """A running container, and the socket that its standard streams are attached to."""

    container: str
    socket: socket.socket


class Client:
    """One connection to an engine, for so many threads at a time.

    Raises:
        EngineError: no engine answers, or this user may not use it; the message says what to do.
    """

    def __init__(self, threads: int) -> None:
        self._settings = engine_settings()
        self._warned: set[str] = set()
        # With the default of ten connections, the other threads would open a new one for each call.
        self.api = make_api(version="auto", timeout=int(CALL_SECONDS), max_pool_size=threads, **self._settings)
        components = self.api.version().get("Components") or ()
        if any("podman" in str(component.get("Name")).lower() for component in components):
            self.api.close()
            raise EngineError(
                "this engine is Podman, which takes the filter of system calls in another form: use Docker's engine; "
                "LocalExecutor runs code that you trust without one"
            )

    def open_stream(self, silence: float) -> StreamConnection:
        """Return a connection for one long answer, which fails after so many seconds of silence."""
        return StreamConnection(self.api.api_version, silence, self._settings)

    @property
    def address(self) -> str:
        """The engine's address as the `docker` command takes it."""
        return self._settings["base_url"].replace("http://", "tcp://")

    @cached_property
    def info(self) -> dict[str, Any]:
        """The engine's facts about itself, as they were when first needed."""
        return self.api.info()

    def maps_users(self) -> bool:
        """Whether containers have only 65536 user ids: the engine is rootless, or maps their users (userns-remap)."""
        options = self.info.get("SecurityOptions") or ()
        return any(name in option for option in options for name in ("rootless", "userns"))

    # Images.

    def inspect(self, name: str) -> ImageFacts | None:
        """Return the engine's facts about an image, or None if it does not have the image."""
        from docker.errors import ImageNotFound

        try:
            answer = self.api.inspect_image(name)
        except ImageNotFound:
            return None
        config = answer.get("Config") or {}
        return ImageFacts(
            id=answer["Id"],
            volumes=sorted(config.get("Volumes") or {}),
            labels=config.get("Labels") or {},
            size=answer["Size"],
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "",
            environment={line.partition("=")[0]: line.partition("=")[2] for line in config.get("Env") or ()},
        )

    @staticmethod
    def pull(stream: StreamConnection, name: str) -> None:
        """Fetch an image from its registry; ImageError if that fails."""
        from docker.errors import APIError

        logger.info("fetching the image %s", name)
        try:
            lines = list(stream.api.pull(name, tag=None if ":" in name else "latest", stream=True, decode=True))
        except APIError as error:
            raise ImageError(f"the image {name!r} could not be fetched: {error.explanation}") from error
        if lines and "error" in lines[-1]:
            raise ImageError(f"the image {name!r} could not be fetched: {lines[-1]['error']}")

    def remove_untagged(self, image: str) -> None:
        """Remove an image, given by its id, if it has no name left and no container or image uses it."""
        with accepting(404, 409):
            if not self.api.inspect_image(image).get("RepoTags"):
                self.api.remove_image(image)

    # Containers.

    def launch(self, name: str, config: dict[str, Any], best_effort: bool) -> Launched:
        """Create, attach and start a container; remove it again if one of these fails."""
        self._check_limits(best_effort)
        made = self.api.create_container_from_config(config, name)
        attached = None
        try:
            for warning in made.get("Warnings") or ():
                self._warn(warning, best_effort or not re.search("discarded|without swap", warning))
            attached = _attach(self.api, made["Id"])
            self.api.start(made["Id"])
        except BaseException:
            if attached is not None:
                attached.close()
            self.remove(made["Id"])
            raise
        return Launched(container=made["Id"], socket=attached)

    def _check_limits(self, best_effort: bool) -> None:
        """Raise EngineError if the engine cannot hold a limit. Not every engine says so when it makes a container."""
        absent = [ours for field, ours in _HELD.items() if self.info.get(field) is False]
        if absent:
            driver = self.info.get("CgroupDriver")
            self._warn(f"it does not limit {', '.join(absent)} (its driver of control groups: {driver}).", best_effort)

    def _warn(self, warning: str, accepted: bool) -> None:
        """Log a warning about the engine once for this connection; EngineError unless it is accepted."""
        if not accepted:
            raise EngineError(f"the engine does not hold a limit: {warning} {_REMEDY}")
        if warning not in self._warned:
            self._warned.add(warning)
            logger.warning("the engine warns: %s", warning)

    def remove(self, container: str, is_silent: bool = False) -> bool:
        """Remove a container in any state, and wait until it is gone. Return whether it was there.

        The engine itself removes a container that ends. A request to remove it at that moment can leave it half removed
        for ever. So this waits for the engine first, and asks only if the container does not end, or cannot: if its
        supervisor is silent, it may not end by itself. EngineError if it is still there after several attempts.
        """
        for attempt in range(_REMOVALS):
            state = self._state(container)
            if state is None:
                return attempt > 0
            is_stuck = state == "paused" or (is_silent and state == "running")
            cannot_end = state == "created" or (is_stuck and attempt == 0)
            if cannot_end or not self._removes_itself(container):
                if state == "running":
                    forgive_processor_time(self.api, container)
                self._ask_to_remove(container)
        if self._state(container) is None:
            return True
        raise EngineError(f"the container {container} is still there after {_REMOVALS} requests to remove it")

    def _state(self, container: str) -> str | None:
        """Return the state of a container, such as "running", or None if it does not exist."""
        with accepting(404):
            return self.api.inspect_container(container)["State"]["Status"]
        return None

    def _removes_itself(self, container: str) -> bool:
        """Wait until a container is gone; return False if it is still there after some seconds."""
        import requests
        from docker.errors import NotFound

        try:
            self.api.wait(container, condition="removed", timeout=_ENDING_SECONDS)
        except NotFound:
            return True
        except requests.RequestException:
            return False  # if the engine does not answer at all, the next request says so
        return True

    def _ask_to_remove(self, container: str) -> None:
        with accepting(404, 409):  # it is gone, or being removed
            self.api.remove_container(container, force=True, v=True)

    @staticmethod
    def ran_out_of_memory(stream: StreamConnection, container: str) -> bool:
        """Whether a container was killed for memory.

        The engine keeps its last 256 events, of all containers together: ask as soon as the container has ended.
        """
        import urllib3

        seen: set[str] = set()
        filters = {"container": container, "event": ["oom", "die"]}
        try:
            for event in stream.api.events(since=1, filters=filters, decode=True):
                seen.add(event["Action"])
                if event["Action"] == "die" and event["Actor"]["Attributes"].get("exitCode") != _KILLED:
                    return False
                if seen == {"oom", "die"}:
                    return True
        except urllib3.exceptions.HTTPError:
            pass  # the engine sent no further event
        return False

    def now(self) -> float:
        """Return the engine's time, in seconds since 1970. Its clock may differ from ours."""
        return datetime.datetime.fromisoformat(self.api.info()["SystemTime"]).timestamp()

    def containers(self) -> list[dict[str, Any]]:
        """List the containers of all boxes, of any process and in any state."""
        return self.api.containers(all=True, filters={"label": LABEL})


def _attach(api: APIClient, container: str) -> socket.socket:
    """Connect to a container's standard streams; return a socket for the event loop."""
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    wrapper: Any = api.attach_socket(container, params=params)
    try:
        # docker-py closes the connection when its wrapper is garbage-collected: keep a duplicate.
        attached = socket.socket(fileno=os.dup(wrapper.fileno()))
    finally:
        wrapper._response.close()
        wrapper.close()
    attached.setblocking(False)
    return attached
