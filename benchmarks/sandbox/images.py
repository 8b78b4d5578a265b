"""Measurements of a pool of many images, and of images that are made of a folder."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from gymnast.sandbox import DEFAULT_IMAGE, BoxImage, Engine
from gymnast.sandbox.docker.images import image_facts

from ..figures import Values
from .pool import added_by_slow_images, measure

MEGABYTE = 1 << 20


async def many_images(quick: bool) -> Values:
    """What the scheduler of a pool takes with 64 images in groups of eight, and the leases that get a used box."""
    found = await asyncio.to_thread(measure, *((64, 16) if quick else (256, 64)))
    return {"many_images": found["scheduler_percent"], "used_boxes": found["reused_percent"]}


async def slow_images(quick: bool) -> Values:
    """What four slow images add to the slowest of 64 leases of images that are ready."""
    return {"slow_images": await added_by_slow_images()}


async def folder(quick: bool) -> Values:
    """What the folder of a Dockerfile, with large files, adds to the search for an image, once the image is built."""
    with tempfile.TemporaryDirectory() as path:
        _fill(Path(path), megabytes=20 if quick else 200)
        async with Engine() as engine:
            images = BoxImage.dockerfile(path), BoxImage.named(DEFAULT_IMAGE)
            built = await image_facts(engine, images[0])
            try:
                seconds = [await _median(engine, image) for image in images]
            finally:
                await engine.call(engine.client.api.remove_image, built.id, True)
    return {"folder": (seconds[0] - seconds[1]) * 1e3}


def _fill(folder: Path, *, megabytes: int) -> None:
    (folder / "Dockerfile").write_text(f"FROM {DEFAULT_IMAGE}\nLABEL of={folder}\n")
    with (folder / "data").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(MEGABYTE))


async def _median(engine: Engine, image: BoxImage) -> float:
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        await image_facts(engine, image)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
