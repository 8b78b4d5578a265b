"""One box of each peer behind the same methods, so that all are timed by the same program (`measure.py`).

Only the standard library is imported before a box is made: each peer lives in a virtual environment of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")

FLOOD = 'import sys\nfor _ in range({megabytes}):\n    sys.stdout.write(("x" * 99 + "\\n") * 10_000)\n'

LLM_OPTIONS = {"skip_environment_setup": True, "keep_template": True}
LLM_CONTAINER = {"command": "sleep infinity", "init": True}


class Box(Protocol):
    """A peer's box; `start` and `stop` it once."""

    what: str  # what one execution is

    def start(self) -> None: ...

    def execute(self) -> None:
        """Run the smallest program; fail if its answer is wrong."""
        ...

    def flood(self, megabytes: int) -> int:
        """Print this much output, and return how many bytes came back."""
        ...

    def stop(self) -> None: ...


class SmolagentsBox:
    """`smolagents.remote_executors.DockerExecutor`: a Jupyter kernel behind a gateway."""

    what = "stateful Python cell"

    def __init__(self, image: str) -> None:
        self.image = image
        self.count = 0

    def start(self) -> None:
        from smolagents.monitoring import AgentLogger, LogLevel  # type: ignore
        from smolagents.remote_executors import DockerExecutor  # type: ignore

        logger = AgentLogger(level=LogLevel.OFF)
        options = {"image_name": self.image, "build_new_image": False, "port": _free_port()}
        self.box = DockerExecutor([], logger, **options)
        self.box("counter = 0")

    def execute(self) -> None:
        self.count += 1
        answer = self.box("counter += 1\nprint(counter)").logs.strip()
        assert answer == str(self.count), f"the {self.count}th execution answered {answer!r}"

    def flood(self, megabytes: int) -> int:
        return len(self.box(FLOOD.format(megabytes=megabytes)).logs)

    def stop(self) -> None:
        self.box.cleanup()


class LlmSandboxBox:
    """`llm_sandbox.SandboxSession` at its best: without its set-up of a virtual environment, which takes seconds, and
    with an init process, without which its `close` takes ten.
    """

    what = "stateless Python program"

    def __init__(self, image: str) -> None:
        self.image = image

    def start(self) -> None:
        from llm_sandbox import SandboxSession  # type: ignore

        self.box = SandboxSession(lang="python", image=self.image, runtime_configs=LLM_CONTAINER, **LLM_OPTIONS)
        self.box.open()

    def execute(self) -> None:
        answer = self.box.run("print(1)")
        assert answer.stdout.strip() == "1", f"print(1) answered {answer.stdout!r} {answer.stderr!r}"

    def flood(self, megabytes: int) -> int:
        return len(self.box.run(FLOOD.format(megabytes=megabytes)).stdout)

    def stop(self) -> None:
        self.box.close()


class LlmSandboxPool:
    """`llm_sandbox.pool`, warm; it lends a container as the last borrower left it.

    Its sessions run the Python of the virtual environment that it would have taken seconds to make: here a link.
    """

    what = "a container that is not cleaned in between"
    command = "sh -c 'mkdir -p {bin} && ln -s $(command -v python3) {bin}/python && exec sleep infinity'"

    def __init__(self, image: str, boxes: int) -> None:
        from llm_sandbox.pool import PoolConfig, create_pool_manager  # type: ignore

        self.pool = create_pool_manager(
            config=PoolConfig(min_pool_size=boxes, max_pool_size=boxes),
            lang="python",
            image=image,
            runtime_configs={**LLM_CONTAINER, "command": self.command.format(bin="/sandbox/.sandbox-venv/bin")},
            **LLM_OPTIONS,
        )

    def lease(self) -> AbstractContextManager[Any]:
        from llm_sandbox.pool import PooledSandboxSession  # type: ignore

        return PooledSandboxSession(pool_manager=self.pool)

    def close(self) -> None:
        self.pool.close()


class SweRexBox:
    """`swerex.deployment.docker.DockerDeployment`: a web server with a shell session."""

    what = "stateful shell command"

    def __init__(self, image: str) -> None:
        self.image = image
        self.count = 0

    def start(self) -> None:
        from swerex.deployment.docker import DockerDeployment  # type: ignore
        from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest  # type: ignore

        self.action, self.command = BashAction, Command
        self.loop = asyncio.Runner()
        self.box = DockerDeployment(image=self.image, pull="never")
        self._wait(self.box.start)
        self._wait(lambda: self.box.runtime.create_session(CreateBashSessionRequest()))
        self._shell("counter=0")

    def execute(self) -> None:
        self.count += 1
        answer = self._shell("counter=$((counter + 1)); echo $counter").strip()
        assert answer == str(self.count), f"the {self.count}th execution answered {answer!r}"

    def flood(self, megabytes: int) -> int:
        # Not in the session, which does not return from as much within a minute.
        command = self.command(command=["python3", "-c", FLOOD.format(megabytes=megabytes)])
        return len(self._wait(lambda: self.box.runtime.execute(command)).stdout)

    def stop(self) -> None:
        self._wait(self.box.stop)
        self.loop.close()

    def _shell(self, command: str) -> str:
        return self._wait(lambda: self.box.runtime.run_in_session(self.action(command=command))).output

    def _wait(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self.loop.run(call())


BOXES: dict[str, Callable[[str], Box]] = {
    "smolagents": SmolagentsBox,
    "llm-sandbox": LlmSandboxBox,
    "swe-rex": SweRexBox,
}
POOLS = {"llm-sandbox": LlmSandboxPool}  # the others have none


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
