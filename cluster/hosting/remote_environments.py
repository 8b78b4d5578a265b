"""RemoteEnvironment: an environment that lives on a host; RemoteEnvironments chooses the host of each."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Self

from ...envs.core import BrokenEnvironmentError, Environment, Message, StepResult, StopReason, ToolCall, ToolSchema
from ...envs.engine.environment_caller import Grade
from ...envs.registry import EnvironmentSource
from ...envs.runtime.threads import run_in_loop
from ...envs.spaces import check_action
from .link import HostLink, HostLostError, Opened, ResetReply, StepReply

logger = logging.getLogger("gymnast.cluster")


class RemoteEnvironment(Environment):
    """This end of an environment that lives on a host: every method is one call, and the first `reset` makes it there.

    Tools that end the episode are asked for once, after `reset`, with empty arguments: an `is_final` that changes later
    or decides by the arguments is not noticed.
    """

    def __init__(self, hosts: RemoteEnvironments, choice: str | None, facts: Opened) -> None:
        super().__init__()
        self.name = facts.name  # of the class of the real environment
        self.gives_rewards = facts.gives_rewards
        self.min_step_seconds = facts.min_step_seconds
        self._hosts = hosts
        self._link, self._episode = hosts.take_host()
        self._choice = choice
        self._is_closed = False
        self._schemas: list[ToolSchema] = []
        self._final: frozenset[str] = frozenset()
        self._html: str | None = None

    def tool_schemas(self) -> list[ToolSchema]:
        return self._schemas

    def is_final(self, call: ToolCall) -> bool:
        return call["function"]["name"] in self._final

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        await super().areset(seed=seed)
        if self._is_closed:  # the host would make another environment, which nobody closes
            raise RuntimeError(f"this {self.name} is closed: make another one")
        reply: ResetReply = await self._call("reset", self._choice, seed, options)
        self._schemas, self._final, self.own_seconds = reply.tools, frozenset(reply.final), reply.own_seconds
        return reply.messages, reply.info

    async def astep(self, action: Message) -> StepResult:
        check_action(action, self.name)
        reply: StepReply = await self._call("step", action)
        self._html = reply.html
        return reply.result

    def render_html(self) -> str | None:
        return self._html

    async def agrade(self, stop: StopReason) -> float | None:
        grade: Grade = await self._call("grade", str(stop))
        self.metrics, self.report = grade.metrics, grade.report
        return grade.reward

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._hosts.free_host(self._link)
        with contextlib.suppress(HostLostError):  # the environment is lost with it
            await self._link.call("close", self._episode)

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._link.call(method, self._episode, *arguments)
        except HostLostError as error:
            raise BrokenEnvironmentError(f"the host of this {self.name} was lost: {error}") from error


class RemoteEnvironments(EnvironmentSource, ABC):
    """Environments on hosts: each episode gets the host with the fewest episodes. It is a context manager.

    A host that is lost takes its episodes with it: they fail. New episodes go to the other hosts.

    Args:
        names: The environments that rows choose from; `[None]` if there is only one.
        links: The hosts; all have the same environments.
    """

    def __init__(self, names: Iterable[str | None], links: Sequence[HostLink]) -> None:
        super().__init__({name: partial(self._open, name) for name in names})
        self._facts: dict[str | None, Opened] = {}
        self.links = list(links)
        self._numbers = itertools.count()
        self._choosing = threading.Lock()
        self._reported: set[HostLink] = set()  # lost hosts that were logged
        run_in_loop(self._learn())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close all environments, and leave the hosts."""

    @property
    def hosts_present(self) -> list[str]:
        """The names of the hosts that are not lost."""
        return [link.name for link in self.links if not link.is_lost]

    def take_host(self) -> tuple[HostLink, int]:
        """Return the host for a new episode, and the episode's number; `free_host` gives the place back.

        Raises:
            BrokenEnvironmentError: all hosts are lost.
        """
        with self._choosing:
            present = [link for link in self.links if not link.is_lost]
            self._report_lost(len(present))
            if not present:
                raise BrokenEnvironmentError(f"all {len(self.links)} hosts of environments are lost")
            link = min(present, key=lambda link: link.episodes)
            link.episodes += 1
            return link, next(self._numbers)

    def free_host(self, link: HostLink) -> None:
        with self._choosing:
            link.episodes -= 1

    def _report_lost(self, present: int) -> None:
        lost = {link for link in self.links if link.is_lost}
        for link in lost - self._reported:
            logger.warning("lost the host %s; %d of %d are left", link.name, present, len(self.links))
        self._reported = lost

    async def _learn(self) -> None:
        """Make each environment once, on the first host, for the facts that the engine reads before it is reset."""
        for name in self.names:
            number = next(self._numbers)
            self._facts[name] = await self.links[0].call("open", number, name)
            with contextlib.suppress(Exception):  # if it cannot be closed, its episodes will say so
                await self.links[0].call("close", number)

    def _open(self, name: str | None) -> RemoteEnvironment:
        """Choose a host. This must not wait for it: each call holds a thread, and thousands may come at once."""
        return RemoteEnvironment(self, name, self._facts[name])
