"""The check of what episodes leave behind: threads, file descriptors and containers."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

from ...sandbox import Engine, Executor, ExecutorPool, SandboxError
from ...sandbox.docker.reaper import boxes
from ..terminal.verdicts import Verdict
from .subject import Subject

EPISODES = 6  # after a first round, in which pools and clients may be made


def leaves_nothing(subject: Subject) -> Verdict:
    """Threads, descriptors and containers do not grow with the episodes."""
    uses_boxes = _uses_boxes(subject)
    members = -(-EPISODES // len(subject.rows))
    subject.play(subject.random(), members=members)
    before = _held(uses_boxes)
    count = len(subject.play(subject.random(), members=members))
    after = _held(uses_boxes)
    for name, number in after.items():
        if number - before[name] >= count:
            advice = f"{count} episodes left {number - before[name]} {name} open: close in close() all that reset opens"
            return Verdict("leaks", "fail", advice)
    return Verdict("leaks", "pass", f"{count} episodes left nothing open: {', '.join(after)}")


def _uses_boxes(subject: Subject) -> bool:
    core = subject.core()
    try:
        return any(isinstance(each, Executor | ExecutorPool) for each in vars(core).values())
    finally:
        core.close()


def _held(with_boxes: bool) -> dict[str, int]:
    gc.collect()
    own = [each for each in threading.enumerate() if not isinstance(each, threading._DummyThread)]  # type: ignore[attr-defined]
    held = {"threads": len(own), "descriptors": len(os.listdir("/proc/self/fd"))}
    if with_boxes:
        held["containers"] = asyncio.run(_count_boxes())
    return held


async def _count_boxes() -> int:
    """The containers of this process; other programs may start and end theirs meanwhile."""
    try:
        async with Engine() as engine:
            return sum(box.is_own for box in await boxes(engine))
    except SandboxError:
        return 0
