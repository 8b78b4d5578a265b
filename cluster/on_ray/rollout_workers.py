"""RayRolloutWorkers: whole episodes, played in processes on the machines of a Ray cluster."""

# pyright: reportMissingImports=false
# Ray is an optional dependency, so it is imported inside functions. So is the trainer, whose import takes seconds.

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from ...envs.core import BrokenEnvironmentError, ConfigurationError
from ...envs.engine.compaction import Compact
from ...envs.engine.play_episode import EpisodeLimits, play_episode
from ...envs.episode import Episode, EpisodeSpec, Failure
from ...envs.policy import Policy, ScriptedPolicy
from ...envs.registry import EnvironmentLike
from ...envs.runtime.threads import run_in_thread
from ...envs.runtime.whereabouts import current_place
from ...sandbox.cancellation import finish
from ..hosting.host import EnvironmentHost
from ..hosting.link import HostLostError
from ..hosting.recipes import pack
from .environments import HostActor, RayEnvironments

POLICIES_KEPT = 4  # training and evaluation each have their own

Model = tuple[Policy, Compact | None]

Shipped = tuple[int, Any]
"""The number of a policy, and Ray's reference to the pickle of it and of the function that rewrites histories."""


class WorkerHost(EnvironmentHost):
    """A host that plays whole episodes, too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._policies: dict[int, asyncio.Future[Model]] = {}

    async def _play(
        self, episode: int, shipped: Shipped, weights: Any, spec: EpisodeSpec, limits: EpisodeLimits
    ) -> Episode:
        policy: Any
        policy, compact = await self._policy(*shipped)
        if weights is not None:
            await run_in_thread(policy.generator.follow, weights)
        return await play_episode(spec, self._source.create, policy, limits, compact)

    def _policy(self, number: int, reference: Any) -> Awaitable[Model]:
        """Return the policy of this number, and the function; fetched once, they stay until others displace them."""
        if number not in self._policies:
            for old in sorted(self._policies)[: 1 - POLICIES_KEPT]:
                del self._policies[old]
            self._policies[number] = asyncio.ensure_future(_fetch(reference))
        return asyncio.shield(self._policies[number])


async def _fetch(reference: Any) -> Model:
    return await run_in_thread(pickle.loads, await reference)


class WorkerActor(HostActor, WorkerHost):
    """A `WorkerHost` in a process of its own."""


class RayRolloutWorkers(RayEnvironments):
    """Workers on a Ray cluster that play whole episodes; valid wherever `environment=` is.

        environment = RayRolloutWorkers(CodeEnv(DockerExecutor()), 8)
        args = GRPOConfig(generator="vllm-server", vllm_server_urls=[...], ...)

    The environment, the chat format and the tokens of an episode are in a worker, which asks the vLLM servers itself.
    So the trainer has one call for each episode, and its processor does not limit the turns a second. Same seeds give
    the same episodes as without workers. Reward functions run in the trainer. If a worker is lost, exactly its episodes
    fail.

    Args:
        environment: As for `RayEnvironments`.
        workers: The number of processes, spread over the nodes; one for each core that can be spared.
        options: `resources` and `placement_timeout` of `RayEnvironments`.

    Raises:
        ConfigurationError, TypeError, ValueError: as `RayEnvironments`.
    """

    actor_class: ClassVar[type[HostActor]] = WorkerActor

    def __init__(self, environment: EnvironmentLike, workers: int, **options: Any) -> None:
        super().__init__(environment, hosts=workers, **options)
        self._shipped: dict[tuple[int, int], tuple[Model, Shipped]] = {}  # by id()
        self._policy_numbers = itertools.count()

    async def play(self, play_episode: Callable[..., Any], spec: EpisodeSpec, *how: Any) -> Episode:
        """Play an episode in the worker with the fewest episodes.

        Raises:
            ConfigurationError: the policy's generator cannot be used from other processes.
        """
        policy, limits, compact = how
        weights = _weights_of(policy)
        shipped = self._ship(policy, compact)
        try:
            link, episode = self.take_host()
        except BrokenEnvironmentError as error:
            return _failed(spec, error)
        place = current_place.get()
        if place is not None:
            place.enter(f"worker {link.name}")
        try:
            played = await link.call("play", episode, shipped, weights, spec, limits)
            played.spec = spec  # the same object, whose row is the data set's
            return played
        except asyncio.CancelledError:
            with contextlib.suppress(HostLostError):
                await finish(link.call("close", episode))  # cancels the episode there, and waits for its end
            raise
        except HostLostError as error:
            return _failed(spec, BrokenEnvironmentError(f"the worker of this episode was lost: {error}"))
        finally:
            self.free_host(link)

    def _ship(self, policy: Policy, compact: Compact | None) -> Shipped:
        """Store the policy and the function in the cluster, once for each pair of objects."""
        key = id(policy), id(compact)
        if key not in self._shipped:
            for old in list(self._shipped)[: 1 - POLICIES_KEPT]:
                del self._shipped[old]
            reference = self._ray.put(pack((policy, compact), "the policy, or compact=,"))
            self._shipped[key] = (policy, compact), (next(self._policy_numbers), reference)
        return self._shipped[key][1]


def _failed(spec: EpisodeSpec, error: Exception) -> Episode:
    return Episode(spec=spec, failure=Failure.of("step", error))


def _weights_of(policy: Policy) -> Any:
    """Return the weights that a copy of the policy's generator must follow; None for a policy without a generator."""
    if isinstance(policy, ScriptedPolicy):
        return None
    from ...trainer.rollout.token_policy import TokenPolicy
    from ...trainer.vllm.servers import VLLMServerGenerator

    if not isinstance(policy, TokenPolicy):
        return None
    if not isinstance(policy.generator, VLLMServerGenerator):
        raise ConfigurationError(
            f"rollout workers cannot use {type(policy.generator).__name__}, which belongs to the training process: set "
            f"generator='vllm-server' and vllm_server_urls, and max_staleness=0, since turns in a worker do not wait "
            f"for new weights; or use RayEnvironments"
        )
    return policy.generator.weights
