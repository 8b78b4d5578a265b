"""Checks of the life of a box: start and close, keys and clones, signs of life, arguments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ...base import Executor
from ...errors import SandboxClosedError, SandboxFileNotFoundError
from .checks import CODE, PROMPT, box_check, expect, raises, require


async def _require_closed(box: Executor, when: str) -> None:
    calls: dict[str, Callable[[], Awaitable[Any]]] = {  # that need an open box
        "python": lambda: box.python("1"),
        "bash": lambda: box.bash("true"),
        "write_file": lambda: box.write_file("f", b""),
        "read_file": lambda: box.read_file("f"),
        "list_files": box.list_files,
        "ping": box.ping,
        "reset": box.reset,
    }
    for name, call in calls.items():
        error = await raises(SandboxClosedError, call(), f"{name}() {when}")
        require(isinstance(error, RuntimeError), "the error is a RuntimeError too")


@box_check()
async def a_box_is_used_between_start_and_close(box: Executor) -> None:
    """Every method but start and close raises SandboxClosedError before start and after close."""
    other = box.clone()
    await _require_closed(other, "before start()")
    async with other:
        await other.ping()
        await other.write_file("f", b"x")
    await _require_closed(other, "after close()")


@box_check()
async def a_box_is_started_once(box: Executor) -> None:
    """A second start raises and harms nothing; a closed box cannot be started; `state` is right each time."""
    other = box.clone()
    require(other.state == "new", f"the state of a new box is 'new', got {other.state!r}")
    async with other:
        require(other.state == "open", f"the state of a started box is 'open', got {other.state!r}")
        await raises(SandboxClosedError, other.start(), "a second start()")
        await other.ping()
    require(other.state == "closed", f"the state of a closed box is 'closed', got {other.state!r}")
    await raises(SandboxClosedError, other.start(), "start() after close()")


@box_check()
async def closing_twice_does_nothing(box: Executor) -> None:
    """A box may be closed twice, and without having been started."""
    async with box.clone() as other:
        await other.close()
    await box.clone().close()


@box_check()
async def a_box_is_a_context(box: Executor) -> None:
    """`async with` starts the box, gives the box itself, and closes it even when the block fails."""
    other, failure = box.clone(), LookupError("of the block's own")
    try:
        async with other as entered:
            require(entered is other, "`async with` gives the executor itself")
            await other.ping()
            raise failure
    except LookupError as error:
        require(error is failure, f"the block's own error goes on, got {error!r}")
    await raises(SandboxClosedError, other.ping(), "ping() after the block")


@box_check()
async def a_cancelled_start_leaves_a_closed_box(box: Executor) -> None:
    """After a cancelled start the box cannot be used, and close() returns."""
    for cancelled in range(3):
        other = box.clone()
        starting = asyncio.ensure_future(other.start())
        for _ in range(cancelled):
            await asyncio.sleep(0)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await other.close()
        await raises(SandboxClosedError, other.ping(), "ping() after a cancelled start() and close()")


@box_check()
async def keys_are_equal_for_one_configuration(box: Executor) -> None:
    """Executors of one configuration have equal, hashable keys, before the start and after."""
    other = box.clone()
    key = other.key
    require(key == box.key and hash(key) == hash(box.key), f"a box and its clone have keys {box.key!r} and {key!r}")
    async with other:
        require(other.key == key, f"the key changes at the start, from {key!r} to {other.key!r}")


@box_check()
async def a_clone_is_an_executor_of_its_own(box: Executor) -> None:
    """A clone has the same type, is not started, and shares neither its life nor its files with the original."""
    await box.write_file("f", "x")
    clone = box.clone()
    require(type(clone) is type(box) and clone is not box, f"clone() of {box!r} gives {clone!r}")
    await raises(SandboxClosedError, clone.ping(), "ping() of a clone that was not started")
    async with clone:
        await raises(SandboxFileNotFoundError, clone.read_file("f"), "a file of the original in its clone")
    await box.ping()


@box_check(CODE)
async def clones_do_not_share_state(box: Executor) -> None:
    """Two boxes run at once, each with its own variables, shell and files."""
    async with box.clone() as other:
        for number, one in enumerate((box, other)):
            await one.python(f"x = {number}")
            await one.bash(f"y={number}; echo {number} > f")
        for number, one in enumerate((box, other)):
            expect(await one.python("x"), value=str(number))
            expect(await one.bash("echo $y; cat f"), stdout=f"{number}\n{number}\n")


@box_check()
async def a_fresh_box_may_be_reused(box: Executor) -> None:
    """A box in which nothing went wrong has no retire_reason."""
    require(box.retire_reason is None, f"retire_reason of a fresh box is {box.retire_reason!r}")
    await box.write_file("f", "x")
    require(box.retire_reason is None, f"retire_reason after one file is {box.retire_reason!r}")


@box_check()
async def a_ping_is_answered(box: Executor) -> None:
    """A box answers a ping, which changes nothing."""
    await box.write_file("f", "x")
    for _ in range(3):
        require(await box.ping(timeout=PROMPT) is None, "ping() returns nothing")
    require(await box.read_file("f") == b"x", "a ping changes nothing")


@box_check()
async def timeouts_are_positive_and_finite(box: Executor) -> None:
    """A timeout that is zero, negative, infinite or not a number raises ValueError, and nothing runs."""
    for timeout in (0, -1.0, float("inf"), float("nan")):
        await raises(ValueError, box.python("x = 1", timeout=timeout), f"python(timeout={timeout})")
        await raises(ValueError, box.bash("touch f", timeout=timeout), f"bash(timeout={timeout})")
        await raises(ValueError, box.ping(timeout=timeout), f"ping(timeout={timeout})")
    require(await box.list_files() == [], "a refused command ran")
