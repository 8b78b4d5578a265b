"""OpenEnv servers for the tests: in threads of this process, made with OpenEnv's own library."""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

uvicorn: Any = importlib.import_module("uvicorn")
http_server: Any = importlib.import_module("openenv.core.env_server.http_server")
interfaces: Any = importlib.import_module("openenv.core.env_server.interfaces")
types: Any = importlib.import_module("openenv.core.env_server.types")
providers: Any = importlib.import_module("openenv.core.containers.runtime.providers")
mcp_environment: Any = importlib.import_module("openenv.core.env_server.mcp_environment")
mcp_types: Any = importlib.import_module("openenv.core.env_server.mcp_types")
fastmcp: Any = importlib.import_module("fastmcp")


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve the application; the URL. The server ends with the context, and so do its connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


class Containers(providers.ContainerProvider):
    """Its containers are servers in this process; it fails where an event loop would be blocked."""

    def __init__(self) -> None:
        self.running = 0
        self.started = 0
        self._stack = contextlib.ExitStack()

    def start_container(self, image: str, port: int | None = None, env_vars: Any = None, **_: Any) -> str:
        refuse_to_block()
        assert image == "button-env:latest"
        url = self._stack.enter_context(serving(button_app()))
        self.running += 1
        self.started += 1
        return url

    def stop_container(self) -> None:
        refuse_to_block()
        self.running = 0
        self._stack.close()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """It is ready when `serving` has begun."""


def refuse_to_block() -> None:
    """OpenEnv calls a provider inside an event loop; this must not be one that others use."""
    loop_threads = [item for item in threading.enumerate() if item.name == "gymnast-loop"]
    assert threading.current_thread() not in [threading.main_thread(), *loop_threads]


class Press(types.Action):
    """Press the button some times."""

    times: int


class Pressed(types.Observation):
    total: int
    note: str | None = None


class Button(interfaces.Environment):
    """Ends at ten presses; 13 crash it. It is not made for several sessions at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0, **_: Any) -> Pressed:
        self.total = start + (seed or 0) % 2
        return Pressed(total=self.total)

    def step(self, action: Press, timeout_s: float | None = None, **_: Any) -> Pressed:
        if action.times == 13:
            raise ZeroDivisionError("out of luck")
        self.total += action.times
        return Pressed(total=self.total, reward=action.times / 10, done=self.total >= 10)

    @property
    def state(self) -> Any:
        return types.State(step_count=0)


class Shop(mcp_environment.MCPEnvironment):
    """Tools of a FastMCP server."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = fastmcp.FastMCP("shop")

        @server.tool
        def price(fruit: str) -> int:
            """The price of a fruit."""
            return {"apple": 3, "pear": 4}[fruit]

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        return types.Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return types.Observation()

    @property
    def state(self) -> Any:
        return types.State(step_count=0)


def button_app() -> Any:
    return http_server.create_app(Button, Press, Pressed, env_name="button")


def shop_app() -> Any:
    return http_server.create_app(
        Shop, mcp_types.CallToolAction, mcp_types.CallToolObservation, env_name="shop", max_concurrent_envs=8
    )
