"""Gets a pool's images ready, apart from its boxes: a slow build holds up the leases of its own image alone."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Hashable, Iterable

from ..errors import EngineError, SandboxClosedError
from ..lifecycle import Sandbox

logger = logging.getLogger("gymnast.sandbox")


class Preparations:
    """Prepares each template once (`Sandbox.prepare`).

    Args:
        done: told the key of a template whose preparation has ended, and the error, if any.
    """

    def __init__(self, done: Callable[[Hashable, BaseException | None], None]) -> None:
        self._tell = done
        self._ready: set[Hashable] = set()  # keys of templates
        self._under_way: dict[Hashable, asyncio.Task[None]] = {}

    def begin(self, key: Hashable, template: Sandbox) -> asyncio.Task[None] | None:
        """Prepare a template, unless that is under way; return the task, or None if there is nothing to do."""
        # Leases of boxes without an image are served in the order in which they came.
        if key in self._ready or type(template).prepare is Sandbox.prepare:
            return None
        if key not in self._under_way:
            self._under_way[key] = task = asyncio.get_running_loop().create_task(_prepare(template))
            task.add_done_callback(functools.partial(self._done, key))
        return self._under_way[key]

    async def finish(self, key: Hashable, template: Sandbox, timeout: float) -> bool:
        """Wait until a template is ready, or the pool is closed; return False if that is late. Raises its error."""
        task = self.begin(key, template)
        if task is not None:
            await asyncio.wait({task}, timeout=timeout)
            if not task.done():
                return False
            if not task.cancelled():
                task.result()
        return True

    async def prepare(self, templates: Iterable[Sandbox], *, wait: bool) -> None:
        """Prepare templates; if `wait`, raise the first error after all are done."""
        tasks = [task for template in templates if (task := self.begin(template.key, template)) is not None]
        if tasks and wait:
            await asyncio.wait(tasks)
            for task in tasks:
                if task.cancelled():
                    raise SandboxClosedError("the pool was closed while images were got ready")
                task.result()

    async def stop(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _done(self, key: Hashable, task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self._ready.add(key)
        self._tell(key, error)


async def _prepare(template: Sandbox) -> None:
    try:
        await template.prepare()
    except EngineError as error:
        logger.warning("an image could not be got ready, and it is tried again: %s", error)
        await template.prepare()
