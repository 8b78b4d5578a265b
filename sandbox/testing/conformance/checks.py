"""`Check`: one sentence of the contract as a test, with its decorator and assertions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from ...base import ExecutionResult, Executor, Status
from ...lifecycle import Sandbox

CODE = "code"  # it runs Python and Bash; a script does not
MEMORY = "memory"  # it limits memory, and reports when the code was killed for it
ISOLATION = "isolation"  # the code has no privileges, and reaches neither the network nor anything of the host
NEEDS = frozenset({CODE, MEMORY, ISOLATION})
"""All needs; an executor that keeps the whole contract provides every one."""

SECONDS = 60.0  # the time limit of a check; most take a second or two
PROMPT = 10.0  # seconds within which a call must return that waits for nothing
SHORT = 0.5  # seconds; a timeout to run into, long enough for the code to begin on a busy machine
OUTPUT = 40_000_000  # bytes; more than the largest `Limits.max_output`
_MARKER = 200  # the most characters of the markers that stand where output was dropped

Error = TypeVar("Error", bound=BaseException)
Kind = TypeVar("Kind", bound=Sandbox)


class ConformanceError(AssertionError):
    """An executor does not keep the contract."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Check(Generic[Kind]):
    """One sentence of the contract, as a test of any executor.

        @pytest.mark.parametrize("check", CHECKS, ids=str)
        async def test_my_executor(check: Check) -> None:
            async with MyExecutor() as box:
                await check(box)

    Leave out the checks whose `needs` your executor does not provide.
    """

    name: str
    sentence: str  # what must hold
    needs: frozenset[str]  # of NEEDS, or capabilities of a box
    function: Callable[[Kind], Awaitable[None]]

    async def __call__(self, box: Kind) -> None:
        """Reset a started executor and check it; checks of its life use its clones. A `Box` is not reset.

        Raises:
            ConformanceError: the executor breaks the contract.
        """
        deadline = asyncio.timeout(SECONDS)
        try:
            async with deadline:
                if isinstance(box, Executor):
                    await box.reset()
                await self.function(box)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ConformanceError(f"{self.name} did not end within {SECONDS:g} s: a call hangs") from error

    def __str__(self) -> str:
        return self.name


def box_check(*needs: str) -> Callable[[Callable[[Kind], Awaitable[None]]], Check[Kind]]:
    """Make a check of a function of a started box. Its name and docstring become the check's."""

    def decorate(function: Callable[[Kind], Awaitable[None]]) -> Check[Kind]:
        sentence = " ".join((function.__doc__ or "").split())
        return Check(name=function.__name__, sentence=sentence, needs=frozenset(needs), function=function)

    return decorate


def require(condition: bool, message: str) -> None:
    """Raise `ConformanceError` unless the condition holds, also under `python -O`."""
    if not condition:
        raise ConformanceError(message)


def expect(result: ExecutionResult, **wanted: Any) -> None:
    """Require fields of a result to have these values, and the result not to contradict itself."""
    require(isinstance(result, ExecutionResult), f"a call must return an ExecutionResult, got {result!r:.200}")
    for name, value in wanted.items():
        got = getattr(result, name)
        require(got == value, f"{name} should be {value!r:.200}, got {got!r:.500}; the result: {_shown(result)}")
    require(result.duration >= 0, f"duration is the seconds that passed, got {result.duration!r}")
    require(isinstance(result.stdout, str) and isinstance(result.stderr, str), f"output must be text: {_shown(result)}")
    require(result.dropped_bytes >= 0, f"dropped_bytes cannot be negative, got {result.dropped_bytes}")
    code, lost = result.exit_code, result.state_lost
    fitting = {
        Status.OK: code == 0,
        Status.ERROR: code is not None and code > 0,
        Status.TIMEOUT: code is None,
        Status.EXITED: code is not None and code >= 0 and lost,
        Status.SIGNAL: code is not None and code < 0 and lost,
    }
    fault = f"exit_code={code} and state_lost={lost} contradict the status {result.status}"
    require(fitting.get(result.status, True), f"{fault}; the result: {_shown(result)}")


def _shown(result: ExecutionResult) -> str:
    return ", ".join(f"{field.name}={getattr(result, field.name)!r:.300}" for field in fields(result))


def require_capped(text: str, dropped: int, total: int, head: str, tail: str) -> None:
    """Require a text of `total` characters to have lost its middle, and `dropped` to count what it has lost."""
    require(text.startswith(head), f"the head is kept, got {text[:80]!r}")
    require(text.endswith(tail), f"the tail is kept, got {text[-80:]!r}")
    kept = f"of {total} characters {len(text)} were kept, with the marker, and {dropped} dropped"
    require(
        dropped > 0 and 0 <= len(text) + dropped - total <= _MARKER, f"dropped_bytes should count what was cut: {kept}"
    )


async def raises(kind: type[Error], call: Awaitable[Any], what: str) -> Error:
    """Require a call to raise an error of this kind, and return it."""
    try:
        value = await call
    except kind as error:
        return error
    except Exception as error:
        raise ConformanceError(f"{what} must raise {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise ConformanceError(f"{what} must raise {kind.__name__}, and returned {value!r:.200}")


async def require_usable(box: Executor) -> None:
    """Require the next calls of both sessions to work."""
    expect(await box.python("6 * 7", timeout=PROMPT), status=Status.OK, value="42", state_lost=False)
    expect(await box.bash("echo $((6 * 7))", timeout=PROMPT), status=Status.OK, stdout="42\n", state_lost=False)
