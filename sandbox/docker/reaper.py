"""Removes containers whose owner is dead.

A box ends by itself when its owner dies. A container remains if the machine lost power, if the engine was stopped at
that moment, or if the container was never started.
"""

from __future__ import annotations

import logging

from ..errors import EngineError
from .client import Client
from .connect import map_errors
from .engine import Engine
from .labels import is_abandoned

logger = logging.getLogger(__name__)


async def reap(engine: Engine) -> list[str]:
    """Remove every container whose owner is dead or whose lifetime is over, and return their names.

    A container that cannot be removed is named in a warning.

    Raises:
        EngineError: the engine does not list its containers.
    """
    return await engine.call(_reap, engine.client)


def reap_once(engine: Engine) -> None:
    """Reap in the background, once for each engine."""
    if not engine.reaped:
        engine.reaped = True
        engine.session.submit(_reap_or_log, engine.client)


def _reap(client: Client) -> list[str]:
    removed = []
    now = client.now()
    for found in client.containers():
        age = now - found["Created"]
        if not is_abandoned(found.get("Labels") or {}, state=found["State"], age=age):
            continue
        names = found.get("Names") or [found["Id"][:12]]  # a half-removed container has no name
        name = names[0].lstrip("/")
        try:
            map_errors(client.remove, found["Id"])
        except EngineError as error:
            logger.warning("the abandoned container %s was not removed: %s", name, error)
        else:
            removed.append(name)
    return removed


def _reap_or_log(client: Client) -> None:
    try:
        removed = _reap(client)
    except Exception as error:
        logger.warning("the search for abandoned containers failed: %s", error)
    else:
        if removed:
            logger.info("removed %d containers of dead owners: %s", len(removed), ", ".join(removed))
