"""The request for the container of a `Box`, in which the code may be root. Nothing here talks to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..host.seccomp import BOX_CAPABILITIES, box_seccomp
from ..images.host_image import GUEST_COMMAND, GUEST_FOLDER, GUEST_VARIABLES
from ..images.image import ImageFacts
from ..limits import size_of
from .options import BoxOptions, container_config

_OF_THE_LOADER = ("LD_", "GLIBC_", "MALLOC_")  # variables of an image that the guest's C library would obey


def box_config(options: BoxOptions, image: ImageFacts, labels: Mapping[str, str], volume: str) -> dict[str, Any]:
    """Return the body of the request that creates the container (`POST /containers/create`).

    Args:
        options, labels: of the container.
        image: its image.
        volume: the name of the volume with the guest's Python.
    """
    config = container_config(options, image.id, dict(labels), [])
    config["Entrypoint"] = list(GUEST_COMMAND)
    variables = dict.fromkeys((name for name in image.environment if name.startswith(_OF_THE_LOADER)), "")
    config["Env"] = [f"{name}={value}" for name, value in {**variables, **GUEST_VARIABLES}.items()]
    limits, host = options.limits, config["HostConfig"]
    host |= {
        "ReadonlyRootfs": False,
        "Tmpfs": {},
        "CapAdd": list(BOX_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={options.seccomp or box_seccomp()}"],
        "Init": False,  # the guest is the first process: the kernel protects this one from root
        "Binds": [f"{volume}:{GUEST_FOLDER}:ro,nocopy"],
        "ShmSize": size_of(limits.shm),
        "Ulimits": [limit for limit in host["Ulimits"] if limit["Name"] != "fsize"],
    }
    return config
