"""The steps of `gymnast sandbox doctor`: each needs the ones before it."""

from __future__ import annotations

import time

from ...sandbox import DEFAULT_IMAGE, DockerExecutor, Engine, SandboxError
from ...sandbox.docker.images import default_image
from ...sandbox.docker.reaper import boxes
from ...sandbox.images.host_image import RECIPE_LABEL, recipe
from ..terminal.verdicts import Verdict

SLOW_START = 5.0  # seconds
SLOW_RESET = 0.5


async def diagnose() -> list[Verdict]:
    """Try the engine, the image, a box and its isolation, in this order, until one fails."""
    verdicts: list[Verdict] = []
    step = "engine"
    try:
        async with Engine() as engine:
            verdicts.append(Verdict(step, "pass", "a container engine answers"))
            step = "image"
            image = await default_image(engine)
            if image.labels.get(RECIPE_LABEL) == recipe():
                verdicts.append(Verdict(step, "pass", f"{DEFAULT_IMAGE}, {image.size / 1e6:.0f} MB"))
            else:
                advice = f"{DEFAULT_IMAGE} was made from another Python or version of gymnast: gymnast sandbox build"
                verdicts.append(Verdict(step, "warn", advice))
            step = "box"
            verdicts += await _try_box(engine)
            step = "containers"
            abandoned = sum(each.is_abandoned for each in await boxes(engine))
            advice = f"{abandoned} are abandoned: gymnast sandbox reap" if abandoned else "none is abandoned"
            verdicts.append(Verdict(step, "warn" if abandoned else "pass", advice))
    except SandboxError as error:
        verdicts.append(Verdict(step, "fail", str(error)))
    return verdicts


async def _try_box(engine: Engine) -> list[Verdict]:
    """Start a box, run code in it, reset it, and try to leave it."""
    verdicts = []
    started = time.perf_counter()
    async with DockerExecutor(engine=engine) as box:
        seconds = time.perf_counter() - started
        verdicts.append(_timed("box", "a box started", seconds, SLOW_START))
        result = await box.python("print(6 * 7)", timeout=20)
        works = result.stdout.strip() == "42"
        said = "code runs" if works else f"6 * 7 gave {result}"
        verdicts.append(Verdict("code", "pass" if works else "fail", said))
        out = await box.python(
            "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 1); print('open')\n"
            "except OSError: print('closed')",
            timeout=20,
        )
        closed = out.stdout.strip() == "closed"
        verdicts.append(
            Verdict(
                "network",
                "pass" if closed else "fail",
                "code in a box reaches no network" if closed else "code in a box can open connections",
            )
        )
        started = time.perf_counter()
        await box.reset()
        verdicts.append(_timed("reset", "a clean box", time.perf_counter() - started, SLOW_RESET))
    return verdicts


def _timed(name: str, what: str, seconds: float, slow: float) -> Verdict:
    if seconds <= slow:
        return Verdict(name, "pass", f"{what} in {seconds:.2f} s")
    return Verdict(name, "warn", f"{what} in {seconds:.1f} s, which is slow: is the machine, or its disk, busy?")
