"""Checks of calls that are made at once, or cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ...base import Executor, Status
from .checks import CODE, PROMPT, ConformanceError, box_check, expect, require, require_usable
from .python import IGNORE


@box_check(CODE)
async def calls_take_turns(box: Executor) -> None:
    """Calls made at once run one after the other, in the order in which they were made."""
    await box.python("order = []")
    results = await asyncio.gather(*(box.python(f"order.append({n}); print({n}); {n}") for n in range(20)))
    for number, result in enumerate(results):
        expect(result, status=Status.OK, stdout=f"{number}\n", value=str(number))
    expect(await box.python("order == list(range(20))"), value="True")


@box_check(CODE)
async def calls_of_all_kinds_take_turns(box: Executor) -> None:
    """Commands, files and pings made at once do not disturb one another."""
    calls = (box.bash("sleep 0.1; cat f"), box.write_file("f", "x"), box.read_file("f"), box.ping(timeout=PROMPT))
    shell, *others = await asyncio.gather(*calls)
    expect(shell, status=Status.ERROR, stdout="")  # its turn came before the file was there
    require(others == [None, b"x", None], f"write_file, read_file and ping gave {others}")


@box_check(CODE)
async def a_timeout_runs_from_the_turn(box: Executor) -> None:
    """A call that waited for its turn still has all its time."""
    await box.python("import time")
    first, second = await asyncio.gather(box.bash("sleep 2"), box.python("time.sleep(0.2); 42", timeout=1.9))
    expect(first, status=Status.OK)
    expect(second, status=Status.OK, value="42")


async def _cancel_when_begun(box: Executor, call: Callable[[], Awaitable[Any]]) -> None:
    """Cancel a call once its code has made the file `begun`; where boxes are slow that takes several attempts."""
    for seconds in (0.2, 1, 5):
        try:
            async with asyncio.timeout(seconds):
                result = await call()
        except TimeoutError:
            if await box.list_files():
                return
        else:
            raise ConformanceError(f"the code ends only when it is interrupted, and the call returned {result}")
    raise ConformanceError("the code of a call had not begun after 5 s")


@box_check(CODE)
async def a_cancelled_call_is_interrupted(box: Executor) -> None:
    """Cancelling a call interrupts its code and keeps the state; the next call finds the box at rest."""
    await box.python("kept = 1")
    await box.bash("kept=1")
    await _cancel_when_begun(box, lambda: box.python("open('begun', 'w').close()\nwhile True: pass"))
    expect(await box.python("kept", timeout=PROMPT), status=Status.OK, value="1", stdout="", state_lost=False)
    await box.bash("rm begun")
    await _cancel_when_begun(box, lambda: box.bash("touch begun; sleep 100"))
    expect(await box.bash("echo $kept", timeout=PROMPT), status=Status.OK, stdout="1\n", state_lost=False)
    await require_usable(box)


@box_check(CODE)
async def a_cancelled_call_that_ignores_interruption_is_killed(box: Executor) -> None:
    """Code that ignores a cancellation is killed; the next call says that the state is lost."""
    code = IGNORE + "open('begun', 'w').close()\nwhile True: pass"
    await _cancel_when_begun(box, lambda: box.python(code))
    expect(await box.python("'signal' in globals()"), status=Status.OK, value="False", state_lost=True)
    expect(await box.bash("echo $((6 * 7))", timeout=PROMPT), stdout="42\n", state_lost=False)
    expect(await box.python("1"), status=Status.OK, state_lost=False)


@box_check(CODE)
async def a_call_cancelled_before_its_turn_does_not_run(box: Executor) -> None:
    """A call that is cancelled while it waits leaves no trace, and the calls behind it get their turns."""
    first = asyncio.ensure_future(box.bash("sleep 0.3; echo first"))
    waiting = asyncio.ensure_future(box.write_file("unwanted", "x"))
    last = asyncio.ensure_future(box.bash("ls; echo last"))
    for _ in range(3):
        await asyncio.sleep(0)  # each has made its call, and all but the first wait
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    expect(await first, stdout="first\n")
    expect(await last, stdout="last\n")
