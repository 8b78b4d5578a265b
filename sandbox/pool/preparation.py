"""Gets a pool's images ready, apart from its boxes: a slow build holds up the leases of its own image alone."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Hashable, Iterable

from ..errors import EngineError, SandboxClosedError
from ..lifecycle import Sandbox
from .states import WaitingLine

logger = logging.getLogger("gymnast.sandbox")


class Preparations:
    """Prepares each template once (`Sandbox.prepare`). The leases that wait for it are in a line of its own.

    Args:
        done: told the key of a template whose preparation has ended, the line of its leases, and the error, if any.
    """

    def __init__(self, done: Callable[[Hashable, WaitingLine, BaseException | None], None]) -> None:
        self._tell = done
        self._ready: set[Hashable] = set()  # keys of templates
        self._under_way: dict[Hashable, tuple[asyncio.Task[None], WaitingLine]] = {}

    def is_ready(self, key: Hashable, template: Sandbox) -> bool:
        # Leases of boxes without an image are served in the order in which they came.
        return key in self._ready or type(template).prepare is Sandbox.prepare

    @property
    def lines(self) -> list[WaitingLine]:
        return [line for _, line in self._under_way.values()]

    def begin(self, key: Hashable, template: Sandbox) -> WaitingLine:
        """Prepare a template, unless that is under way; return the line for its leases."""
        if key not in self._under_way:
            task = asyncio.get_running_loop().create_task(_prepare(template))
            self._under_way[key] = task, WaitingLine()
            task.add_done_callback(functools.partial(self._done, key))
        return self._under_way[key][1]

    async def prepare(self, templates: Iterable[Sandbox], *, wait: bool) -> None:
        """Prepare templates; if `wait`, raise the first error after all are done."""
        tasks = []
        for template in templates:
            if not self.is_ready(key := template.key, template):
                self.begin(key, template)
                tasks.append(self._under_way[key][0])
        if tasks and wait:
            await asyncio.wait(tasks)
            for task in tasks:
                if task.cancelled():
                    raise SandboxClosedError("the pool was closed while images were got ready")
                task.result()

    async def stop(self) -> None:
        tasks = [task for task, _ in self._under_way.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _done(self, key: Hashable, task: asyncio.Task[None]) -> None:
        _, line = self._under_way.pop(key)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self._ready.add(key)
        self._tell(key, line, error)


async def _prepare(template: Sandbox) -> None:
    try:
        await template.prepare()
    except EngineError as error:
        logger.warning("an image could not be got ready, and it is tried again: %s", error)
        await template.prepare()
