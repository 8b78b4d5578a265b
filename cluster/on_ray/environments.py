"""RayEnvironments: environments on the machines of a Ray cluster."""

# pyright: reportMissingImports=false
# Ray is an optional dependency, so it is imported inside functions.

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from gymnast import __version__

from ...envs.core import ConfigurationError
from ...envs.registry import EnvironmentLike, EnvironmentSource
from ..hosting.host import EnvironmentHost
from ..hosting.link import HostLink, HostLostError, check_version
from ..hosting.recipes import pack
from ..hosting.remote_environments import RemoteEnvironments
from .joining import PLACEMENT_SECONDS, Places, Resources, joined_ray, nodes_with, options_of

START_SECONDS = 120.0  # for a process to start and to import what an environment needs
CLOSE_SECONDS = 60.0  # for a host to close its environments
CALLS_AT_ONCE = 1_000_000  # of one actor; by default Ray parks calls above 1,000 silently


class HostActor(EnvironmentHost):
    """An `EnvironmentHost` in a process of its own, as a Ray actor."""

    def __init__(self, recipe: bytes) -> None:
        super().__init__(EnvironmentSource.of(pickle.loads(recipe)))

    async def describe(self) -> tuple[str, str]:
        """Return the node's address and id, and its version of gymnast. Ray has compared Python and itself."""
        import ray

        return f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})", __version__


class RayLink(HostLink):
    """The way to a `HostActor`."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        super().__init__(name)
        self.actor = actor
        self._ray = ray

    async def _ask(self, method: str, episode: int, *arguments: Any) -> Any:
        try:
            return await self.actor.call.remote(method, episode, *arguments)
        except self._ray.exceptions.RayTaskError as error:  # such as a result that cannot be pickled
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            if not self.is_lost:
                self.is_lost = True
                self._ray.kill(self.actor)  # a host that only seemed lost must not keep boxes open
            first_line = str(error).strip().partition("\n")[0]
            raise HostLostError(f"{self.name}: {type(error).__name__}: {first_line}") from error

    def close(self) -> None:
        """Close the host's environments, and end its process."""
        if not self.is_lost:
            self.is_lost = True
            with contextlib.suppress(self._ray.exceptions.RayError):  # it is gone, or late: it is ended now
                self._ray.get(self.actor.close.remote(), timeout=CLOSE_SECONDS)
            self._ray.kill(self.actor)


class RayEnvironments(RemoteEnvironments):
    """Environments on the machines of a Ray cluster; valid wherever `environment=` is.

        ray.init(address="auto")
        trainer = GRPOTrainer(model, environment=RayEnvironments(CodeEnv(DockerExecutor())), ...)

    One process on each node holds the environments of many episodes, with their pools of boxes. Generation, tokens
    and rewards stay where they are. If a node is lost, exactly its episodes fail, and `on_failure`
    decides about them. Lost hosts are not started again.

    Args:
        environment: An environment, class, factory, Gymnasium id, or a dict of these. Its code must be importable on
            the nodes, or be in the main program.
        hosts: The number of processes, spread over the nodes; by default one on each node.
        resources: What each process takes of its node, such as `{"CPU": 4}` or, for nodes that were started with
            `--resources='{"docker": 1}'`, `{"docker": 1}`. Other nodes get none.
        placement_timeout: Seconds to find these resources.

    Raises:
        ConfigurationError: there is no cluster, it lacks the resources, it has other versions, or the environment
            cannot be made there.
        TypeError, ValueError: as `EnvironmentSource.of`.
    """

    actor_class: ClassVar[type[HostActor]] = HostActor

    def __init__(
        self,
        environment: EnvironmentLike,
        *,
        hosts: int | None = None,
        resources: Resources = MappingProxyType({}),
        placement_timeout: float = PLACEMENT_SECONDS,
    ) -> None:
        if hosts is not None and hosts < 1:
            raise ValueError(f"hosts must be at least 1, or None for one on each node, got {hosts}")
        EnvironmentSource.of(environment)
        recipe = pack(environment, "the environment")
        self._ray = joined_ray()
        self._places: Places | None = None  # if resources are asked for
        self._hosts: list[RayLink] = []
        names: list[str | None] = [*map(str, environment)] if isinstance(environment, Mapping) else [None]
        try:
            self._hosts = self._start(recipe, hosts, resources, placement_timeout)
            self._check()
            super().__init__(names, self._hosts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all environments and end the hosts. Without it they end with this process."""
        for host in self._hosts:
            host.close()
        if self._places is not None:
            self._places.free()

    def _start(self, recipe: bytes, hosts: int | None, resources: Resources, timeout: float) -> list[RayLink]:
        places = self._strategies(nodes_with(self._ray, resources), hosts, resources, timeout)
        actor_class = self._ray.remote(self.actor_class)
        options = options_of(resources) | {"max_task_retries": 0, "max_concurrency": CALLS_AT_ONCE}
        actors = [actor_class.options(scheduling_strategy=place, **options).remote(recipe) for place in places]
        return [RayLink(self._ray, actor, "a new host") for actor in actors]

    def _strategies(
        self, nodes: Sequence[Mapping[str, Any]], hosts: int | None, resources: Resources, timeout: float
    ) -> list[Any]:
        """Return a scheduling strategy for each host."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not any(resources.values()):
            if hosts is not None:
                return ["SPREAD"] * hosts
            return [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        count, strategy = (hosts, "SPREAD") if hosts else (len(nodes), "STRICT_SPREAD")
        self._places = Places(self._ray, "hosts of environments", count, resources, strategy=strategy, timeout=timeout)
        return self._places.strategies

    def _check(self) -> None:
        """Wait until all hosts have made their environments, and compare versions."""
        try:
            answers = self._ray.get([host.actor.describe.remote() for host in self._hosts], timeout=START_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            raise ConfigurationError(f"a host of environments did not start within {START_SECONDS:g} s") from error
        except self._ray.exceptions.RayError as error:
            cause = str(error).strip().rpartition("\n")[2]  # Ray's report ends with the exception in the actor
            raise ConfigurationError(
                f"a host of environments did not start: {cause}. Its code must be importable on the nodes; "
                f"ray.init(runtime_env={{'working_dir': '.'}}) takes the present folder there"
            ) from error
        for host, (name, theirs) in zip(self._hosts, answers, strict=True):
            host.name = name
            check_version(name, theirs)
