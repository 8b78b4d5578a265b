"""The server that a request goes to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gymnast.trainer import GenerationRequest, Sampling
from gymnast.trainer.vllm.fleet import Fleet
from gymnast.trainer.vllm.options import sampling_options
from gymnast.trainer.vllm.server import Server


class Session:
    """Stands for an episode."""


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Three servers that have the current weights; nothing is sent to them."""

    async def restore(server: Server) -> bool:
        return False

    made = Fleet([f"http://127.0.0.1:{port}" for port in (1, 2, 3)], max_model_len=64, timeout=1, restore=restore)
    made.relabel("current", dict.fromkeys(made.servers))
    yield made
    await made.close()


async def test_an_episode_stays_on_its_server_while_that_is_there(fleet: Fleet) -> None:
    first, second, third = fleet.servers
    first.in_flight, second.in_flight, third.in_flight = 2, 1, 3
    session = Session()
    assert await fleet.next_server(session) is second
    second.in_flight = 9
    assert await fleet.next_server(session) is second
    assert await fleet.next_server(Session()) is first
    second.label = None  # it is away
    assert await fleet.next_server(session) is first
    second.label, second.in_flight = fleet.label, 0
    assert await fleet.next_server(session) is first  # its conversation is there now
    assert await fleet.next_server() is second


async def test_episodes_that_begin_one_after_the_other_are_spread_over_the_servers(fleet: Fleet) -> None:
    sessions = [Session() for _ in range(6)]  # each first request is over when the next one comes
    servers = [await fleet.next_server(each) for each in sessions]
    assert {each: servers.count(each) for each in fleet.servers} == dict.fromkeys(fleet.servers, 2)
    del sessions[:3]  # these episodes are over
    assert [await fleet.next_server(each) for each in sessions] == servers[3:]
    assert await fleet.next_server() in fleet.servers


def test_seeds_of_requests_can_be_left_out() -> None:
    """The option `vllm_request_seeds` of both vLLM generators."""
    request = GenerationRequest(prompt_ids=[1], max_tokens=1, stop_ids=frozenset(), seed=7, sampling=Sampling())
    assert [sampling_options(request, seeded=each)["seed"] for each in (True, False)] == [7, None]
