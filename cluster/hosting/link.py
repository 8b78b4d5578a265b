"""The contract between a `RemoteEnvironment` and the host of the real environment: read this file first.

- `HostLink`: makes calls to one host. `RayLink` uses a Ray actor, `WebSocketLink` a connection.
- `Opened`, `ResetReply`, `StepReply`, and the engine's `Grade`: the results of the calls. `EnvironmentHost` (host.py)
  makes and checks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from gymnast import __version__

from ...envs.core import ConfigurationError, Message, StepResult, ToolSchema
from .caught_errors import CaughtError


class HostLostError(Exception):
    """The host does not answer any more: it has ended, or the network to it is broken."""


def check_version(place: str, theirs: str) -> None:
    """Raise a ConfigurationError if a host has another version of gymnast than this process."""
    if theirs != __version__:
        raise ConfigurationError(
            f"{place} has gymnast {theirs} (here {__version__}); install the same version on all machines"
        )


class Opened(NamedTuple):
    """The facts about an environment that the engine reads before it is reset."""

    name: str  # of its class
    gives_rewards: bool
    min_step_seconds: float | None


class ResetReply(NamedTuple):
    """The result of `reset`, and the tools of the episode."""

    messages: list[Message]
    info: dict[str, Any]
    tools: list[ToolSchema]
    final: list[str]  # the tools that end the episode
    own_seconds: float  # of the environment, for this episode


class StepReply(NamedTuple):
    """The result of `step`, and the state that the environment shows to people."""

    result: StepResult
    html: str | None


class HostLink(ABC):
    """The way to one host, which holds the environments of many episodes."""

    def __init__(self, name: str) -> None:
        self.name = name  # in errors
        self.episodes = 0  # open on this host, as far as this process has opened them
        self.is_lost = False  # True: new episodes go to other hosts

    async def call(self, method: str, episode: int, *arguments: Any) -> Any:
        """Call a method of the host for an episode; any event loop may await this.

        A call that is cancelled goes on at the host until the episode's next call, which ends it first.

        Raises:
            HostLostError: the host did not answer.
            BaseException: the method raised it; see `CaughtError`.
        """
        reply = await self._ask(method, episode, *arguments)
        if isinstance(reply, CaughtError):
            raise reply.rebuilt()
        return reply

    @abstractmethod
    async def _ask(self, method: str, episode: int, *arguments: Any) -> Any:
        """Return the host's answer, or raise a HostLostError."""
