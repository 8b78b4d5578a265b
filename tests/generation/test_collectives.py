"""A server that dies or hangs while it receives weights by NCCL. An event stands for the collective."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from gymnast.envs.runtime.threads import run_in_thread
from gymnast.trainer.generation.contract import GenerationError
from gymnast.trainer.vllm.over_nccl import SyncClient, run_collective
from gymnast.trainer.vllm.server import Server, ServerGoneError


@pytest.fixture(params=["dies"])
async def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SyncClient]:
    """Its server takes each call, and is gone before it answers; or it does not answer for long."""
    monkeypatch.setattr("gymnast.trainer.vllm.over_nccl.STUCK_SECONDS", 0.1)
    if request.param == "hangs":
        monkeypatch.setattr("gymnast.trainer.vllm.over_nccl.TRANSFER_SECONDS", 0.1)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if request.param == "hangs":
            await reader.read()  # until the client goes away
        writer.close()

    dying = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{dying.sockets[0].getsockname()[1]}"
    async with dying, aiohttp.ClientSession() as session:
        yield SyncClient(Server(url, session), asyncio.get_running_loop(), "label")


@pytest.mark.parametrize("client", ["dies", "hangs"], indirect=True)
@pytest.mark.parametrize("can_be_aborted", [True, False])
async def test_a_transfer_to_a_lost_server_ends_with_an_error(client: SyncClient, can_be_aborted: bool) -> None:
    """A lost server if the group can be aborted; else the training ends."""
    received, aborted = threading.Event(), threading.Event()

    def transfer() -> None:
        with ThreadPoolExecutor() as calls:  # as vLLM's engine does
            calls.submit(client.update_weights, {})
            received.wait()

    def abort() -> None:
        aborted.set()
        if can_be_aborted:
            received.set()

    try:
        with pytest.raises(ServerGoneError if can_be_aborted else GenerationError) as caught:
            await asyncio.wait_for(run_in_thread(run_collective, transfer, client, abort), 30)
    finally:
        received.set()
    assert aborted.is_set()
    assert client.server.url in str(caught.value)
    assert ("start the training again" in str(caught.value)) != can_be_aborted


async def test_a_transfer_that_ends_is_not_aborted(client: SyncClient) -> None:
    await run_in_thread(run_collective, lambda: None, client, lambda: pytest.fail("it was aborted"))
    with pytest.raises(RuntimeError, match="NCCL error"):
        await run_in_thread(run_collective, fail, client, lambda: pytest.fail("it was aborted"))


def fail() -> None:
    raise RuntimeError("NCCL error: unhandled system error")
