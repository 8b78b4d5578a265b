"""SupervisedSandbox: a box behind a connection to its guest. This file starts, gives up and replaces boxes.

A subclass of the two kinds of guest makes the requests: `supervised_executor.py` those of sessions, `supervised_box.py`
those of a whole box. Their subclasses launch and remove the container or process in which the guest runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import logging
from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

from ..cancellation import finish, stop
from ..errors import SandboxTimeoutError
from ..lifecycle import Sandbox
from ..limits import Limits, check_timeout
from .client import Client
from .connection import Connection

logger = logging.getLogger(__name__)

START_TIMEOUT = 60.0  # seconds until a box is ready
CLOSE_SECONDS = 15.0  # for the removal of a box when it is closed


class SupervisedSandbox(Sandbox):
    """A box with a guest of one kind."""

    _main: ClassVar[Literal["supervisor", "box"]]  # the guest's module that runs in the box

    def __init__(self, *, limits: Limits, start_timeout: float) -> None:
        self.limits = limits
        self.start_timeout = check_timeout(start_timeout, "start_timeout")
        self._renew()

    def _twin(self) -> Self:
        """Return a new box of the same configuration that is not started."""
        twin = copy.copy(self)  # without a second warning about its arguments
        twin._renew()
        return twin

    def _renew(self) -> None:
        """Become a box that was not started. A subclass adds the things of its own that belong to one box."""
        self._state = "new"
        self._box: Client | None = None
        self._lost = ""  # why there is no box any more
        self._autopsy: asyncio.Task[bool] | None = None  # finds out whether a box that has ended ran out of memory
        self._opening: asyncio.Task[None] | None = None
        self._removals: set[concurrent.futures.Future[None]] = set()
        self._released = False

    # For the subclasses.

    what = "the image"  # in errors, the thing that lacks something a box needs

    @abstractmethod
    async def _prepare(self) -> None:
        """Get everything ready for `_launch`, such as an image. This time does not count against `start_timeout`."""

    @abstractmethod
    async def _launch(self) -> Connection:
        """Start a process that reads the guest's program; nothing is left if this fails or is cancelled."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return the guest's settings, which are its first message."""

    def _explain(self, said: str) -> Exception | None:
        """Return a better error for a guest that ended at its start with these last words, or None."""
        return None

    async def _revive(self, was_revived: bool) -> bool:
        """Help a box whose answer is overdue, or return False if there is no use. See `Client`."""
        return False

    async def _ran_out_of_memory(self) -> bool:
        """Whether the box, which has just ended, was killed for want of memory."""
        return False

    @abstractmethod
    def _remove(self, *, is_silent: bool) -> concurrent.futures.Future[None] | None:
        """Begin to remove the container or process that `_launch` started; return the job, or None if there is none.

        A box that is silent may not end by itself.
        """

    async def _release(self, deadline: float) -> None:
        """Release everything else that is held. The deadline is a time of the event loop."""

    async def _fill(self) -> None:
        """Bring a new box, in which no code has run, into the state that it has after `start`."""

    # Its life.

    @property
    def _loss(self) -> str:
        """Why the box is lost; "" if it is not, as far as is known."""
        return self._lost or (self._box is not None and self._box.connection.lost) or ""

    @property
    def lifetime(self) -> float:
        return self.limits.lifetime

    async def start(self) -> None:
        self._begin()
        try:
            await self._open_box()
        except BaseException:
            await finish(self.close())
            raise

    async def close(self) -> None:
        if self._released:  # do not ask `_state`: if a close() was cut off by the end of its loop, repeat it
            return
        self._state = "closed"
        self._give_up("it was closed")
        await finish(self._close())

    async def reset(self) -> None:
        self._require_open()
        await self.close()
        self._renew()  # else the next `close` would take this box for a closed one
        await self.start()

    async def _open_box(self) -> None:
        """Make a box and its files. If this fails, or this is closed meanwhile, nothing is left."""
        self._opening = opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait({opening})
        finally:
            await finish(stop(opening))
        self._require_open()  # close() may have stopped it
        opening.result()

    async def _open(self) -> None:
        deadline: asyncio.Timeout | None = None
        try:
            await self._prepare()
            async with asyncio.timeout(self.start_timeout) as deadline:
                connection = await self._launch()
                self._box = box = Client(connection, self.limits.grace, self._revive)
                await box.boot(self._main, self._settings(), self.what, self._explain)
                connection.on_end = self._examine
                self._lost = ""
                await self._fill()
        except BaseException as error:
            late = deadline is not None and deadline.expired()
            self._give_up("it was not ready in time" if late else "it could not be started")
            if late:
                message = f"the box was not ready within start_timeout={self.start_timeout:g} s"
                raise SandboxTimeoutError(message) from error
            raise

    def _examine(self) -> None:
        # Find out now why the box has ended: the engine soon forgets its events.
        self._autopsy = asyncio.ensure_future(self._ran_out_of_memory())

    async def _died_of_memory(self) -> bool:
        """Whether the box has ended for want of memory. If this is cancelled, the next call waits here."""
        if self._autopsy is None:
            return False
        await asyncio.wait({self._autopsy})
        return not self._autopsy.cancelled() and self._autopsy.result()

    def _give_up(self, reason: str) -> None:
        """End the connection to the box, and remove the box in the background."""
        self._lost = reason
        box, self._box = self._box, None
        if box is not None:
            box.connection.abort(reason)
        removal = self._remove(is_silent=box is not None and box.silent)
        if removal is not None:
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _close(self) -> None:
        """Wait until all boxes of this object are gone."""
        for task in (self._opening, self._autopsy):
            if task is not None and task.get_loop() is asyncio.get_running_loop():
                await stop(task)
        self._give_up("it was closed")
        deadline = asyncio.get_running_loop().time() + CLOSE_SECONDS
        removals = [asyncio.wrap_future(removal) for removal in list(self._removals)]
        late = (await asyncio.wait(removals, timeout=CLOSE_SECONDS))[1] if removals else ()
        if late:
            logger.warning("a box is closed, but not known to be gone after %g s; it ends by itself", CLOSE_SECONDS)
        await self._release(deadline)
        self._released = True
        for removal in removals:
            if removal not in late:
                removal.result()
