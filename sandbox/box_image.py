"""BoxImage: a recipe for the files that a box starts with; `docker/images.py` has an engine make the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self

Pull = Literal["never", "missing", "always"]

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(kw_only=True, slots=True, frozen=True)
class BoxImage:
    """The files that a box starts with: `BoxImage.named(...)`, `.dockerfile(folder)` or `.rootfs(tar)`."""

    kind: Literal["named", "dockerfile", "rootfs"]
    source: str  # the name, or the absolute path of the folder or of the tar file
    pull: Pull = "missing"  # when to fetch a named image from its registry
    network: bool = True  # whether the steps of a Dockerfile have a network
    arguments: tuple[tuple[str, str], ...] = ()  # for the ARG lines of a Dockerfile

    @classmethod
    def named(cls, name: str, *, pull: Pull = "missing") -> Self:
        """An image of the engine or of a registry, such as "python:3.12-slim"; "always" fetches it once an `Engine`."""
        if not name.strip():
            raise ValueError(f"an image needs a name, such as 'python:3.12-slim', got {name!r}")
        if pull not in ("never", "missing", "always"):
            raise ValueError(f"pull must be 'never', 'missing' or 'always', got {pull!r}")
        return cls(kind="named", source=name, pull=pull)

    @classmethod
    def dockerfile(cls, folder: str | Path, *, arguments: Mapping[str, str] = _NONE, network: bool = True) -> Self:
        """The image that `docker build FOLDER` makes; it is built when the folder has changed."""
        path = Path(folder).resolve()
        if not (path / "Dockerfile").is_file():
            raise ValueError(f"there is no Dockerfile in {path}")
        return cls(kind="dockerfile", source=str(path), network=network, arguments=tuple(sorted(arguments.items())))

    @classmethod
    def rootfs(cls, tar: str | Path) -> Self:
        """A whole root file system in a tar file, as `docker export` and `debootstrap` make them."""
        path = Path(tar).resolve()
        if not path.is_file():
            raise ValueError(f"there is no tar file {path}")
        return cls(kind="rootfs", source=str(path))

    @classmethod
    def of(cls, image: object) -> BoxImage:
        """Return an image, or the image of a name; TypeError if it is neither."""
        if isinstance(image, str):
            return cls.named(image)
        if not isinstance(image, BoxImage):
            raise TypeError(f"image must be a BoxImage, such as BoxImage.named('debian:12-slim'), got {image!r}")
        return image

    def __str__(self) -> str:
        return self.source
