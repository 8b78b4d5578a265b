"""Removes containers whose owner is dead.

A box ends by itself when its owner dies. This is for the rest: a machine that lost power, an engine that was stopped
in between, a container that was created and never started.
"""

from __future__ import annotations

import logging

from .client import Client
from .engine import Engine
from .owner import is_abandoned

logger = logging.getLogger("gymnast.sandbox")


async def reap(engine: Engine) -> list[str]:
    """Remove every container whose owner is dead or whose lifetime is over; returns the names of those removed.

    Raises:
        EngineError: the engine does not answer.
    """
    return await engine.call(_reap, engine.client)


def reap_once(engine: Engine) -> None:
    """Do so in the background, the first time that this engine is asked to."""
    if not engine.reaped:
        engine.reaped = True
        engine.submit(_reap_or_log, engine.client)


def _reap(client: Client) -> list[str]:
    removed = []
    for found in client.containers():
        if is_abandoned(found.get("Labels") or {}, local=client.is_local):
            client.remove(found["Id"])
            removed.append(found["Names"][0].lstrip("/"))
    return removed


def _reap_or_log(client: Client) -> None:
    try:
        removed = _reap(client)
    except Exception as error:
        logger.warning("abandoned containers were not looked for: %s", error)
    else:
        if removed:
            logger.info("removed %d containers of dead owners: %s", len(removed), ", ".join(removed))
