"""RayVLLMServers: vLLM servers on the GPUs of a Ray cluster."""

# pyright: reportMissingImports=false
# Ray is an optional dependency, so it is imported inside functions.

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, Self

from ...envs.core import ConfigurationError
from .joining import PLACEMENT_SECONDS, Places, Resources, joined_ray, options_of

PROBE_SECONDS = 0.5
LAST_LINES = 20  # of a server that did not start, in the error

SERVE = ("python", "-m", "gymnast.trainer.vllm.serve")
"""Starts a server; the interpreter is that of the cluster's nodes."""


class ServerActor:
    """One server, as a child process of a Ray actor that holds its GPUs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as this process, and gone with it)

    def start(self, command: Sequence[str], seconds: float) -> str:
        """Start the server, wait until it is healthy, and return its URL.

        Its port is free now; if another process is faster to take it, the server's own words say so.

        Raises:
            RuntimeError: it ended, or is not healthy in time; with the last lines of its output.
        """
        import ray

        if command[0] == "python":
            command = [sys.executable, *command[1:]]
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        tether = [sys.executable, "-m", "gymnast.cluster.on_ray.tethered"]
        self._process = subprocess.Popen(
            [*tether, *command, "--host=0.0.0.0", f"--port={port}"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ray kills the process group of an ended actor, which the tether must outlive
        )
        self._await_health(port, seconds)
        return f"http://{ray.util.get_node_ip_address()}:{port}"

    def stop(self) -> None:
        """End the server, and wait for its end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # see tethered.py
            self._process.wait()

    def _await_health(self, port: int, seconds: float) -> None:
        assert self._process is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self._last_lines()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PROBE_SECONDS):
                    return
            except OSError:  # URLError is one
                time.sleep(PROBE_SECONDS)
        raise RuntimeError(f"the server was not healthy within {seconds:g} s:\n{self._last_lines()}")

    def _last_lines(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-LAST_LINES:])


class RayVLLMServers:
    """vLLM servers on a Ray cluster, for `generator="vllm-server"`.

        with RayVLLMServers("Qwen/Qwen3-8B", 4, gpus=2) as servers:
            args = GRPOConfig(generator="vllm-server", vllm_server_urls=servers.urls, ...)

    Each server is `gymnast serve vllm`, a process of its own on GPUs that Ray reserves for it. It
    ends with `close`, or with this process. Servers that somebody else runs need no such object: their URLs
    are `vllm_server_urls`. Anyone who reaches a server's port can change its model, so the cluster's network must be
    one that you trust.

    Args:
        model: The model's name, or a folder that every node has.
        servers: Their number.
        gpus: GPUs of each server, all on one node; several share the model (`--tensor-parallel-size`).
        arguments: Further options of `vllm serve`, such as `["--max-model-len=8192"]`.
        command: Starts a server, where vLLM is in another environment: `["/opt/vllm/bin/python", "-m", ...]`. It gets
            the model, the options, `--host` and `--port`; "python" alone means the interpreter of the node's Ray.
        placement_timeout: Seconds to find the GPUs.
        start_timeout: Seconds until all servers must be healthy.

    Raises:
        ConfigurationError: the cluster lacks the GPUs, or a server did not start; with its last words.
    """

    urls: list[str]

    def __init__(
        self,
        model: str,
        servers: int = 1,
        *,
        gpus: int = 1,
        arguments: Sequence[str] = (),
        command: Sequence[str] = SERVE,
        placement_timeout: float = PLACEMENT_SECONDS,
        start_timeout: float = 900.0,
    ) -> None:
        if servers < 1 or gpus < 0:
            raise ValueError(f"servers must be at least 1 and gpus at least 0, got {servers} and {gpus}")
        parallel = [f"--tensor-parallel-size={gpus}"] if gpus > 1 else []
        full_command = [*command, model, *parallel, *arguments]
        self._ray: Any = joined_ray()
        self._actors: list[Any] = []
        resources = {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}
        self._places = Places(self._ray, "vLLM servers", servers, resources, strategy="PACK", timeout=placement_timeout)
        try:
            self.urls = self._start(full_command, resources, start_timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the servers and wait until they are gone."""
        actors, self._actors = self._actors, []
        stops = [actor.stop.remote() for actor in actors]
        self._ray.wait(stops, num_returns=len(stops), timeout=60) if stops else None
        for actor in actors:
            self._ray.kill(actor)
        self._places.free()

    def _start(self, command: list[str], resources: Resources, seconds: float) -> list[str]:
        actor_class = self._ray.remote(ServerActor)
        options = options_of(resources) | {"max_concurrency": 2}  # `stop` may come during `start`
        for strategy in self._places.strategies:
            self._actors.append(actor_class.options(scheduling_strategy=strategy, **options).remote())
        starts = [actor.start.remote(command, seconds) for actor in self._actors]
        try:
            return self._ray.get(starts)
        except self._ray.exceptions.RayTaskError as error:
            raise ConfigurationError(f"a vLLM server did not start: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            raise ConfigurationError(f"the node of a vLLM server was lost: {error}") from error
