"""Sandbox: the life of a box, which an `Executor` (`base.py`) and a `Box` share and by which a pool keeps both."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable
from types import TracebackType
from typing import Literal, NamedTuple, Self

from .errors import SandboxClosedError
from .limits import Limits


class RetireReason(NamedTuple):
    """Why a box should be replaced rather than reused."""

    category: str  # "lost", "oom", "memory", "protocol", "hard kill" and so on: pools count by it
    detail: str = ""  # for logs and errors

    def __str__(self) -> str:
        return f"{self.category}: {self.detail}" if self.detail else self.category


State = Literal["new", "open", "closed"]  # before `start`, up to `close`, and after that


class Sandbox(ABC):
    """A box that is made, started and closed. A subclass keeps `_state` up to date."""

    limits: Limits = Limits()
    """The resources that the box may use. If your box cannot hold one of them, its docstring says so."""

    reusable = True
    """Whether `reset` cleans a used box; else a pool replaces the box by a new one."""

    _state: State = "new"

    async def prepare(self) -> None:  # noqa: B027 - most boxes have no image
        """Get the image that `start` needs, once for all boxes of this `key`. By default there is nothing to do.

        Raises:
            EngineError, ImageError: as `start`.
        """

    @abstractmethod
    async def start(self) -> None:
        """Make the box ready. On failure or cancellation nothing is left behind.

        Raises:
            EngineError: there is no engine, or it refused; or the box ended before it was ready.
            ImageError: the image, or another part of the box, is missing or unfit.
            SandboxTimeoutError: the box was not ready in time.
            SandboxClosedError: the box was started before.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything, on cancellation too; closing twice does nothing."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for boxes that are interchangeable before their first use: it holds the whole configuration."""

    @abstractmethod
    def clone(self) -> Sandbox:
        """Return a new box of the same configuration that is not started."""

    @abstractmethod
    async def ping(self, *, timeout: float = 2.0) -> None:
        """Ask the box for a sign of life.

        Raises:
            SandboxLostError: the box did not answer within `timeout` seconds.
        """

    # With defaults.

    async def reset(self) -> None:
        """Bring the box back to its state after `start`: no process, file, variable or directory stays.

        A box that is lost, or that has a `retire_reason`, is replaced by a new one. By default every box is.

        Raises:
            EngineError, ImageError, SandboxTimeoutError: as `start`.
        """
        self._require_open()
        await self.close()
        self._state = "new"
        await self.start()

    @property
    def retire_reason(self) -> RetireReason | None:
        """Why the box should be replaced rather than reused, or None; pools ask between leases."""
        return None

    @property
    def lifetime(self) -> float:
        """Seconds from its start after which the box ends itself; pools replace it well before."""
        return math.inf

    @property
    def creators(self) -> int:
        """How many boxes should be started at a time; more would only wait for one another."""
        return 2 * (os.cpu_count() or 1)

    @property
    def state(self) -> State:
        """Where the box is in its life."""
        return self._state

    def _begin(self) -> None:
        if self._state != "new":
            raise SandboxClosedError(f"a box is started once, and this one is {self._state}")
        self._state = "open"

    def _require_open(self) -> None:
        if self._state != "open":
            raise SandboxClosedError(f"the box is {self._state}: use it inside `async with`, or call start() first")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
