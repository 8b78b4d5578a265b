"""Environments behind a WebSocket: the same episodes, and a clear error for everything that can go wrong."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from gymnast.cluster import WebSocketEnvironments
from gymnast.cluster.websocket.server import EnvironmentServer
from gymnast.envs import Calculator, CodeEnv, ConfigurationError, EpisodeFailedError, EpisodeLimits
from gymnast.envs.threads import run_in_loop
from gymnast.sandbox import ExecutionResult, ScriptedExecutor

from .hosted import ADD, ANSWER, ROW, Noted, noted_class, play, without_times

TOKEN = "a secret of this test"


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
    with (
        served(Calculator) as one,
        served(Calculator) as two,
        WebSocketEnvironments([one, two], token=TOKEN) as environments,
    ):
        remote = play(environments, script, count=16)
        assert [link.episodes for link in environments.links] == [0, 0]
    assert without_times(remote) == without_times(play(Calculator, script, count=16))


def test_rows_choose_among_environments_and_bytes_arrive_as_bytes() -> None:
    code = CodeEnv(ScriptedExecutor([ExecutionResult(status="ok", stdout="2\n")]))  # type: ignore[arg-type]
    row = {"environment": "code", "prompt": "count", "files": {"data.bin": b"\xff\x00"}, "answer": 2}
    both = {"code": code, "calculator": Calculator}
    with served(both) as url, WebSocketEnvironments([url], token=TOKEN) as environments:
        [episode] = play(environments, ["no calls"], rows=[row])
        [other] = play(environments, [ANSWER], rows=[ROW | {"environment": "calculator"}])
    assert (episode.failure, episode.reward) == (None, 0.0)
    assert other.reward == 1.0


def test_the_token_and_the_version_are_checked_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Calculator) as url:
        with pytest.raises(ConfigurationError, match="refused the token: GYMNAST_CLUSTER_TOKEN must be the same"):
            WebSocketEnvironments([url], token="another")
        monkeypatch.setattr("gymnast.cluster.websocket.server.versions", lambda: {"gymnast": "9.9"})
        with pytest.raises(ConfigurationError, match=r"has gymnast 9\.9 \(here .*install the same versions"):
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
    assert "takes and gives text, numbers, bytes, lists and dicts, not object" in episode.failure.message


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 20)


def test_environments_of_a_trainer_that_is_gone_are_closed(noted: type[Noted]) -> None:
    async def hang_up_during_a_step(url: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(f"{url}/calls") as socket:
            for method, arguments in (("open", [None]), ("reset", [0, None]), ("step", [{"role": "assistant"}])):
                await socket.send_json({"number": 0, "method": method, "episode": 7, "arguments": arguments})
                await (soon(noted.stepping) if method == "step" else socket.receive())
        await soon(noted.closed)

    with served(noted) as url:
        run_in_loop(hang_up_during_a_step(url))


@pytest.mark.parametrize("end", ["silence", "hang-up"])
def test_a_lost_connection_fails_its_episode_and_the_next_is_played(noted: type[Noted], end: str) -> None:
    """Silence: a half-open connection, over which nothing comes any more, as after a power cut."""
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
        cable.mend()
        link: Any = environments.links[0]
        link._lost_at = -1e9  # as if the pause before the next attempt were over
        [episode] = play(environments, [ANSWER], rows=[ROW | {"environment": "answers"}])
        assert episode.reward == 1.0


class Cable:
    """A connection between two ports that can be cut, in one of two ways."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._loop: Any = None
        self._writers: list[asyncio.StreamWriter] = []
        self._silent = False

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def start(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def cut(self, end: str) -> None:
        if end == "silence":
            self._silent = True
        else:
            self._hang_up()

    def mend(self) -> None:
        self._silent = False

    async def close(self) -> None:
        self._server.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


def test_raise_stops_the_run_with_the_error_of_the_host() -> None:
    wanted = r"reset: MissingColumnError: no 'question'[\s\S]*on the host:"
    with served(Calculator) as url, WebSocketEnvironments([url], token=TOKEN) as environments:  # noqa: SIM117
        with pytest.raises(EpisodeFailedError, match=wanted):
            play(environments, [ANSWER], rows=[{"answer": 3}], on_failure="raise")


def test_the_program_serves_until_it_is_stopped() -> None:
    command = [sys.executable, "-m", "gymnast.cluster.serve", "gymnast.envs:Calculator", "--port", "0"]
    short = subprocess.run(command, env=os.environ | {"GYMNAST_CLUSTER_TOKEN": "x"}, capture_output=True, text=True)
    assert "set GYMNAST_CLUSTER_TOKEN to a secret of at least 16 characters" in short.stderr
    environment = os.environ | {"GYMNAST_CLUSTER_TOKEN": TOKEN}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        try:
            [url] = re.findall(r"ws://\S+", program.stderr.readline())
            with WebSocketEnvironments([url], token=TOKEN) as environments:
                [episode] = play(environments, [ANSWER])
                assert episode.reward == 1.0
                program.send_signal(signal.SIGTERM)
                assert program.wait(20) == 0
        finally:
            program.kill()
