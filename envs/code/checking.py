"""Runs the hidden checks of a code task. No submission can make its own grading fail."""

from __future__ import annotations

import logging
import posixpath
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from ...sandbox.base import ExecutionResult, Executor, Status
from ...sandbox.errors import SandboxLostError
from .files import Files
from .grading import HiddenCheck

KEPT_CHARACTERS = 1000  # of each output, in the report of a check
SLOW_CHECKS = 4  # once a check has failed, all of them together may take the time of so many
SLOW_PASSES = 15  # while all checks pass, they may take the time of so many; those not run then count as failed

logger = logging.getLogger("gymnast.envs")
_logged: set[str] = set()


@dataclass(slots=True, frozen=True)
class CheckResult:
    """The outcome of one check."""

    check: HiddenCheck
    result: ExecutionResult | None  # None: it was not run, or the box was lost
    passed: bool = False
    lost: bool = False

    def report(self) -> dict[str, Any]:
        """Return the end of the check, its output and the expected output, as values that JSON can hold."""
        expected = {"stdout": self.check.stdout, "value": self.check.value}
        if self.check.bash is not None:
            expected["exit_code"] = str(self.check.exit_code)
        report: dict[str, Any] = {
            "code": self.check.python or self.check.bash,
            "passed": self.passed,
            "expected": {name: text for name, text in expected.items() if text is not None},
        }
        if self.result is None:
            return report | {"status": "sandbox_lost" if self.lost else "not_run"}
        return report | {
            "status": self.result.status.value,
            "exit_code": self.result.exit_code,
            "value": None if self.result.value is None else self.result.value[-KEPT_CHARACTERS:],
            "stdout": self.result.stdout[-KEPT_CHARACTERS:],
            "stderr": self.result.stderr[-KEPT_CHARACTERS:],
        }


async def run_checks(
    checks: Sequence[HiddenCheck],
    fresh_box: Callable[[Files], AbstractAsyncContextManager[Executor]],
    fill: Callable[[Executor, Files], Awaitable[None]],
    timeout: float,
) -> list[CheckResult]:
    """Run the checks, each in a clean box with its own files, and return a result for each of them.

    A submission may take the box down with it. So a check in which the box is lost runs again in another fresh box; if
    that is lost too, the check has failed. After that, and once a submission that fails has taken too much time,
    the checks that are left are not run and count as failed: no submission can make its own grading fail.

    Raises:
        SandboxError: the pool has no fresh box, which is not the submission's fault.
    """
    results: list[CheckResult] = []
    lost_at = -1
    started = time.perf_counter()
    while True:
        async with fresh_box(checks[len(results)].files) as box:
            box_is_lost = await _run_in(box, checks, results, fill, timeout, started)
        if not box_is_lost:
            break
        if len(results) == lost_at:
            results.append(CheckResult(checks[len(results)], None, lost=True))
            break
        lost_at = len(results)
    left = checks[len(results) :]
    if left and all(result.passed for result in results) and "slow" not in _logged:
        _logged.add("slow")
        logger.warning(
            "%d of the %d checks of a task were not run and count as failed, although the others passed: all checks "
            "together may take %d times code_timeout=%g s. Use fewer or faster checks, or raise code_timeout. This is "
            "logged once",
            *(len(left), len(checks), SLOW_PASSES, timeout),
        )
    return [*results, *(CheckResult(check, None) for check in left)]


async def _run_in(
    box: Executor,
    checks: Sequence[HiddenCheck],
    results: list[CheckResult],
    fill: Callable[[Executor, Files], Awaitable[None]],
    timeout: float,
    started: float,
) -> bool:
    """Run the checks that have no result yet; return whether the box was lost."""
    is_clean = True
    for check in checks[len(results) :]:
        try:
            if not is_clean:
                await box.reset()
                await fill(box, check.files)
            is_clean = False
            results.append(await run_check(check, box, timeout))
        except SandboxLostError:
            return True
        timed_out = results[-1].result is not None and results[-1].result.status is Status.TIMEOUT
        slow = SLOW_PASSES if all(result.passed for result in results) else SLOW_CHECKS
        late = time.perf_counter() > started + slow * timeout
        if timed_out or late:
            break
    return False


async def run_check(check: HiddenCheck, box: Executor, timeout: float) -> CheckResult:
    """Run one check in a box that holds the submission, and compare its output."""
    if check.python is not None:
        result = await box.python(check.python + check.end_mark, timeout=timeout)
        ended = result.ok
    else:
        assert check.bash is not None
        result = await box.bash(check.bash, timeout=timeout)
        by_itself = result.status in (Status.OK, Status.ERROR) or (
            result.status is Status.EXITED and check.may_end_shell
        )
        ended = by_itself and result.exit_code == check.exit_code
    printed = check.stdout is None or result.stdout.rstrip() == check.stdout.rstrip()
    return CheckResult(check, result, passed=ended and printed and check.has_value(result.value))


def log_checks_that_cannot_run(results: Sequence[CheckResult], submit: Sequence[str]) -> None:
    """Log, once for each error, that a check failed for a reason which is not the submission."""
    for number, outcome in enumerate(results):
        reason = None if outcome.passed or outcome.result is None else _own_fault(outcome.result, submit)
        if reason is not None and reason not in _logged:
            _logged.add(reason)
            logger.warning(
                "hidden check %d cannot run with any submission: %s. Correct the check, or add what it needs to the "
                "image. Episodes get 0 for it; this is logged once.\n%s",
                number,
                reason,
                outcome.check.python or outcome.check.bash,
            )


def _own_fault(result: ExecutionResult, submit: Sequence[str]) -> str | None:
    """Return the error of a check that no submission can avoid; None if the submission may have caused it."""
    if any(posixpath.basename(path) in result.stderr for path in submit):
        return None
    last = (result.stderr.rstrip().splitlines() or [""])[-1].strip()
    if result.status is Status.ERROR and result.exit_code in (126, 127):
        return last or f"exit code {result.exit_code}"
    if re.match("(SyntaxError|IndentationError|TabError)\\b", last):
        return last
    missing = re.match("ModuleNotFoundError: No module named '([^'.]+)", last)
    handed_in = {part for path in submit for part in posixpath.splitext(path)[0].split("/")}
    return last if missing is not None and missing[1] not in handed_in else None
