"""Checks of the life of a box: start and close, keys and clones, signs of life, arguments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ...base import Executor
from ...errors import SandboxClosedError, SandboxFileNotFoundError
from .checks import CODE, PROMPT, Make, box_check, checks_in, expect, make_check, raises, require


def _calls(box: Executor) -> list[tuple[str, Callable[[], Awaitable[Any]]]]:
    """The calls that need an open box."""
    return [
        ("python", lambda: box.python("1")),
        ("bash", lambda: box.bash("true")),
        ("write_file", lambda: box.write_file("f", b"")),
        ("read_file", lambda: box.read_file("f")),
        ("list_files", lambda: box.list_files()),
        ("ping", lambda: box.ping()),
        ("reset", lambda: box.reset()),
    ]


async def _require_closed(box: Executor, when: str) -> None:
    for name, call in _calls(box):
        error = await raises(SandboxClosedError, call(), f"{name}() {when}")
        require(isinstance(error, RuntimeError), "the error is a RuntimeError too")


@make_check()
async def a_box_is_used_between_start_and_close(make: Make) -> None:
    """Every method but start and close raises SandboxClosedError before start and after close."""
    box = make()
    await _require_closed(box, "before start()")
    await box.start()
    try:
        await box.ping()
        await box.write_file("f", b"x")
    finally:
        await box.close()
    await _require_closed(box, "after close()")


@make_check()
async def a_box_is_started_once(make: Make) -> None:
    """A second start raises and harms nothing; a closed box cannot be started; `state` is right each time."""
    box = make()
    require(box.state == "new", f"the state of a new box is 'new', got {box.state!r}")
    await box.start()
    try:
        require(box.state == "open", f"the state of a started box is 'open', got {box.state!r}")
        await raises(SandboxClosedError, box.start(), "a second start()")
        await box.ping()
    finally:
        await box.close()
    require(box.state == "closed", f"the state of a closed box is 'closed', got {box.state!r}")
    await raises(SandboxClosedError, box.start(), "start() after close()")


@make_check()
async def closing_twice_does_nothing(make: Make) -> None:
    """A box may be closed twice, and without having been started."""
    box = make()
    await box.start()
    await box.close()
    await box.close()
    await make().close()


@make_check()
async def a_box_is_a_context(make: Make) -> None:
    """`async with` starts the box, gives the box itself, and closes it even when the block fails."""
    box, failure = make(), LookupError("of the block's own")
    try:
        async with box as entered:
            require(entered is box, "`async with` gives the executor itself")
            await box.ping()
            raise failure
    except LookupError as error:
        require(error is failure, f"the block's own error goes on, got {error!r}")
    await raises(SandboxClosedError, box.ping(), "ping() after the block")


@make_check()
async def a_cancelled_start_leaves_a_closed_box(make: Make) -> None:
    """After a cancelled start the box cannot be used, and close() returns."""
    for cancelled in range(3):
        box = make()
        starting = asyncio.ensure_future(box.start())
        for _ in range(cancelled):
            await asyncio.sleep(0)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await box.close()
        await raises(SandboxClosedError, box.ping(), "ping() after a cancelled start() and close()")


@make_check()
async def keys_are_equal_for_one_configuration(make: Make) -> None:
    """Executors of one configuration have equal, hashable keys, before the start and after."""
    box, other = make(), make()
    key = box.key
    require(key == other.key and hash(key) == hash(other.key), f"two of one make have keys {key!r} and {other.key!r}")
    async with box:
        require(box.key == key, f"the key changes at the start, from {key!r} to {box.key!r}")
        require({box.key: 1}.get(box.clone().key) == 1, "a clone's key is the same")


@make_check()
async def a_clone_is_an_executor_of_its_own(make: Make) -> None:
    """A clone has the same type, is not started, and shares neither its life nor its files with the original."""
    box = make()
    async with box:
        await box.write_file("f", "x")
        clone = box.clone()
        require(type(clone) is type(box) and clone is not box, f"clone() of {box!r} gives {clone!r}")
        await raises(SandboxClosedError, clone.ping(), "ping() of a clone that was not started")
        async with clone:
            await raises(SandboxFileNotFoundError, clone.read_file("f"), "a file of the original in its clone")
        await box.ping()


@make_check(CODE)
async def clones_do_not_share_state(make: Make) -> None:
    """Two boxes run at once, each with its own variables, shell and files."""
    first = make()
    second = first.clone()
    async with first, second:
        for number, box in enumerate((first, second)):
            await box.python(f"x = {number}")
            await box.bash(f"y={number}; echo {number} > f")
        for number, box in enumerate((first, second)):
            expect(await box.python("x"), value=str(number))
            expect(await box.bash("echo $y; cat f"), stdout=f"{number}\n{number}\n")
    require(first.key == second.key, "the keys of a box and its clone are equal")


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


CHECKS = checks_in(globals())
