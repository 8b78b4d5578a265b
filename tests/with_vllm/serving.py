"""vLLM for the tests: start, kill and stop servers; ask generators, and judge their answers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import torch

from gymnast.trainer import Generation, GenerationRequest, Generator, Sampling

from ..generation import generating

START_SECONDS = 240
PROMPT = [5 + index % 200 for index in range(100)]


def free_ports(count: int) -> list[int]:
    """Return different free ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


class ServerProcess:
    """`gymnast serve vllm` on a port of this machine, in a process group of its own."""

    def __init__(self, model: Path, port: int, *options: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.model, self.port, self.options = model, port, options
        self._client = httpx2.Client(timeout=30)
        self.log = model.parent / f"server-{port}.log"
        self._process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.model), "--host", "127.0.0.1", "--port", str(self.port), *self.options]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gymnast.cli", "serve", "vllm", *arguments],
                env=os.environ | {"VLLM_LOGGING_LEVEL": "INFO"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_again(self) -> None:
        """Start it again after it was killed. `wait` returns once it is ready."""
        assert self._process.poll() is not None, "it still runs"
        self._process = self._launch()

    def wait(self) -> None:
        """Wait until it is ready."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.get("health").is_success:
                    return
            except httpx2.TransportError:
                time.sleep(0.2)
        raise AssertionError(f"the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def get(self, path: str) -> httpx2.Response:
        return self._client.get(f"{self.url}/{path}")

    def metric(self, name: str) -> float:
        """Return the sum of one of its metrics over all labels."""
        lines = re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", self.get("metrics").text, re.MULTILINE)
        return sum(map(float, lines))

    def kill(self) -> None:
        """End it at once, as a crash does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_engine(self) -> None:
        """End the process that decodes. The process that answers HTTP stays."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        [engine] = [child for child in children if "Engine" in Path(f"/proc/{child}/comm").read_text()]
        os.kill(int(engine), signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=15)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its children
        self._process.wait()
        self._client.close()


def start_servers(model: Path, count: int, options: Sequence[str] = ()) -> list[ServerProcess]:
    """Start several at once, and wait until all are ready. On failure stop all of them."""
    servers = [ServerProcess(model, port, *options) for port in free_ports(count)]
    try:
        for server in servers:
            server.wait()
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers


def ask(prompt: Sequence[int] = PROMPT, seed: int = 0, max_tokens: int = 16, **options: Any) -> GenerationRequest:
    return generating.ask(prompt, seed, max_tokens, **options)


async def answers(generator: Generator, requests: Sequence[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*[generator.generate(request) for request in requests]))


def error(model: Any, found: Generation, sampling: Sampling | None = None) -> float:
    """Return the largest difference between the generator's log-probabilities and those of one forward pass."""
    logprobs_T = generating.plain_logprobs(model, found, sampling or Sampling())
    return float((logprobs_T - torch.tensor(found.logprobs)).abs().max())


def change(model: Any) -> None:
    """Change the weights, as an optimiser step would."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state of servers, which run in other processes."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
