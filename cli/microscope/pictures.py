"""The pictures of a page: small ones whole, larger ones as thumbnails that lead to the file in the run folder."""

from __future__ import annotations

import io
import re
from functools import lru_cache
from pathlib import Path

from ...envs.images import Image
from ...records.files.run_files import IMAGES

NAMED = re.compile(rb'"digest":"([0-9a-f]{64})","media_type":"image/(png|jpeg|gif|webp)"')
SMALL = 32_000  # bytes of a picture that the page holds whole
SIDE = 256  # pixels of a thumbnail, at most


def pictures_in(lines: bytes, folder: Path) -> dict[str, dict[str, str | None]]:
    """Return, by digest, what the page shows of the pictures that lines of a run in this folder name and that exist.

    `uri` has the picture or its thumbnail, and `file` the address of the picture where it is a thumbnail.
    """
    names = sorted({(found[1].decode(), found[2].decode()) for found in NAMED.finditer(lines)})
    shown = {digest: _shown(folder, f"{IMAGES}/{digest}.{kind}") for digest, kind in names}
    return {digest: picture for digest, picture in shown.items() if picture}


@lru_cache(maxsize=1024)  # a page that follows asks again
def _shown(folder: Path, name: str) -> dict[str, str | None] | None:
    try:
        image = Image((folder / name).read_bytes())
        if len(image.data) <= SMALL:
            return {"uri": image.data_uri, "file": None}
        small, file = image.open(), io.BytesIO()
    except (OSError, ValueError):  # lost or damaged: the page names it
        return None
    small.thumbnail((SIDE, SIDE))
    small.save(file, "WEBP")
    return {"uri": Image(file.getvalue()).data_uri, "file": name}
