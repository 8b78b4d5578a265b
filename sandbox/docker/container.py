"""DockerSandbox: a box in a container, for either kind of guest: it starts the container, and removes it.

The engine creates and removes the container (`engine.py`). Everything else goes over one socket to the guest inside.
When this process dies, the socket closes, and so the box ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from typing import Any

from ..box_image import BoxImage
from ..errors import EngineError
from ..host.connection import AttachedConnection, Connection
from ..host.supervised import SupervisedSandbox
from ..images.image import ImageFacts
from .client import EVENT_SECONDS, Launched
from .engine import Engine
from .images import image_facts
from .processor_time import revive
from .reaper import reap_once


class DockerSandbox(SupervisedSandbox):
    """A box in a container. A subclass gives `_launch` and `_settings`."""

    engine: Engine
    best_effort: bool
    image: BoxImage

    @property
    def creators(self) -> int:
        return self.engine.creators

    def _take_image(self, image: BoxImage) -> None:
        self.image, self.what = image, f"the image {str(image)!r}"

    def _renew(self) -> None:
        super()._renew()
        self._has_engine = False  # this object has opened it
        self._facts: ImageFacts | None = None
        self._launched: Launched | None = None

    @property
    def facts(self) -> ImageFacts:
        """The facts about the image of a box that is being started, or was."""
        assert self._facts is not None
        return self._facts

    async def prepare(self) -> None:
        async with self.engine:
            await image_facts(self.engine, self.image)

    async def _prepare(self) -> None:
        if not self._has_engine:
            await self.engine.open()
            self._has_engine = True
        self._facts = await image_facts(self.engine, self.image)

    async def _start_container(self, config: dict[str, Any]) -> Connection:
        name = f"gymnast-{uuid.uuid4().hex[:12]}"
        self._launched = await self.engine.launch(name, config, best_effort=self.best_effort)
        reap_once(self.engine)
        loop = asyncio.get_running_loop()
        # The event loop gets a socket of its own: `_remove` may close ours before the loop has begun to read.
        sock = self._launched.socket.dup()
        _, connection = await loop.create_connection(lambda: AttachedConnection(self.limits), sock=sock)
        return connection

    async def _ran_out_of_memory(self) -> bool:
        if self._launched is None:
            return False
        try:
            return await self.engine.talk(EVENT_SECONDS, self.engine.client.ran_out_of_memory, self._launched.container)
        except EngineError:
            return False

    async def _revive(self, was_revived: bool) -> bool:
        """Help a box that its processor limit holds up. Another silent box is paused or hostile: nothing helps it."""
        if self._launched is None:
            return False
        try:
            return await self.engine.call(revive, self.engine.client.api, self._launched.container, was_revived)
        except EngineError:
            return False

    def _remove(self, *, is_silent: bool) -> concurrent.futures.Future[None] | None:
        launched, self._launched = self._launched, None
        if launched is None:
            return None
        launched.socket.close()
        return self.engine.connection.remove(launched.container, is_silent=is_silent)

    async def _release(self, deadline: float) -> None:
        if self._has_engine:
            self._has_engine = False
            await self.engine.close(deadline)
