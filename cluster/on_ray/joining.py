"""The Ray cluster of this process: its nodes, and places for actors."""

# pyright: reportMissingImports=false
# Ray is an optional dependency, so it is imported inside functions.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...envs.core import ConfigurationError
from ...envs.extras import needs_extra

PLACEMENT_SECONDS = 10.0  # to find places for actors; longer where an autoscaler must first start machines

Resources = Mapping[str, float]
"""Amounts by Ray's names, such as `{"CPU": 4, "GPU": 1, "docker": 1}`."""


def joined_ray() -> Any:
    """Return the module `ray`.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigurationError: this process has not joined a cluster.
    """
    with needs_extra("ray", "a Ray cluster"):
        import ray
    if not ray.is_initialized():
        raise ConfigurationError(
            "this process has not joined a Ray cluster: call ray.init() first, which starts Ray on this machine, or "
            "ray.init(address='auto') for the cluster that `ray start` has started here"
        )
    return ray


def nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the nodes that are alive, in the order of their ids."""
    return sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"])


def nodes_with(ray: Any, resources: Resources) -> list[dict[str, Any]]:
    """Return the nodes that have these resources in all, free or not.

    Raises:
        ConfigurationError: no node has them.
    """
    found = [
        node for node in nodes(ray) if all(node["Resources"].get(name, 0) >= resources[name] for name in resources)
    ]
    if not found:
        raise ConfigurationError(f"no node of the Ray cluster has {_text(resources)}; {_offer(ray, resources)}")
    return found


class Places:
    """Places for actors with the same resources, which are reserved until `free` is called.

    Ray itself would wait for ever for resources that the cluster does not have.

    Raises:
        ConfigurationError: the cluster could not find the places in time.
    """

    def __init__(
        self, ray: Any, actors: str, count: int, resources: Resources, *, strategy: str, timeout: float
    ) -> None:
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray = ray
        self._group: Any = placement_group([dict(resources)] * count, strategy=strategy)
        self.strategies = [PlacementGroupSchedulingStrategy(self._group, place) for place in range(count)]
        if self._group.wait(timeout_seconds=timeout):
            return
        self.free()
        asked = {name: count * amount for name, amount in resources.items()}
        spread = ", each on a node of its own" if strategy == "STRICT_SPREAD" else ""
        raise ConfigurationError(
            f"the Ray cluster has no place for {actors} within {timeout:g} s: asked for {count} x "
            f"{_text(resources)}{spread}, in all {_text(asked)}; {_offer(ray, asked)}"
        )

    def free(self) -> None:
        """Give the places back."""
        group, self._group = self._group, None
        if group is not None:
            self._ray.util.remove_placement_group(group)


def options_of(resources: Resources) -> dict[str, Any]:
    """Return the options of an actor that needs these resources, in Ray's spelling. A lost actor stays lost."""
    rest = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    # An actor's child processes notice the end of their parent, and then end their own children in order. Ray would
    # kill the children, but not the children of these, which would stay for ever.
    variables = {"RAY_kill_child_processes_on_worker_exit": "0"}
    if not resources.get("GPU"):
        variables["CUDA_VISIBLE_DEVICES"] = ""  # Ray lets actors that ask for no GPU see all of them
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "resources": rest,
        "max_restarts": 0,
        "runtime_env": {"env_vars": variables},
    }


def _offer(ray: Any, asked: Resources) -> str:
    """Return the amounts of these resources that the cluster has and that are free, and the most on one node."""
    total, free, present = ray.cluster_resources(), ray.available_resources(), nodes(ray)
    parts = []
    for name in asked:
        most = max((node["Resources"].get(name, 0) for node in present), default=0)
        parts.append(f"{total.get(name, 0):g} {name} ({free.get(name, 0):g} free, at most {most:g} on one node)")
    return f"its {len(present)} nodes have {', '.join(parts)}"


def _text(resources: Resources) -> str:
    return " + ".join(f"{amount:g} {name}" for name, amount in resources.items())
