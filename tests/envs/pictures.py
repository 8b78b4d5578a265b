"""Small pictures for tests."""

from __future__ import annotations

import numpy as np

from gymnast.envs import Image


def picture(seed: int = 0, *, width: int = 8, height: int = 8) -> Image:
    """Make a picture of random colours."""
    return Image.of(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))
