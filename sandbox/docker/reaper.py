"""Removes containers whose owner is dead, and images that are made of files.

A box ends by itself when its owner dies. A container remains if the machine lost power, if the engine was stopped at
that moment, or if the container was never started.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ..errors import EngineError
from . import guest_volume, snapshots
from .client import Client
from .connect import accepting, map_errors
from .engine import Engine
from .images import MADE
from .labels import is_abandoned, is_own

logger = logging.getLogger(__name__)


class OwnedContainer(NamedTuple):
    """A container that gymnast made."""

    name: str
    id: str
    state: str  # the engine's word for it, such as "running"
    age: float  # seconds
    is_abandoned: bool  # see `labels.is_abandoned`
    is_own: bool  # this process is its owner


async def boxes(engine: Engine) -> list[OwnedContainer]:
    """List the containers that gymnast made."""
    return await engine.call(_boxes, engine.client)


async def reap(engine: Engine) -> list[str]:
    """Remove every container, and every snapshot, that is abandoned (`labels.is_abandoned`), and return their names.

    A container that cannot be removed is named in a warning. EngineError if the engine does not list its containers.
    """
    return await engine.call(_reap, engine.client)


async def prune(engine: Engine) -> list[str]:
    """Remove the images that were made of Dockerfiles and tar files, and return their names. A used one stays."""
    return await engine.call(_prune, engine.client)


def reap_once(engine: Engine) -> None:
    """Reap in the background, once for each engine."""
    if not engine.reaped:
        engine.reaped = True
        engine.connection.submit(_reap_or_log, engine.client)


def _boxes(client: Client) -> list[OwnedContainer]:
    now, boxes = client.now(), []
    for found in client.containers():
        names = found.get("Names") or [found["Id"][:12]]  # a half-removed container has no name
        age, state = now - found["Created"], found["State"]
        labels = found.get("Labels") or {}
        abandoned = is_abandoned(labels, state=state, age=age)
        boxes.append(OwnedContainer(names[0].lstrip("/"), found["Id"], state, age, abandoned, is_own(labels)))
    return boxes


def _reap(client: Client) -> list[str]:
    removed = []
    for box in _boxes(client):
        if not box.is_abandoned:
            continue
        try:
            map_errors(client.remove, box.id)
        except EngineError as error:
            logger.warning("the abandoned container %s was not removed: %s", box.name, error)
        else:
            removed.append(box.name)
    return removed + snapshots.reap(client) + map_errors(guest_volume.reap, client)


def _prune(client: Client) -> list[str]:
    made = client.api.images(filters={"reference": [f"{start}:*" for start in MADE.values()]})
    removed = []
    for name in (name for image in made for name in image["RepoTags"] or ()):
        with accepting(404, 409):  # it is gone already; a container uses it
            client.api.remove_image(name)
            removed.append(name)
    return removed


def _reap_or_log(client: Client) -> None:
    try:
        removed = _reap(client)
    except Exception as error:
        logger.warning("the search for abandoned containers failed: %s", error)
    else:
        if removed:
            logger.info("removed %d containers and snapshots of dead owners: %s", len(removed), ", ".join(removed))
