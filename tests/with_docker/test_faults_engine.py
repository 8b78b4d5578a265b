"""Engines that are absent, stalled or forbidden, and images that are missing or unfit: one clear error each."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gymnast.sandbox import (
    DEFAULT_IMAGE,
    DockerExecutor,
    Engine,
    EngineError,
    ExecutorPool,
    ImageError,
    SandboxError,
    SandboxLostError,
    SandboxTimeoutError,
)
from gymnast.sandbox.docker.builds import build_dockerfile

from ..sandbox.boxes import LIMITS, usable

ROOT = Path(__file__).resolve().parents[2]

# --- an engine that stalls --------------------------------------------------------------------------------------

# A process of ours passes everything on to the engine. We stop that process, because others may need the engine.
RELAY = """
import asyncio, contextlib, sys
async def pump(source, sink):
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()
async def serve(reader, writer):
    to, address = sys.argv[2].split("://")
    host, _, port = address.rpartition(":")
    up_reader, up_writer = await (asyncio.open_connection(host, port) if to == "tcp" else
                                  asyncio.open_unix_connection(address))
    await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
    writer.close(), up_writer.close()
async def main():
    server = await asyncio.start_unix_server(serve, sys.argv[1])
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture
async def engine_process(image: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process between this test and the engine. It may be stopped."""
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/engine.sock"
        relay = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RELAY, path, engine, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert relay.stdout is not None
            assert await asyncio.wait_for(relay.stdout.readline(), 30) == b"ready\n"
            monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
            yield relay
        finally:
            relay.kill()
            await relay.wait()


@pytest.mark.fault(36)
@pytest.mark.usefixtures("nothing_left")
async def test_a_stalled_engine_holds_no_call(
    engine_process: asyncio.subprocess.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandbox.host.supervised_executor.MARGIN", 0.5)
    monkeypatch.setattr("gymnast.sandbox.host.client.REVIVAL_SECONDS", 1.0)
    monkeypatch.setattr("gymnast.sandbox.docker.client.CALL_SECONDS", 2.0)
    async with DockerExecutor(limits=LIMITS) as box, box.clone() as other:
        engine_process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(SandboxLostError, match="did not answer within"):
                await asyncio.wait_for(box.python("1", timeout=0.2), 15)
            with pytest.raises(SandboxLostError, match="did not answer within"):
                await asyncio.wait_for(other.ping(timeout=0.5), 15)
            with pytest.raises(SandboxError):
                await asyncio.wait_for(other.reset(), 30)
            with pytest.raises(EngineError, match="does not answer"):
                await asyncio.wait_for(DockerExecutor(limits=LIMITS).start(), 30)
            with pytest.raises(SandboxError):
                async with ExecutorPool(box.clone(), warm=0) as pool, pool.lease(timeout=1):
                    pass
            assert time.monotonic() - started < 60
        finally:
            engine_process.send_signal(signal.SIGCONT)
        await box.reset()
        assert await usable(box)


# --- images and engines that are not there ----------------------------------------------------------------------


@pytest.mark.fault(39)
@pytest.mark.usefixtures("nothing_left")
async def test_a_missing_image(image: str) -> None:
    started = time.monotonic()
    with pytest.raises(ImageError, match="has no image 'gymnast-missing'"):
        await DockerExecutor(image="gymnast-missing", pull="never").start()
    assert time.monotonic() - started < 15


@pytest.mark.fault(39)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("rm -f bin/python*", "has no python3"),
        ("rm -rf lib/python3*/json", "lacks the standard library's module json"),  # as in Debian's python3-minimal
        ("mv bin/python3 bin/real; printf '#!/bin/sh\\nexit 3\\n' > bin/python3; chmod +x bin/python3", "ended while"),
    ],
    ids=["no python3", "python3-minimal", "broken"],
)
async def test_an_unfit_image(engine: Engine, tmp_path: Path, changes: str, message: str) -> None:
    name = "gymnast-unfit:latest"
    (tmp_path / "Dockerfile").write_text(f"FROM {DEFAULT_IMAGE}\nRUN cd /usr/local && {changes}\nVOLUME /data\n")
    await build_dockerfile(engine, tmp_path, name)
    try:
        started = time.monotonic()
        with pytest.raises((ImageError, EngineError), match=message):
            await DockerExecutor(image=name, limits=LIMITS).start()
        assert time.monotonic() - started < 15
    finally:
        await engine.call(lambda: engine.client.api.remove_image(name, force=True))


@pytest.mark.fault(40)
@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("unix:///nowhere.sock", "apt-get install docker.io"),
        ("tcp://127.0.0.1:9", "apt-get install docker.io"),
        ("ssh://somewhere", "ssh -L"),
    ],
)
async def test_no_engine(host: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(EngineError, match=message) as caught:
        await DockerExecutor().start()
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.fault(40)
async def test_an_engine_that_this_user_may_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/engine.sock"
        listener.bind(path)
        listener.listen()
        os.chmod(path, 0)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        root = os.geteuid() == 0
        if root:
            os.chmod(folder, 0o755)
            import docker  # noqa: F401  # loaded while this user may read it

            os.seteuid(65534)
        try:
            with pytest.raises(EngineError, match=r"may not use the container engine .*usermod -aG docker") as caught:
                await DockerExecutor().start()
        finally:
            if root:
                os.seteuid(0)
    assert isinstance(caught.value.__cause__, PermissionError)


@pytest.mark.fault(40)
@pytest.mark.parametrize(("require", "outcome"), [("0", "2 skipped"), ("1", "would be skipped")])
async def test_without_an_engine_the_tests_are_skipped_and_in_ci_they_fail(require: str, outcome: str) -> None:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere.sock", "GYMNAST_REQUIRE_ALL": require}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "tests/with_docker/test_faults_protection.py",
    ]
    process = await asyncio.create_subprocess_exec(
        *command, "-k", "kill_minus_one or other_processes", cwd=ROOT, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said = (await process.stdout.read()).decode()
    await process.wait()
    assert outcome in said
    assert "no container engine answers" in said


@pytest.mark.usefixtures("nothing_left")
async def test_a_missing_runtime(image: str) -> None:
    with pytest.raises(EngineError, match="nonsense"):
        await DockerExecutor(runtime="nonsense").start()


@pytest.mark.usefixtures("nothing_left")
async def test_a_start_that_takes_too_long(image: str) -> None:
    with pytest.raises(SandboxTimeoutError, match=r"start_timeout=0\.1"):
        await DockerExecutor(limits=LIMITS, start_timeout=0.1).start()
