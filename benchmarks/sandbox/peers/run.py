"""Times the peers, each part of each in a process of its own that may take only so long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...figures import Values
from ..processes import ChildError, left_after_kill, output_of
from .drivers import POOLS
from .install import IMAGE, PeerError, environment, image, version

PART_SECONDS = 90.0  # then a part counts as hanging, and is killed

# The figures of each part of `measure.py`.
FIGURES = {
    "life": ("cold_start", "reset"),
    "lease": ("lease",),
    "executions": ("round_trip",),
    "throughput": ("throughput",),
    "flood": ("output",),
    "owner": ("orphans",),
}


def measure_peers(names: Sequence[str], docker: Any, base: str, *, quick: bool) -> dict[str, Values]:
    """Return each peer's values by figure; a str says why a value could not be measured."""
    if not names:
        return {}
    try:
        name = image(docker, base)
    except (PeerError, OSError) as error:
        return {peer: dict.fromkeys(_all_figures(), f"not measured: {error}") for peer in names}
    try:
        return {peer: _measure(peer, name, docker, quick=quick) for peer in names}
    finally:
        _remove_containers(docker)  # of a process that was killed while the engine was still at it


def _measure(peer: str, name: str, docker: Any, *, quick: bool) -> Values:
    try:
        python = environment(peer)
        values: Values = {"version": version(peer)}
    except (PeerError, OSError) as error:
        return dict.fromkeys(_all_figures(), f"not measured: could not be installed: {error}")
    for part, figures in FIGURES.items():
        if part == "lease" and peer not in POOLS:
            values["lease"] = _without_pool(values["cold_start"])
            continue
        print(f"  {peer}: {part} ...", flush=True)
        try:
            values.update(_part(python, peer, part, name, docker, quick=quick))
        except ChildError as error:
            values.update(dict.fromkeys(figures, f"not measured: {error}"))
    return values


def _part(python: Path, peer: str, part: str, name: str, docker: Any, *, quick: bool) -> Values:
    command = [str(python), str(Path(__file__).with_name("measure.py")), peer, part, name]
    _remove_containers(docker)  # of a run that was killed
    try:
        if part == "owner":
            return {"orphans": left_after_kill(command, PART_SECONDS, 1, lambda _: len(_containers(docker)))}
        return json.loads(output_of(command + ["--quick"] * quick, PART_SECONDS))
    finally:
        _remove_containers(docker)


def _without_pool(cold_start: float | str) -> str:
    return "no pool: a cold start" + ("" if isinstance(cold_start, str) else f", {cold_start:,.0f} ms")


def _containers(docker: Any) -> list[str]:
    return [found["Id"] for found in docker.containers(all=True, filters={"ancestor": IMAGE})]


def _remove_containers(docker: Any) -> None:
    from docker.errors import APIError

    for container in _containers(docker):
        try:
            docker.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code not in (404, 409):  # gone, or going
                raise


def _all_figures() -> list[str]:
    return [figure for figures in FIGURES.values() for figure in figures]
