"""The check of what episodes leave behind: threads, file descriptors and containers."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

from ...sandbox import Engine, Executor, ExecutorPool, SandboxError
from ...sandbox.docker.reaper import boxes
from ..terminal.verdicts import Finding
from .subject import Subject

EPISODES = 6  # after a first round, in which pools and clients may be made


def leaves_nothing(subject: Subject) -> Finding:
    """Check that threads, descriptors and containers do not grow with the episodes."""
    uses_boxes = _uses_boxes(subject)
    members = -(-EPISODES // len(subject.rows))
    subject.play(subject.random(), members=members)
    before, threads = _held(uses_boxes), _threads()  # in this order: a look at the engine may leave a thread
    count = len(subject.play(subject.random(), members=members))
    # Threads that end meanwhile, perhaps of another part of the program, must not hide those that were left.
    left = {"threads": len(_threads() - threads)}
    left |= {name: number - before[name] for name, number in _held(uses_boxes).items()}
    for name, number in left.items():
        if number >= count:
            advice = f"{count} episodes left {number} {name} open: close in close() all that reset opens"
            return Finding("fail", advice)
    return Finding("pass", f"{count} episodes left nothing open: {', '.join(left)}")


def _uses_boxes(subject: Subject) -> bool:
    with subject.made() as environment:
        return any(isinstance(value, Executor | ExecutorPool) for value in vars(environment.unwrapped).values())


def _threads() -> set[threading.Thread]:
    dummy = threading._DummyThread  # type: ignore[attr-defined]
    return {thread for thread in threading.enumerate() if not isinstance(thread, dummy)}


def _held(with_boxes: bool) -> dict[str, int]:
    gc.collect()
    held = {"descriptors": len(os.listdir("/dev/fd"))}
    if with_boxes:
        held["containers"] = asyncio.run(_count_boxes())
    return held


async def _count_boxes() -> int:
    """Return the number of containers of this process; other programs may start and end theirs meanwhile."""
    try:
        async with Engine() as engine:
            return sum(box.is_own for box in await boxes(engine))
    except SandboxError:
        return 0
