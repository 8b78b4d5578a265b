"""The contract of `sandbox/base.py` as checks that every executor passes; run them on an executor of your own.

    report = await conformance.check(MyExecutor)
    assert report.ok, report

With pytest, each check is a test: see `Check`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...base import Executor
from ...box import Box
from ...lifecycle import Sandbox
from . import bash, concurrency, files, isolation, lifecycle, machines, processes, python, reset
from .checks import CODE, ISOLATION, MEMORY, NEEDS, SECONDS, Check, ConformanceError

Kind = TypeVar("Kind", bound=Sandbox)

__all__ = [
    "BOX_CHECKS",
    "CHECKS",
    "CODE",
    "ISOLATION",
    "MEMORY",
    "NEEDS",
    "Check",
    "ConformanceError",
    "Report",
    "check",
    "check_box",
]

CHECKS: tuple[Check[Executor], ...] = tuple(
    one
    for file in (lifecycle, files, python, bash, processes, concurrency, reset, isolation)
    for one in vars(file).values()
    if isinstance(one, Check)
)
BOX_CHECKS: tuple[Check[Box], ...] = tuple(one for one in vars(machines).values() if isinstance(one, Check))


@dataclass(kw_only=True, slots=True, frozen=True)
class Report:
    """The outcomes of all checks; as text, one line for each check and two for a failed one."""

    passed: tuple[Check[Any], ...]
    failed: dict[Check[Any], str]  # how the sentence is broken
    left_out: tuple[Check[Any], ...]  # they need what the executor does not provide

    @property
    def ok(self) -> bool:
        """No check failed; those that were left out do not count."""
        return not self.failed

    def __str__(self) -> str:
        lines = [f"ok       {one}" for one in self.passed]
        lines += [f"left out {one}: needs {', '.join(sorted(one.needs))}" for one in self.left_out]
        lines += [f"FAILED   {one}: {one.sentence}\n         {error}" for one, error in self.failed.items()]
        return "\n".join([*lines, f"{len(self.passed)} of {len(self.passed) + len(self.failed)} checks passed"])


async def check(make: Callable[[], Executor], *, provides: Collection[str] = frozenset({CODE})) -> Report:
    """Run the checks on executors that `make` makes. An exception of the executor fails the check that causes it.

    Args:
        make: makes executors of one configuration, not started; the checks share one of them until one fails.
        provides: the names of `NEEDS` that the executor claims; checks that need more are left out. Claim `ISOLATION`
            and `MEMORY` only for a box that is fit for hostile code: their checks try to get out and to take 8 GiB.

    Raises:
        ValueError: `provides` holds a name that is not in `NEEDS`.
    """
    unknown = set(provides) - NEEDS
    if unknown:
        raise ValueError(f"provides holds names of {sorted(NEEDS)}, got {sorted(unknown)}")
    return await _run(make, CHECKS, provides)


async def check_box(make: Callable[[], Box]) -> Report:
    """Run the checks of the wide contract (`sandbox/box.py`) on boxes that `make` makes, as far as they are capable."""
    return await _run(make, BOX_CHECKS, make().capabilities)


async def _run(make: Callable[[], Kind], checks: Sequence[Check[Kind]], provides: Collection[str]) -> Report:
    wanted = [one for one in checks if one.needs.issubset(provides)]
    failed: dict[Check[Kind], str] = {}
    box: Kind | None = None
    try:
        for one in wanted:
            try:
                if box is None:
                    box = make()
                    async with asyncio.timeout(SECONDS):
                        await box.start()
                await one(box)
            except Exception as error:
                failed[one] = str(error) if isinstance(error, ConformanceError) else f"it raised {error!r}"
                if box is not None:  # the next check gets a new box
                    await box.close()
                    box = None
    finally:
        if box is not None:
            await box.close()
    return Report(
        passed=tuple(one for one in wanted if one not in failed),
        failed=failed,
        left_out=tuple(one for one in checks if one not in wanted),
    )
