"""The reaper: which containers it takes for abandoned, and that it removes these and no others."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from gymnast.sandbox import Engine, reap
from gymnast.sandbox import owner as owner_module
from gymnast.sandbox.container import BoxOptions, container_config

from .boxes import LIMITS

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


async def test_the_reaper_removes_what_dead_owners_left_and_nothing_else(image: str, engine: Engine) -> None:
    dead = owner_module.labels(3600) | {f"{owner_module.LABEL}.pid-started": "1"}
    living = owner_module.labels(3600)
    made = {}
    for name, labels in (("dead", dead), ("living", living)):
        config = container_config(BoxOptions(image=image, limits=LIMITS), image, labels, [])
        made[name] = (
            await engine.call(engine.client.api.create_container_from_config, config, f"gymnast-test-{name}")
        )["Id"]
    try:
        assert await reap(engine) == ["gymnast-test-dead"]
        assert [
            found["Id"] for found in await engine.call(engine.client.containers) if found["Id"] in made.values()
        ] == [made["living"]]
    finally:
        await engine.remove(made["living"])


@pytest.mark.parametrize(
    ("change", "abandoned"),
    [
        ({}, False),
        ({"boot": "another"}, True),  # the engine is on this machine
        ({"host": "another", "boot": "another"}, False),
        ({"namespace": "another", "pid": "1"}, False),
        ({"pid": "4194303"}, True),
        ({"created": "1000"}, True),
        ({"created": "nonsense"}, False),
    ],
)
def test_who_is_dead(change: dict[str, str], abandoned: bool) -> None:
    labels = owner_module.labels(3600) | {f"{owner_module.LABEL}.{key}": value for key, value in change.items()}
    assert owner_module.is_abandoned(labels, local=True) is abandoned
    assert owner_module.is_abandoned(labels, local=False) is (abandoned and "boot" not in change)


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass everything on to the engine, and back."""

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    way, _, address = ENGINE.partition("://")
    host, _, port = address.rpartition(":")
    there = await (asyncio.open_connection(host, port) if way == "tcp" else asyncio.open_unix_connection(address))
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))


async def test_an_engine_elsewhere_may_serve_another_machine_of_the_same_name(
    image: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = owner_module.labels(3600) | {f"{owner_module.LABEL}.boot": "another"}
    config = container_config(BoxOptions(image=image, limits=LIMITS), image, labels, [])
    made = await engine.call(engine.client.api.create_container_from_config, config, "gymnast-test-elsewhere")
    try:
        async with await asyncio.start_server(relay, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
            async with Engine() as elsewhere:
                assert "gymnast-test-elsewhere" not in await reap(elsewhere)
        assert made["Id"] in [found["Id"] for found in await engine.call(engine.client.containers)]
    finally:
        await engine.remove(made["Id"])
