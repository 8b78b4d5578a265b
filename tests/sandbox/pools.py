"""Helpers of the tests of pools.

A module takes the fixture as its own: `no_process_left = pools.no_process_left`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymnast.sandbox import Executor, ExecutorPool
from gymnast.sandbox.pool.lease import LeasedExecutor

from .boxes import eventually


def inner(box: Executor) -> Executor:
    """The executor that a lease passes its calls to."""
    assert isinstance(box, LeasedExecutor)
    return box._box


async def at_rest(pool: ExecutorPool, boxes: int | None = None) -> bool:
    """Wait until every box is idle and their number is `boxes`."""
    return await eventually(
        lambda: pool.statistics.boxes == pool.statistics.idle and boxes in (None, pool.statistics.idle), 15
    )


def _children() -> set[str]:
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update((thread / "children").read_text().split())
    return found


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fails the test if a child process that it started is still there five seconds later."""
    before = _children()
    yield
    deadline = time.monotonic() + 5
    while not _children() <= before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
