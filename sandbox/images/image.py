"""An image: its name, and the facts about it that a container is made with."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ImageError

DEFAULT_IMAGE = "gymnast-sandbox:latest"


@dataclass(kw_only=True, slots=True, frozen=True)
class ImageFacts:
    """The facts about an image that a container is made with."""

    id: str
    volumes: list[str]
    labels: dict[str, str]
    size: int  # bytes
    user: str  # of the image's USER line; "" for root
    workdir: str  # of its WORKDIR line; "" for /
    environment: dict[str, str]  # of its ENV lines


def check_name(name: str) -> None:
    """Raise ImageError if the name is empty."""
    if not name:
        raise ImageError("an image needs a name, such as 'my-sandbox:latest', got ''")
