"""Removes containers whose owner is dead.

A box ends by itself when its owner dies. This is for the rest: a machine that lost power, an engine that was stopped
in between, a container that was created and never started.
"""

from __future__ import annotations

import logging

from ..errors import EngineError
from .client import Client
from .connect import translate
from .engine import Engine
from .labels import is_abandoned

logger = logging.getLogger(__name__)


async def reap(engine: Engine) -> list[str]:
    """Remove every container whose owner is dead or whose lifetime is over; returns the names of those removed.

    One that cannot be removed is logged as a warning, and does not stand in the way of the others.

    Raises:
        EngineError: the engine does not say which containers there are.
    """
    return await engine.call(_reap, engine.client)


def reap_once(engine: Engine) -> None:
    """Do so in the background, the first time that this engine is asked to."""
    if not engine.reaped:
        engine.reaped = True
        engine.submit(_reap_or_log, engine.client)


def _reap(client: Client) -> list[str]:
    removed = []
    now = client.now()
    for found in client.containers():
        age = now - found["Created"]
        if not is_abandoned(found.get("Labels") or {}, state=found["State"], age=age):
            continue
        names = found.get("Names") or [found["Id"][:12]]  # one that is half removed has lost its name
        name = names[0].lstrip("/")
        try:
            translate(client.remove, found["Id"])
        except EngineError as error:
            logger.warning("the abandoned container %s was not removed: %s", name, error)
        else:
            removed.append(name)
    return removed


def _reap_or_log(client: Client) -> None:
    try:
        removed = _reap(client)
    except Exception as error:
        logger.warning("abandoned containers were not looked for: %s", error)
    else:
        if removed:
            logger.info("removed %d containers of dead owners: %s", len(removed), ", ".join(removed))
