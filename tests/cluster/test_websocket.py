"""Environments behind a WebSocket: the same episodes, and a clear error for everything that can go wrong."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from gymnast.cluster import WebSocketEnvironments
from gymnast.cluster.websocket.server import EnvironmentServer
from gymnast.envs import (
    Calculator,
    CodeEnv,
    ConfigurationError,
    Environment,
    EpisodeFailedError,
    EpisodeLimits,
    Message,
    StepResult,
    tool_call,
)
from gymnast.envs.episode import EpisodeSpec, Task
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import ExecutionResult, ScriptedExecutor

from ..vision.test_images import CAT, Gallery
from .hosted import ADD, ANSWER, ROW, Drawn, Noted, noted_class, play, without_times

TOKEN = "a secret of this test"
SERVE = (sys.executable, "-m", "gymnast.cli", "serve", "environments")


@contextmanager
def served(environment: Any, **options: Any) -> Iterator[str]:
    """A server in this process, in the loop that the episodes use; yields its URL."""
    server = EnvironmentServer(environment, token=TOKEN, **options)
    try:
        yield f"ws://127.0.0.1:{run_in_loop(server.start('127.0.0.1', 0))}"
    finally:
        run_in_loop(server.close())


@pytest.fixture
def noted() -> type[Noted]:
    return noted_class()


def test_episodes_on_servers_equal_local_ones() -> None:
    script = [ADD, ANSWER]
    with served(Drawn) as one, served(Drawn) as two, WebSocketEnvironments([one, two], token=TOKEN) as environments:
        remote = play(environments, script, count=16)
        assert [link.episodes for link in environments.links] == [0, 0]
    assert without_times(remote) == without_times(play(Drawn, script, count=16))
    assert remote[0].turns[0].html == "<b>3</b>"


def test_an_environment_that_is_closed_is_not_made_again_on_its_host(noted: type[Noted]) -> None:
    with served(noted) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        environment = environments.create(EpisodeSpec(task=Task(id="t", row=ROW), group="t"))
        environment.reset(options={"task": ROW})
        environment.close()
        with pytest.raises(RuntimeError, match="is closed: make another one"):
            environment.reset(options={"task": ROW})


def test_rows_choose_among_environments_and_bytes_arrive_as_bytes() -> None:
    code = CodeEnv(ScriptedExecutor([ExecutionResult(status="ok", stdout="2\n")]))  # type: ignore[arg-type]
    row = {"environment": "code", "prompt": "count", "files": {"data.bin": b"\xff\x00"}, "answer": 2}
    both = {"code": code, "calculator": Calculator}
    with served(both) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        [episode] = play(environments, ["no calls"], rows=[row])
        [other] = play(environments, [ANSWER], rows=[ROW | {"environment": "calculator"}])
    run_in_loop(code._pool.close())
    assert (episode.failure, episode.reward) == (None, 0.0)
    assert other.reward == 1.0


def test_pictures_arrive_as_images() -> None:
    script = [tool_call("bare"), tool_call("mixed"), tool_call("done")]
    with served(Gallery) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        remote = play(environments, script, rows=[{"image": CAT}])
    assert without_times(remote) == without_times(play(Gallery, script, rows=[{"image": CAT}]))
    assert remote[0].turns[0].observation[0].get("content") == [{"type": "image", "image": CAT}]


def test_a_token_that_is_not_even_text_is_refused() -> None:
    with served(Calculator) as url:
        connection = http.client.HTTPConnection(url.removeprefix("ws://"), timeout=10)
        connection.request("GET", "/facts", headers={"Authorization": b"Bearer \xff"})
        assert connection.getresponse().status == 401
        connection.close()


def test_the_token_and_the_version_are_checked_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Calculator) as url:
        with pytest.raises(ConfigurationError, match="refused the token: GYMNAST_CLUSTER_TOKEN must be the same"):
            WebSocketEnvironments([url], token="another")
        monkeypatch.setattr("gymnast.cluster.websocket.server.__version__", "9.9")
        with pytest.raises(ConfigurationError, match=r"has gymnast 9\.9 \(here .*install the same version"):
            WebSocketEnvironments([url], token=TOKEN)
    with pytest.raises(ConfigurationError, match="no server of environments answers: ws://127"):
        WebSocketEnvironments([url], token=TOKEN)
    monkeypatch.delenv("GYMNAST_CLUSTER_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="set GYMNAST_CLUSTER_TOKEN"):
        WebSocketEnvironments([url])


def test_a_value_that_cannot_travel_fails_its_episode_by_name() -> None:
    with served(Calculator) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        [episode] = play(environments, [ANSWER], rows=[ROW | {"when": object()}])
    assert episode.failure is not None
    assert episode.failure.stage == "reset"
    assert "takes and gives text, numbers, bytes, images, lists and dicts, not object" in episode.failure.message


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 20)


def test_environments_of_a_trainer_that_is_gone_are_closed(noted: type[Noted]) -> None:
    async def hang_up_during_a_step(url: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(f"{url}/calls") as socket:
            for method, arguments in (("reset", [None, 0, None]), ("step", [{"role": "assistant"}])):
                await socket.send_json({"number": 0, "method": method, "episode": 7, "arguments": arguments})
                await (soon(noted.stepping) if method == "step" else socket.receive())
        await soon(noted.closed)

    with served(noted) as url:
        run_in_loop(hang_up_during_a_step(url))


@pytest.mark.parametrize("end", ["silence", "hang-up"])
def test_a_lost_connection_fails_its_episode_and_the_next_is_played(
    noted: type[Noted], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence: a half-open connection, over which nothing comes any more, as after a power cut."""
    monkeypatch.setattr("gymnast.cluster.websocket.environments.RETRY_SECONDS", 0.05)
    with (
        served({"waits": noted, "answers": Calculator}, heartbeat=0.2) as url,
        through_a_cable(url) as cable,
        WebSocketEnvironments([cable.url], token=TOKEN, heartbeat=0.2) as environments,
    ):

        async def cut() -> None:
            await soon(noted.stepping)
            cable.cut(end)

        cutting = cable.start(cut())
        [lost] = play(environments, ["go on"], rows=[ROW | {"environment": "waits"}])
        cutting.result(20)
        assert lost.failure is not None
        assert (lost.failure.stage, lost.failure.type) == ("step", "BrokenEnvironmentError")
        assert "the host of this Noted was lost: ws://" in lost.failure.message
        run_in_loop(soon(noted.closed))
        assert environments.hosts_present == []
        cable.mend()
        wait_until_present(environments)
        [episode] = play(environments, [ANSWER], rows=[ROW | {"environment": "answers"}])
        assert episode.reward == 1.0


def wait_until_present(environments: WebSocketEnvironments, *, hosts: int = 1) -> None:
    end = time.monotonic() + 30
    while len(environments.hosts_present) != hosts:
        assert time.monotonic() < end
        time.sleep(0.01)


class Cable:
    """A connection between two ports that can be cut, in one of two ways."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._loop: Any = None
        self._writers: list[asyncio.StreamWriter] = []
        self._is_cut = self._silent = False

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def start(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def cut(self, end: str) -> None:
        self._is_cut = True
        if end == "silence":
            self._silent = True
        else:
            self._hang_up()

    def mend(self) -> None:
        """Pass on what comes over new connections; the old ones end."""
        self._is_cut = self._silent = False
        self._loop.call_soon_threadsafe(self._hang_up)

    async def close(self) -> None:
        self._server.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut and not self._silent:
            writer.close()
            return
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, inner_writer]
        await asyncio.gather(self._pass_on(reader, inner_writer), self._pass_on(inner_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self._silent:
                writer.write(data)
        writer.close()


@contextmanager
def through_a_cable(url: str) -> Iterator[Cable]:
    cable = Cable(url)
    run_in_loop(cable.open())
    try:
        yield cable
    finally:
        run_in_loop(cable.close())


def test_a_step_that_takes_too_long_is_ended_on_its_host(noted: type[Noted]) -> None:
    with served(noted) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        [episode] = play(environments, ["go on"], limits=EpisodeLimits(step_timeout=0.2))
        assert noted.closed.is_set()  # the step was cancelled there, and the environment closed, before play() returns
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("step", "TimeoutError")


class Thorough(Environment):
    """Limits its own steps, to as long as its row says."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.own_seconds = self.task_of(options)["seconds"]
        return [{"role": "user", "content": "go"}], {}

    async def astep(self, action: Message) -> StepResult:
        await asyncio.sleep(0.4)
        return StepResult([], 1.0, True, False, {})


def test_the_time_that_an_environment_limits_itself_to_holds_on_its_host_too() -> None:
    with served(Thorough) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        rows = [{"seconds": seconds} for seconds in (60.0, 0.0)]
        longer, short = play(environments, ["go on"], rows=rows, limits=EpisodeLimits(step_timeout=0.2))
    assert (longer.failure, longer.reward) == (None, 1.0)
    assert short.failure is not None


def test_raise_stops_the_run_with_the_error_of_the_host() -> None:
    wanted = r"reset: MissingColumnError: .*no column 'question'[\s\S]*on the host:"
    with served(Calculator) as url, WebSocketEnvironments([url], token=TOKEN) as environments:  # noqa: SIM117
        with pytest.raises(EpisodeFailedError, match=wanted):
            play(environments, [ANSWER], rows=[{"answer": 3}], on_failure="raise")


@contextmanager
def program(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`gymnast serve environments`, and its URL."""
    command = [*SERVE, "gymnast.envs:Calculator", "--port", str(port)]
    environment = os.environ | {"GYMNAST_CLUSTER_TOKEN": TOKEN}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            [url] = re.findall(r"ws://\S+", server.stderr.readline())
            yield server, url
        finally:
            server.kill()


def test_the_program_serves_until_it_is_stopped() -> None:
    command = [*SERVE, "gymnast.envs:Calculator"]
    short = subprocess.run(command, env=os.environ | {"GYMNAST_CLUSTER_TOKEN": "x"}, capture_output=True, text=True)
    assert "set GYMNAST_CLUSTER_TOKEN to a secret of at least 16 characters" in short.stderr
    with program() as (server, url), WebSocketEnvironments([url], token=TOKEN) as environments:
        [episode] = play(environments, [ANSWER])
        assert episode.reward == 1.0
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_a_dead_host_is_lost_until_it_has_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.cluster.websocket.environments.RETRY_SECONDS", 0.05)
    with served(Calculator) as living, program() as (server, url):  # noqa: SIM117
        with WebSocketEnvironments([url, living], token=TOKEN) as environments:
            server.kill()
            wait_until_present(environments, hosts=1)
            refuse(url, attempts=3)
            assert environments.hosts_present == [living]
            assert [environment.reward for environment in play(environments, [ANSWER], count=4)] == [1.0] * 4
            with program(int(url.rpartition(":")[2])):
                wait_until_present(environments, hosts=2)
                assert [environment.reward for environment in play(environments, [ANSWER], count=4)] == [1.0] * 4


def refuse(url: str, *, attempts: int) -> None:
    """Listen in the place of a dead server, and hang up on so many attempts to connect."""
    port = int(url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as listener:
        for _ in range(attempts):
            listener.accept()[0].close()
