"""ScriptedExecutor: answers from a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gymnast.sandbox import (
    ExecutionResult,
    ExecutorPool,
    FileEntry,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxLostError,
    SandboxTimeoutError,
    ScriptedExecutor,
    ScriptError,
    Status,
)

SAID_42 = ExecutionResult(status=Status.OK, stdout="42\n", exit_code=0)
FAILED = ExecutionResult(status=Status.ERROR, stderr="no\n", exit_code=1)
LOST = SandboxLostError("the power failed")


async def test_answers_come_in_order_for_any_call() -> None:
    async with ScriptedExecutor([SAID_42, FAILED, SandboxTimeoutError("too slow"), SAID_42]) as box:
        assert await box.python("print(6 * 7)") is SAID_42
        assert await box.bash("nonsense") is FAILED
        with pytest.raises(SandboxTimeoutError, match="too slow"):
            await box.bash("anything")
        assert box.unused == 1
        assert await box.python("") is SAID_42
        assert box.unused == 0


async def test_a_script_that_runs_out_says_which_call_has_no_answer() -> None:
    async with ScriptedExecutor([SAID_42]) as box:
        await box.python("1")
        with pytest.raises(
            ScriptError, match=r"the script has 1 answers, and none for bash\(command='ls -l'\)"
        ) as caught:
            await box.bash("ls -l")
    assert isinstance(caught.value, SandboxError)  # it ends the episode
    assert isinstance(caught.value, AssertionError)


async def test_a_lost_box_stays_lost_until_a_reset_restarts_the_script() -> None:
    async with ScriptedExecutor([SAID_42, LOST], files={"f": "x"}) as box:
        await box.python("1")
        await box.write_file("g", "y")
        with pytest.raises(SandboxLostError, match="the power failed"):
            await box.python("2")
        calls: list[Callable[[], Any]] = [lambda: box.python("3"), lambda: box.read_file("f"), box.ping]
        for call in calls:
            with pytest.raises(SandboxLostError, match="the power failed; reset"):
                await call()
        assert "the power failed" in str(box.retire_reason)
        await box.reset()
        assert box.retire_reason is None
        assert [entry.path for entry in await box.list_files()] == ["f"]
        assert await box.python("4") is SAID_42


async def test_a_clone_restarts_the_script() -> None:
    box = ScriptedExecutor([SAID_42, FAILED], files={"f": "x"})
    async with box:
        await box.python("1")
        await box.bash("2")
        async with box.clone() as clone:
            assert await clone.python("1") is SAID_42
            assert await clone.read_file("f") == b"x"
            assert clone.key == box.key
    assert box.key != ScriptedExecutor([SAID_42]).key
    assert box.key == ScriptedExecutor([SAID_42, FAILED], files={"g": b"y"}).key  # files are data, not configuration


async def test_clones_raise_errors_of_their_own() -> None:
    error = SandboxLostError("the power failed")
    recipe = ScriptedExecutor([error])
    caught = []
    for box in (recipe.clone(), recipe.clone()):
        async with box:
            with pytest.raises(SandboxLostError, match="the power failed") as one:
                await box.python("1")
        caught.append(one.value)
    assert len({id(error), *map(id, caught)}) == 3
    assert error.__traceback__ is None


async def test_files_are_there_and_have_the_limits_of_a_box() -> None:
    async with ScriptedExecutor([], files={"d/f": "é"}) as box:
        assert await box.read_file("/workspace/d/f") == "é".encode()
        assert await box.list_files() == [FileEntry(path="d", kind="directory", size=0)]
        assert await box.list_files("/workspace/d") == [FileEntry(path="f", kind="file", size=2)]
        assert [entry.path for entry in await box.list_files("/", recursive=True)] == [
            "tmp", "workspace", "workspace/d", "workspace/d/f"
        ]  # fmt: skip
        with pytest.raises(SandboxFileTooLargeError, match=r"33554433 bytes, Limits\.max_file is 33554432"):
            await box.write_file("g", bytes((32 << 20) + 1))
        with pytest.raises(SandboxFileNotFoundError):
            await box.read_file("d/g")
        with pytest.raises(SandboxFileError, match="Is a directory"):
            await box.read_file("d")


@pytest.mark.parametrize("wrong", ["42", None, ValueError("x"), {"stdout": "42"}])
def test_a_script_holds_results_and_errors(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a script holds ExecutionResult and SandboxError, got"):
        ScriptedExecutor([SAID_42, wrong])


async def test_every_lease_of_a_pool_meets_the_whole_script() -> None:
    async with ExecutorPool(ScriptedExecutor([SAID_42, FAILED])) as pool:
        for _ in range(3):
            async with pool.lease() as box:
                await box.write_file("f", "x")
                assert [(await box.python("1")).ok, (await box.bash("2")).ok] == [True, False]
        async with pool.lease() as first, pool.lease() as second:
            assert (await first.python("1")).ok
            assert (await second.python("1")).ok
