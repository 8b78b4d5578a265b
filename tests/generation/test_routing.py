"""The server that a request goes to."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import FrameType

import pytest

from gymnast.envs.tokens import Tokens
from gymnast.trainer import GenerationRequest, Sampling
from gymnast.trainer.vllm import sampling_options
from gymnast.trainer.vllm.fleet import Fleet
from gymnast.trainer.vllm.server import Replica, Server
from gymnast.trainer.vllm.servers import GOLDEN_RATIO, VLLMServerGenerator

from ..cluster.fake_vllm import fake_server
from .generating import ask, model


class Session:
    """Stands for an episode."""


@asynccontextmanager
async def fleet_of(count: int, place: float = 0.0) -> AsyncIterator[Fleet]:
    """Servers that have the current weights; nothing is sent to them."""

    async def restore(server: Server) -> bool:
        return False

    urls = [f"http://127.0.0.1:{port}" for port in range(1, count + 1)]
    made = Fleet(urls, max_model_len=64, timeout=1, restore=restore, place=place)
    made.relabel("current", dict.fromkeys(made.servers))
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of(3) as made:
        yield made


async def server_of(fleet: Fleet, session: Session | None = None) -> Server:
    return (await fleet.next_replica(session)).server


def set_in_flight(server: Server, requests: int) -> None:
    [replica] = server.replicas
    replica.in_flight = requests


async def test_an_episode_stays_on_its_server_while_that_is_there(fleet: Fleet) -> None:
    first, second, third = fleet.servers
    for server, requests in zip(fleet.servers, (2, 1, 3), strict=True):
        set_in_flight(server, requests)
    session = Session()
    assert await server_of(fleet, session) is second
    set_in_flight(second, 9)
    assert await server_of(fleet, session) is second
    assert await server_of(fleet, Session()) is first
    second.label = None  # it is away
    assert await server_of(fleet, session) is first
    second.label = fleet.label
    set_in_flight(second, 0)
    assert await server_of(fleet, session) is first  # its conversation is there now
    assert await server_of(fleet) is second
    assert third.label == fleet.label


async def test_episodes_that_begin_one_after_the_other_are_spread_over_the_servers(fleet: Fleet) -> None:
    sessions = [Session() for _ in range(6)]  # each first request is over when the next one comes
    servers = [await server_of(fleet, session) for session in sessions]
    assert {server: servers.count(server) for server in fleet.servers} == dict.fromkeys(fleet.servers, 2)
    del sessions[:3]  # these episodes are over
    assert [await server_of(fleet, session) for session in sessions] == servers[3:]
    assert await server_of(fleet) in fleet.servers


async def test_the_episodes_of_a_lost_server_are_spread_and_no_longer_count_there(fleet: Fleet) -> None:
    sessions = [Session() for _ in range(12)]
    for session in sessions:
        await fleet.next_replica(session)
    lost, *others = fleet.servers
    lost.label = None
    servers = Counter([await server_of(fleet, session) for session in sessions])
    assert servers == dict.fromkeys(others, 6)
    lost.label = fleet.label
    newcomers = [Session() for _ in range(6)]
    assert [await server_of(fleet, newcomer) for newcomer in newcomers] == [lost] * 6


SHARED = [(64, 4, 16), (64, 4, 8), (32, 8, 16), (16, 16, 12), (8, 12, 8), (4, 4, 16), (43, 3, 16)]
"""Processes, the sessions of each, and the servers that they share."""


async def loads(places: Sequence[float], sessions: int, servers: int) -> list[int]:
    """The sessions on each server that has any, when these many begin in each process."""
    load: Counter[str] = Counter()
    for place in places:
        alive = [Session() for _ in range(sessions)]
        async with fleet_of(servers, place) as fleet:
            load += Counter([(await server_of(fleet, request)).url for request in alive])
    return list(load.values())


@pytest.mark.parametrize(("processes", "sessions", "servers"), SHARED)
async def test_training_processes_spread_their_episodes_over_the_servers_that_they_share(
    processes: int, sessions: int, servers: int
) -> None:
    """The busiest has at most two more than the mean, for up to 64 processes, 64 sessions and 16 servers (calculated).

    If all began with the first server, the busiest of the first case would have 64 and not 17.
    """
    load = await loads([rank * GOLDEN_RATIO % 1 for rank in range(processes)], sessions, servers)
    assert len(load) >= min(servers, processes * sessions) - 2
    assert max(load) <= math.ceil(processes * sessions / servers) + 2


async def test_rollout_workers_which_have_no_number_spread_their_episodes_too() -> None:
    numbers = random.Random(0)
    load = await loads([numbers.random() for _ in range(64)], 4, 16)
    assert len(load) == 16
    assert max(load) < 1.6 * 16  # 1.4 in the mean of many draws


async def test_a_data_parallel_server_gets_its_share_and_an_episode_stays_on_one_replica(fleet: Fleet) -> None:
    large, *small = fleet.servers
    large.replicas = [Replica(large, index) for index in range(3)]
    sessions = [Session() for _ in range(10)]
    replicas = [await fleet.next_replica(session) for session in sessions]
    assert Counter(replicas) == dict.fromkeys([*large.replicas, *small[0].replicas, *small[1].replicas], 2)
    assert [await fleet.next_replica(session) for session in sessions] == replicas


@pytest.mark.parametrize(("replicas", "ranks"), [(1, {None}), (2, {"0", "1"})])
async def test_the_requests_of_an_episode_name_its_replica(replicas: int, ranks: set[str | None]) -> None:
    with fake_server(lambda seed: [seed], replicas) as (url, server):
        generator = VLLMServerGenerator([url], max_model_len=64)
        generator.load_weights(model(), 0)
        server.headers.clear()
        sessions = [Session() for _ in range(4)]
        for turn in range(3):
            await asyncio.gather(
                *[generator.generate(replace(ask(seed=turn), session=session)) for session in sessions]
            )
        generator.close()
    found = Counter(headers.get("X-data-parallel-rank") for headers in server.headers)
    assert found == dict.fromkeys(ranks, 12 // replicas)


async def test_the_choice_for_a_new_episode_does_not_loop_over_those_that_are_played(fleet: Fleet) -> None:
    alive = list[Session]()

    async def work() -> int:
        """The calls of functions that one more episode takes."""
        calls, session = 0, Session()
        alive.append(session)

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += 1

        before: Callable[..., object] | None = sys.getprofile()
        sys.setprofile(count)
        try:
            await fleet.next_replica(session)
        finally:
            sys.setprofile(before)
        return calls

    few = [await work() for _ in range(20)][-1]
    alive += [Session() for _ in range(2000)]
    for session in alive:
        await fleet.next_replica(session)
    assert await work() < 2 * few


def test_seeds_of_requests_can_be_left_out() -> None:
    """The option `vllm_request_seeds` of both vLLM generators."""
    request = GenerationRequest(prompt=Tokens([1]), max_tokens=1, stop_ids=frozenset(), seed=7, sampling=Sampling())
    assert [sampling_options(request, seeded=item)["seed"] for item in (True, False)] == [7, None]
