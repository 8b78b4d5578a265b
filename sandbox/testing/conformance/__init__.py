"""The contract of `sandbox/base.py` as checks that every executor passes; run them on an executor of your own.

    report = await conformance.check(MyExecutor)
    assert report.ok, report

With pytest, each check is a test: see `Check`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...base import Executor
from . import bash, concurrency, files, isolation, lifecycle, processes, python, reset
from .checks import CODE, ISOLATION, MEMORY, NEEDS, Check, ConformanceError, Make

__all__ = ["CHECKS", "CODE", "ISOLATION", "MEMORY", "NEEDS", "Check", "ConformanceError", "Outcome", "Report", "check"]

CHECKS: tuple[Check, ...] = (
    *lifecycle.CHECKS,
    *files.CHECKS,
    *python.CHECKS,
    *bash.CHECKS,
    *processes.CHECKS,
    *concurrency.CHECKS,
    *reset.CHECKS,
    *isolation.CHECKS,
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Outcome:
    """The outcome of one check."""

    check: Check
    error: str | None  # how the sentence is broken; None if it holds

    @property
    def ok(self) -> bool:
        """The check holds."""
        return self.error is None

    def __str__(self) -> str:
        if self.ok:
            return f"ok      {self.check.name}"
        return f"FAILED  {self.check.name}: {self.check.sentence}\n        {self.error}"


@dataclass(kw_only=True, slots=True, frozen=True)
class Report:
    """The outcomes of all checks; as text, one line for each check and two for a failed one."""

    outcomes: tuple[Outcome, ...]
    left_out: tuple[Check, ...]  # they need what the executor does not provide

    @property
    def ok(self) -> bool:
        """No check failed; those that were left out do not count."""
        return not self.failed

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The outcomes of the checks that do not hold, in their order."""
        return tuple(outcome for outcome in self.outcomes if not outcome.ok)

    def __str__(self) -> str:
        lines = [str(outcome) for outcome in self.outcomes]
        lines += [f"left out {check.name}: needs {', '.join(sorted(check.needs))}" for check in self.left_out]
        return "\n".join([*lines, f"{len(self.outcomes) - len(self.failed)} of {len(self.outcomes)} checks passed"])


async def check(make: Make, *, provides: Collection[str] = frozenset({CODE})) -> Report:
    """Run the checks on executors that `make` makes. An exception of the executor fails the check that causes it.

    Args:
        make: makes executors of one configuration, not started; most checks share one of them.
        provides: the names of `NEEDS` that the executor claims; checks that need more are left out. Claim `ISOLATION`
            and `MEMORY` only for a box that is fit for hostile code: their checks try to get out and to take 8 GiB.

    Raises:
        ValueError: `provides` holds a name that is not in `NEEDS`.
    """
    unknown = set(provides) - NEEDS
    if unknown:
        raise ValueError(f"provides holds names of {sorted(NEEDS)}, got {sorted(unknown)}")
    wanted = [one for one in CHECKS if one.needs.issubset(provides)]
    outcomes: list[Outcome] = []
    box: Executor | None = None
    try:
        for one in wanted:
            try:
                if box is None and one.of_box is not None:
                    box = make()
                    await box.start()
                await one(make, box)
                error = None
            except Exception as failure:
                error = str(failure) if isinstance(failure, ConformanceError) else f"it raised {failure!r}"
                if box is not None:  # the next check gets a new box
                    await box.close()
                    box = None
            outcomes.append(Outcome(check=one, error=error))
    finally:
        if box is not None:
            await box.close()
    return Report(outcomes=tuple(outcomes), left_out=tuple(one for one in CHECKS if one not in wanted))
