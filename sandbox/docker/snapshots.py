"""Snapshots: the files of a container as an image, which is removed when it is used no more."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Mapping

from ..errors import EngineError, file_error
from ..images.image import ImageFacts
from .box_options import GUEST_VARIABLES
from .client import Client
from .connect import StreamConnection, map_errors
from .labels import LABEL, is_abandoned

logger = logging.getLogger(__name__)

TEMPORARY = f"{LABEL}.temporary"  # the label of images that their owner removes
COMMIT_SECONDS = 600.0  # for a container with gigabytes of new files
_LARGEST = 16 << 30  # bytes of a snapshot: the engine writes the holes of a file out
_REMOVALS, _PAUSE = 10, 0.5  # attempts, and seconds between them: boxes of the image may be ending


def commit(stream: StreamConnection, container: str, facts: ImageFacts, labels: Mapping[str, str]) -> str:
    """Make an image of a container's files, and return its id.

    `facts` are those of the container's image, and `labels` name the owner, who removes the image.
    """
    found = stream.api.containers(size=True, filters={"id": container})
    if found and found[0].get("SizeRw", 0) > _LARGEST:
        raise file_error(errno.EFBIG, "/", f"a snapshot has at most {_LARGEST} bytes, got {found[0]['SizeRw']}")
    # The container has another environment, user and directory than its image.
    variables = {**dict.fromkeys(GUEST_VARIABLES, ""), **facts.environment}
    environment = [f"{name}={value}" for name, value in variables.items()]
    config = {"Env": environment, "User": facts.user or "0", "WorkingDir": facts.workdir or "/"}
    config["Labels"] = {**labels, TEMPORARY: "1"}
    return stream.api.commit(container, pause=False, conf=config)["Id"]


def remove(client: Client, image: str) -> None:
    """Remove an image; if a box still uses it after some seconds, a warning says so."""
    from docker.errors import APIError, ImageNotFound

    for attempt in range(1, _REMOVALS + 1):
        try:
            client.api.remove_image(image)
        except ImageNotFound:
            return
        except APIError as error:
            if error.status_code != 409:
                raise
            if attempt == _REMOVALS:
                logger.warning("the snapshot %s was not removed, as a box uses it: %s", image, error.explanation)
            time.sleep(_PAUSE)
        else:
            return


def reap(client: Client) -> list[str]:
    """Remove the temporary images of dead owners, and return their ids."""
    removed, now = [], client.now()
    for image in client.api.images(filters={"label": TEMPORARY}):
        if is_abandoned(image["Labels"], state="exited", age=now - image["Created"]):
            try:
                map_errors(client.api.remove_image, image["Id"])
            except EngineError as error:
                logger.warning("the abandoned image %s was not removed: %s", image["Id"], error)
            else:
                removed.append(image["Id"])
    return removed
