"""Removes containers whose owner is dead.

A box ends by itself when its owner dies. This is for the rest: a machine that lost power, an engine that was stopped
in between, a container that was created and never started.
"""

from __future__ import annotations

import asyncio
import logging

from .engine import Engine
from .errors import EngineError
from .owner import is_abandoned

logger = logging.getLogger("gymnast.sandbox")


async def reap(engine: Engine) -> list[str]:
    """Remove every container whose owner is dead or whose lifetime is over; returns the names of those removed.

    Raises:
        EngineError: the engine does not answer.
    """
    abandoned = [found for found in await engine.containers() if is_abandoned(found.get("Labels") or {})]
    names = [found["Names"][0].lstrip("/") for found in abandoned]
    results = await asyncio.gather(*(engine.remove(found["Id"]) for found in abandoned), return_exceptions=True)
    removed = []
    for name, result in zip(names, results, strict=True):
        if isinstance(result, EngineError):
            logger.warning("the abandoned container %s was not removed: %s", name, result)
        elif isinstance(result, BaseException):
            raise result
        else:
            removed.append(name)
    return removed
