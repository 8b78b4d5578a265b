"""Measures the cost of environments and rollouts on other machines, without a model, on a Ray cluster on this machine.

    python -m benchmarks.cluster            # about ten minutes; --quick: less than a minute
    make bench-cluster

First, turns that take no time: turns a second, and the overhead of a turn. Then a simulation of thousands of episodes
in flight, whose answers take as long as a model's: the turns a second that were reached, beside those that the
latencies allow, and how late the event loop of the trainer is. All processes share this machine's cores, so several
workers are no faster than its cores allow. Writes benchmarks/results/cluster.json, or with --quick
runs/cluster.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import ray

from gymnast.cluster import RayEnvironments, RayRolloutWorkers, WebSocketEnvironments
from gymnast.cluster.websocket.server import EnvironmentServer
from gymnast.envs import Episode, RolloutEngine, ScriptedPolicy, episode_specs
from gymnast.envs.runtime.threads import run_in_loop

from . import work
from .work import MEAN, MEDIAN, P99, Instant, instant_answer, late_answer

cloudpickle.register_pickle_by_value(work)  # the workers cannot import the benchmarks

ROOT = Path(__file__).resolve().parents[2]
RESULTS, QUICK_RESULTS = ROOT / "benchmarks" / "results" / "cluster.json", ROOT / "runs" / "cluster.json"
TURNS = 9
SIMULATED_TURNS = 3
LAG_SECONDS = 0.05  # between two looks at the event loop
TOKEN = "only for this benchmark"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="[benchmarks/results/cluster.json; --quick: runs/cluster.json]")
    parser.add_argument("--quick", action="store_true", help="small samples; the figures mean little")
    options = parser.parse_args()
    episodes, in_flight, seconds = (64, [200], 5.0) if options.quick else (512, [2_000, 10_000], 25.0)
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    try:
        turns = [measured(name, make, episodes) for name, make in ARMS.items()]
        local = turns[0]["microseconds_a_turn"]
        for turn in turns:
            turn["overhead_a_turn"] = round(turn["microseconds_a_turn"] - local, 1)
            print("{name:<28}{turns_a_second:>9,.0f} turns/s {microseconds_a_turn:>8,.0f} us/turn".format(**turn))
        simulated = []
        for name in SIMULATED:
            for count in in_flight:
                simulated.append(simulation(name, ARMS[name], count, seconds))
                print(json.dumps(simulated[-1]), flush=True)
    finally:
        ray.shutdown()
    result = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "ray": ray.__version__},
        "turns": turns,
        "latency": {"median": MEDIAN, "p99": P99, "mean": round(MEAN, 2), "turns": SIMULATED_TURNS},
        "simulation": simulated,
    }
    output = options.output or (QUICK_RESULTS if options.quick else RESULTS)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n")


@contextmanager
def websocket_host(environment: Any) -> Iterator[Any]:
    """Within this process: its cost is that of both ends."""
    server = EnvironmentServer(environment, token=TOKEN)
    port = run_in_loop(server.start("127.0.0.1", 0))
    try:
        with WebSocketEnvironments([f"ws://127.0.0.1:{port}"], token=TOKEN) as environments:
            yield environments
    finally:
        run_in_loop(server.close())


@contextmanager
def here(environment: Any) -> Iterator[Any]:
    yield environment


ARMS: dict[str, Callable[[Any], Any]] = {
    "local": here,
    "remote environments, 1 host": lambda environment: RayEnvironments(environment, hosts=1),
    "remote environments, 2 hosts": lambda environment: RayEnvironments(environment, hosts=2),
    "WebSocket, both ends here": websocket_host,
    "1 rollout worker": lambda environment: RayRolloutWorkers(environment, 1),
    "2 rollout workers": lambda environment: RayRolloutWorkers(environment, 2),
    "4 rollout workers": lambda environment: RayRolloutWorkers(environment, 4),
}
SIMULATED = ("local", "remote environments, 2 hosts", "2 rollout workers")


def measured(name: str, make: Callable[[Any], Any], episodes: int) -> dict[str, Any]:
    """Turns that take no time, the best of three times."""
    with make(Instant(TURNS)) as environment:
        engine = RolloutEngine(environment, ScriptedPolicy(instant_answer), max_concurrency=episodes)
        best = min(seconds_of(engine, episodes) for _ in range(3))
    turns = episodes * TURNS
    return {"name": name, "turns_a_second": round(turns / best), "microseconds_a_turn": round(best / turns * 1e6, 1)}


def seconds_of(engine: RolloutEngine, episodes: int) -> float:
    started = time.perf_counter()
    played = engine.play([{}], group_size=episodes)
    elapsed = time.perf_counter() - started
    assert all(episode.reward == TURNS for episode in played)
    return elapsed


def simulation(name: str, make: Callable[[Any], Any], in_flight: int, seconds: float) -> dict[str, Any]:
    """So many episodes in flight, for so many seconds after the first ones have ended."""
    with make(Instant(SIMULATED_TURNS)) as environment:
        engine = RolloutEngine(environment, ScriptedPolicy(late_answer), max_concurrency=in_flight)
        rate, lags = run_in_loop(_simulate(engine, in_flight, seconds))
    possible = in_flight / MEAN
    return {
        "name": name,
        "in_flight": in_flight,
        "turns_a_second": round(rate),
        "turns_a_second_that_latencies_allow": round(possible),
        "share": round(rate / possible, 3),
        "loop_is_late_by_ms": {
            "median": _ms(statistics.median(lags)),
            "p99": _ms(statistics.quantiles(lags, n=100)[98]),
        },
    }


async def _simulate(engine: RolloutEngine, in_flight: int, seconds: float) -> tuple[float, list[float]]:
    """Turns a second of the episodes that end in the window, and how late the event loop was."""
    ramp = SIMULATED_TURNS * MEAN  # then about as many episodes end as begin
    ended: list[float] = []

    def note(episode: Episode) -> None:
        assert episode.failure is None, episode.failure
        ended.append(time.perf_counter())

    rows = [{"index": index} for index in range(int(in_flight * (3 + seconds / ramp)))]  # more than will end
    playing = asyncio.create_task(engine.run(episode_specs(rows, group_size=1, seed=0), note))
    lags: list[float] = []
    started = time.perf_counter()
    while (now := time.perf_counter()) < started + ramp + seconds:
        await asyncio.sleep(LAG_SECONDS)
        if now > started + ramp:
            lags.append(time.perf_counter() - now - LAG_SECONDS)
    playing.cancel()
    await asyncio.wait([playing])
    within = sum(started + ramp < end <= started + ramp + seconds for end in ended)
    return within * SIMULATED_TURNS / seconds, lags


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


if __name__ == "__main__":
    main()
