"""The volume with a Python for the guest, so that a box may have any image. It is filled once for each engine."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path

from ..host.boot import BOOT
from ..images.host_image import GUEST_FOLDER, guest_recipe, make_guest_archive
from .client import Client
from .connect import accepting
from .engine import Engine
from .labels import is_abandoned, labels
from .snapshots import TEMPORARY

LABEL = "gymnast.guest"  # of the volumes

_FILLING_SECONDS = 600.0  # after which a volume that another process fills counts as abandoned


async def guest_volume(engine: Engine) -> str:
    """Return the name of a volume with the guest's Python. It is made if the engine has none of this Python.

    Raises:
        ImageError: this machine does not run Linux with glibc.
        EngineError: the engine does not answer, or refuses.
    """
    name = f"gymnast-guest-{guest_recipe(BOOT)}"
    async with engine.lock(name):
        found = await engine.call(_find, engine.client, name)
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(prefix="gymnast-guest-") as folder:
            archive = Path(folder, "guest.tar")
            await asyncio.to_thread(make_guest_archive, Path(folder, "root"), archive, BOOT)
            return await engine.call(_make, engine.client, name, archive)


def _find(client: Client, name: str) -> str | None:
    """Return the volume that the volume `name` names, or None if one of the two is not there, or not ours."""
    pointer = _labels(client, name)
    content = pointer.get(LABEL, "")
    if content and LABEL in _labels(client, content):
        return content
    if pointer:
        client.api.remove_volume(name)
    return None


def _labels(client: Client, volume: str) -> dict[str, str]:
    with accepting(404):
        return client.api.inspect_volume(volume)["Labels"] or {}
    return {}


def _make(client: Client, name: str, archive: Path) -> str:
    """Fill a volume, then make the volume `name`, which names it. If another process was faster, take that one's.

    The engine fills a new volume with the files that the image of a new container has in its place. To make a volume
    that exists changes nothing: so its first maker wins.
    """
    own = f"{name}-{secrets.token_hex(4)}"
    chosen = ""
    owner = labels(_FILLING_SECONDS)
    changes = [f"LABEL {key}={value}" for key, value in {TEMPORARY: "1", **owner}.items()]
    client.api.import_image(src=str(archive), repository=own, changes=changes)
    try:
        client.api.create_volume(own, labels={LABEL: own, **owner})
        mount = {"Image": own, "Entrypoint": ["-"], "Labels": owner, "NetworkDisabled": True}
        binds = {"HostConfig": {"Binds": [f"{own}:{GUEST_FOLDER}"], "NetworkMode": "none"}}
        made = client.api.create_container_from_config({**mount, **binds}, own)
        client.api.remove_container(made["Id"])
        chosen = client.api.create_volume(name, labels={LABEL: own})["Labels"][LABEL]
        return chosen
    finally:
        if chosen != own:
            client.api.remove_volume(own, force=True)
        client.api.remove_image(own, force=True)


def reap(client: Client) -> list[str]:
    """Remove the volumes that dead processes did not fill to the end, and return their names.

    Those of other versions of Python or of gymnast stay: other processes may use them.
    """
    volumes = client.api.volumes(filters={"label": LABEL})["Volumes"] or []
    named = {volume["Labels"][LABEL] for volume in volumes if volume["Labels"][LABEL] != volume["Name"]}
    unfinished = [volume for volume in volumes if volume["Labels"][LABEL] == volume["Name"] not in named]
    removed = [one["Name"] for one in unfinished if is_abandoned(one["Labels"], state="exited", age=0)]
    for name in removed:
        client.api.remove_volume(name, force=True)
    return removed
