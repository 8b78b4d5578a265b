"""Environments on a Ray cluster of three nodes, all on this machine. In one file, so that one cluster serves all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gymnast.cluster import RayEnvironments
from gymnast.envs import Calculator

from .hosted import ADD, ANSWER, play, without_times

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray: Any = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes that claim two processors each; the last one also claims two GPUs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    cluster.add_node(num_cpus=2, num_gpus=2)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.usefixtures("cluster")
def test_episodes_on_hosts_equal_local_ones() -> None:
    script = [ADD, ANSWER]
    with RayEnvironments(Calculator()) as environments:
        assert len(set(environments.hosts_present)) == 3
        remote = play(environments, script, count=16)
    assert without_times(remote) == without_times(play(Calculator(), script, count=16))
    assert {episode.reward for episode in remote} == {1.0}
