"""The sandbox against its targets, and beside its peers on the same machine.

    python -m benchmarks.sandbox
    python -m benchmarks.sandbox --peers none          ourselves only
    python -m benchmarks.sandbox --peers smolagents --quick

prints a table and writes benchmarks/results/sandbox.json. It needs a Docker engine and takes about six minutes on two
cores. The peers are installed from the package registry into .venv-peers, once; a peer that could not be installed or
run is reported as such. Times count from nothing to an answer. A peer's reset is a new container, since it has no other
reset. Its lease is that of its own pool. If it has no pool, its lease is a cold start, which a note says and which is
not compared. Lines with `cat` have no target. They are yardsticks: the time that the engine and this machine, at this
moment, need for the line above.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnast.sandbox import Engine, EngineError, ImageError
from gymnast.sandbox.docker.images import build_if_changed

from ..figures import Figure, Values, entry, print_table, rounded
from .measurements import MEASUREMENTS
from .peers.install import REQUIREMENTS
from .peers.run import measure_peers

RESULTS = Path(__file__).parents[1] / "results" / "sandbox.json"


FIGURES = (
    Figure(key="round_trip", name="stateful execution, round trip p50", unit="ms", target=1),
    Figure(key="echo", name="  the engine alone: an echo by `cat`", unit="ms", target=None, peers=False),
    Figure(key="bwrap_round_trip", name="  by bubblewrap", unit="ms", target=1, peers=False),
    Figure(key="local_round_trip", name="  by LocalExecutor", unit="ms", target=None, peers=False),
    Figure(key="throughput", name="executions a second, 32 boxes, peers 8", unit="1/s", target=1200, at_least=True),
    Figure(key="echoes", name="  the engine alone: echoes by 32 `cat`", unit="1/s", target=None, peers=False),
    Figure(key="lease", name="lease from a warm pool p50", unit="ms", target=2),
    Figure(key="reset", name="clean reset p50", unit="ms", target=10),
    Figure(key="bwrap_reset", name="  by bubblewrap", unit="ms", target=10, peers=False),
    Figure(key="local_reset", name="  by LocalExecutor", unit="ms", target=None, peers=False),
    Figure(key="cold_start", name="cold start p50", unit="ms", target=450),
    Figure(key="bare_start", name="  the engine alone: `cat` to its first echo", unit="ms", target=None, peers=False),
    Figure(key="bwrap_cold_start", name="  by bubblewrap", unit="ms", target=200, peers=False),
    Figure(key="local_cold_start", name="  by LocalExecutor", unit="ms", target=None, peers=False),
    Figure(key="output", name="memory for 500 MB of output, peers 50 MB", unit="MB", target=10),
    Figure(key="orphans", name="containers left 2 s after SIGKILL", unit="", target=0),
    Figure(key="episodes", name="1,000 episodes, 64 at a time: errors, leaks", unit="", target=0, peers=False),
    Figure(key="many_images", name="256 boxes of 64 images: time in the scheduler", unit="%", target=3, peers=False),
    Figure(key="used_boxes", name="  leases with a used box", unit="%", target=60, at_least=True, peers=False),
    Figure(key="slow_images", name="added to leases by 4 slow images", unit="ms", target=50, peers=False),
    Figure(key="folder", name="added by an image's folder of 200 MB", unit="ms", target=50, peers=False),
    Figure(key="box_stream", name="a box: through the guest to `cat` and back p50", unit="ms", target=1, peers=False),
    Figure(key="box_program", name="  exec of /bin/true p50", unit="ms", target=None, peers=False),
    Figure(key="session_program", name="  a session of Bash runs /bin/true p50", unit="ms", target=None, peers=False),
    Figure(key="box_cold_start", name="  cold start p50", unit="ms", target=None, peers=False),
    Figure(key="box_cold_start_ratio", name="  beside that of a DockerExecutor", unit="x", target=1.2, peers=False),
    Figure(key="copy_in", name="  10,000 files of 100 MB into it", unit="s", target=2, peers=False),
    Figure(key="copy_out", name="  and out of it", unit="s", target=2, peers=False),
    Figure(key="snapshot", name="  snapshot after 1 MB of changes", unit="ms", target=None, peers=False),
    Figure(key="fork_ratio", name="  snapshot and 8 boxes, each beside a start", unit="x", target=1.5, peers=False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(REQUIREMENTS), help="names with commas, or none (default: all)")
    parser.add_argument("--quick", action="store_true", help="small samples, to see that all works; writes no results")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    peers = [] if arguments.peers == "none" else arguments.peers.split(",")
    if unknown := set(peers) - set(REQUIREMENTS):
        parser.error(f"--peers: unknown {sorted(unknown)}, choose from {', '.join(REQUIREMENTS)}, or none")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended

    try:
        facts, base = asyncio.run(_prepare())
    except (EngineError, ImageError) as error:
        sys.exit(f"error: {error}")
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    ours = asyncio.run(_measure_ourselves(quick=arguments.quick))
    theirs = _measure_peers(peers, base, quick=arguments.quick)
    facts["load_at_end"] = round(os.getloadavg()[0], 2)
    entries = [entry(figure, ours, theirs) for figure in FIGURES]
    print_table(entries, peers)
    _print_details(ours, theirs)
    if not arguments.quick:
        results = {"machine": facts, "figures": entries, "details": {"gymnast": rounded(ours), **theirs}}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    if any(isinstance(ours[figure.key], str) for figure in FIGURES):
        sys.exit(1)


async def _prepare() -> tuple[dict[str, Any], str]:
    """Facts that the numbers depend on, and the id of our image, which is built if it is missing."""
    load = os.getloadavg()[0]  # before we make it
    loop_seconds = _loop_seconds()
    async with Engine() as engine:
        image = await build_if_changed(engine)
        about = await engine.call(engine.client.api.version)
    facts = {
        "cores": os.cpu_count(),
        "load": round(load, 2),
        "python_loop_of_2_million_seconds": round(loop_seconds, 3),
        "engine": about["Version"],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "image_mb": round(image.size / 1e6, 1),
    }
    return facts, image.id


def _loop_seconds() -> float:
    """A yardstick for the processor."""
    started, total = time.perf_counter(), 0
    for number in range(2_000_000):
        total += number
    return time.perf_counter() - started


async def _measure_ourselves(*, quick: bool) -> Values:
    values: Values = {}
    for measurement in MEASUREMENTS:
        print(f"  gymnast: {measurement.__name__} ...", flush=True)
        try:
            values.update(await measurement(quick))
        except Exception as error:  # one failure does not cost the other figures; `main` ends with 1
            values[measurement.__name__] = f"failed: {type(error).__name__}: {error}"
    return values


def _measure_peers(peers: list[str], base: str, *, quick: bool) -> dict[str, Values]:
    with _docker() as docker:
        return {peer: rounded(values) for peer, values in measure_peers(peers, docker, base, quick=quick).items()}


@contextlib.contextmanager
def _docker() -> Iterator[Any]:
    from docker import APIClient
    from docker.utils import kwargs_from_env

    client = APIClient(version="auto", timeout=300, **kwargs_from_env())
    try:
        yield client
    finally:
        client.close()


def _print_details(ours: Values, theirs: dict[str, Values]) -> None:
    """What explains the last lines of the table."""
    for name, values in {"here": ours, **theirs}.items():
        if "output_mb" in values:
            print(
                f"output, {name}: {values['output_returned_mb']:.2f} of {values['output_mb']} MB came back "
                f"in {values['output_seconds']:.1f} s"
            )
    if "episodes_played" in ours:
        print(
            f"episodes: {ours['episodes_played']} in {ours['episodes_seconds']:.1f} s "
            f"in {ours['episodes_boxes_made']} boxes; {ours['episodes_errors']} errors; "
            f"{ours['episodes_left']} containers, sockets, threads, tasks and child processes left"
        )


if __name__ == "__main__":
    main()
