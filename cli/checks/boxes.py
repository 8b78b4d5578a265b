"""The checks of `gymnast sandbox doctor`: each needs the ones before it."""

from __future__ import annotations

import asyncio
import time

from ...sandbox import DEFAULT_IMAGE, BwrapExecutor, DockerExecutor, Engine, SandboxError
from ...sandbox.docker.images import default_image
from ...sandbox.docker.reaper import boxes
from ...sandbox.images.host_image import RECIPE_LABEL, recipe
from ...sandbox.local.bwrap_sandbox import require_bubblewrap, what_is_not_held
from ..terminal.verdicts import Finding

SLOW_START = 5.0  # seconds
SLOW_RESET = 0.5


async def diagnose() -> dict[str, Finding]:
    """Try the engine, the image, a box and its isolation, in this order, until one fails; or else bubblewrap."""
    findings: dict[str, Finding] = {}
    step = "bubblewrap"
    try:
        await asyncio.to_thread(require_bubblewrap)
        findings[step] = Finding("pass", f"it makes boxes; {what_is_not_held()}")
    except SandboxError as error:
        findings[step] = Finding("skip", str(error))  # an engine does
    step = "engine"
    try:
        async with Engine() as engine:
            findings[step] = Finding("pass", "a container engine answers")
            step = "image"
            image = await default_image(engine)
            if image.labels.get(RECIPE_LABEL) == recipe():
                findings[step] = Finding("pass", f"{DEFAULT_IMAGE}, {image.size / 1e6:.0f} MB")
            else:
                advice = f"{DEFAULT_IMAGE} was made from another Python or version of gymnast: gymnast sandbox build"
                findings[step] = Finding("warn", advice)
            step = "box"
            findings |= await _try_box(DockerExecutor(engine=engine))
            step = "containers"
            abandoned = sum(box.is_abandoned for box in await boxes(engine))
            advice = f"{abandoned} are abandoned: gymnast sandbox reap" if abandoned else "none is abandoned"
            findings[step] = Finding("warn" if abandoned else "pass", advice)
    except SandboxError as error:
        findings[step] = Finding("fail", str(error))
        if step == "engine" and findings["bubblewrap"].outcome == "pass":
            findings[step] = Finding("warn", f"{error} Until then, bubblewrap makes the boxes.")
            findings |= await _try_box(BwrapExecutor())
    return findings


CONNECT = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), 1)
    print("open")
except OSError:
    print("closed")
"""


async def _try_box(executor: DockerExecutor | BwrapExecutor) -> dict[str, Finding]:
    """Start a box, run code in it, try to leave it, and reset it."""
    started = time.perf_counter()
    async with executor as box:
        start = _timed("a box started", time.perf_counter() - started, SLOW_START)
        result = await box.python("print(6 * 7)", timeout=20)
        works = result.stdout.strip() == "42"
        code = Finding("pass", "code runs") if works else Finding("fail", f"6 * 7 gave {result}")
        closed = (await box.python(CONNECT, timeout=20)).stdout.strip() == "closed"
        reached = "code in a box reaches no network" if closed else "code in a box can open connections"
        network = Finding("pass" if closed else "fail", reached)
        started = time.perf_counter()
        await box.reset()
        reset = _timed("a clean box", time.perf_counter() - started, SLOW_RESET)
    return {"box": start, "code": code, "network": network, "reset": reset}


def _timed(event: str, seconds: float, slow: float) -> Finding:
    if seconds <= slow:
        return Finding("pass", f"{event} in {seconds:.2f} s")
    return Finding("warn", f"{event} in {seconds:.1f} s, which is slow: is the machine, or its disk, busy?")
