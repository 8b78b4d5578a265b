"""The contract's checks against every executor, and against executors that break it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import replace
from typing import Any, Self

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    ExecutionResult,
    Executor,
    ExecutorPool,
    FileEntry,
    Limits,
    LocalExecutor,
    RetireReason,
    SandboxClosedError,
    ScriptedExecutor,
    Status,
)
from gymnast.sandbox.testing import conformance as suite
from gymnast.sandbox.testing.conformance import CHECKS, Check, ConformanceError

from .boxes import GRACE

LIMITS = Limits(grace=GRACE)
BY_NAME = {check.name: check for check in CHECKS}
OF_CODE = [check for check in CHECKS if check.needs <= {suite.CODE}]
OF_NO_CODE = [check for check in CHECKS if not check.needs]


@pytest.fixture(scope="module")
async def docker_box(image: str) -> AsyncIterator[DockerExecutor]:
    async with DockerExecutor(image=image, limits=LIMITS) as box:
        yield box


@pytest.fixture(scope="module")
async def local_box() -> AsyncIterator[LocalExecutor]:
    async with LocalExecutor(limits=LIMITS) as box:
        yield box


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_docker(check: Check, docker_box: DockerExecutor) -> None:
    await check(docker_box)


@pytest.mark.parametrize("check", OF_CODE, ids=str)
async def test_local(check: Check, local_box: LocalExecutor) -> None:
    await check(local_box)


@pytest.mark.parametrize("check", OF_NO_CODE, ids=str)
async def test_scripted_by_hand(check: Check) -> None:
    async with ScriptedExecutor([]) as box:
        await check(box)


def test_every_check_has_a_sentence() -> None:
    assert len(BY_NAME) == len(CHECKS) > 80
    for check in CHECKS:
        assert check.sentence.endswith("."), check.name


# --- executors that break the contract --------------------------------------------------------------------------


Change = Callable[[ExecutionResult], ExecutionResult]


def changed(change: Change) -> type[LocalExecutor]:
    """An executor that answers correctly, except for this change of its results."""

    class Changed(LocalExecutor):
        async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
            return change(await super().python(code, timeout=timeout))

        async def bash(self, command: str, *, timeout: float = 30.0) -> ExecutionResult:
            return change(await super().bash(command, timeout=timeout))

    return Changed


MixesStreams = changed(lambda result: replace(result, stdout=result.stdout + result.stderr, stderr=""))
SwallowsStderr = changed(lambda result: replace(result, stderr=""))
HidesLoss = changed(lambda result: replace(result, state_lost=False))
AlwaysWell = changed(lambda result: replace(result, status=Status.OK, exit_code=0))
NoValue = changed(lambda result: replace(result, value=None))
DoesNotCount = changed(lambda result: replace(result, dropped_bytes=0))


class Forgets(LocalExecutor):
    async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
        await super().python("globals().clear()", timeout=timeout)
        return await super().python(code, timeout=timeout)


class NewShellEachTime(LocalExecutor):
    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecutionResult:
        return await super().bash(f"({command}\n)", timeout=timeout)


class TakesAnyTimeout(LocalExecutor):
    async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
        return await super().python(code, timeout=timeout if 0 < timeout < 1e6 else 30.0)


class SwallowsCancellation(LocalExecutor):
    async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
        try:
            return await super().python(code, timeout=timeout)
        except asyncio.CancelledError:
            return ExecutionResult(status=Status.TIMEOUT)


class RaisesForErrors(LocalExecutor):
    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecutionResult:
        result = await super().bash(command, timeout=timeout)
        if not result.ok:
            raise RuntimeError("the command failed")
        return result


class InheritsEnvironment(LocalExecutor):
    async def start(self) -> None:
        self.env.update(os.environ)
        await super().start()


class FollowsLinks(LocalExecutor):
    async def read_file(self, path: str) -> bytes:
        result = await self.bash(f"cat '{path}'")
        return result.stdout.encode() if result.ok else await super().read_file(path)


class ListsBackwards(LocalExecutor):
    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        return (await super().list_files(path, recursive=recursive))[::-1]


class AppendsToFiles(LocalExecutor):
    async def write_file(self, path: str, data: bytes | str) -> None:
        try:
            before = await self.read_file(path)
        except FileNotFoundError:
            before = b""
        await super().write_file(path, before + (data.encode() if isinstance(data, str) else data))


class NeverResets(LocalExecutor):
    async def reset(self) -> None:
        await self.ping()


class KeepsProcesses(LocalExecutor):
    async def reset(self) -> None:
        for entry in await self.list_files():
            await self.bash(f"rm -rf -- '{entry.path}'")


class ClonesItself(LocalExecutor):
    def clone(self) -> Self:
        return self


class NoTwoAlike(LocalExecutor):
    @property
    def key(self) -> Hashable:
        return object()


class NeverReused(LocalExecutor):
    @property
    def retire_reason(self) -> RetireReason | None:
        return RetireReason("out of principle")


class StartsAgain(LocalExecutor):
    async def start(self) -> None:
        if self._state != "open":
            await super().start()


class SpeaksWhenClosed(LocalExecutor):
    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        return [] if self._state == "closed" else await super().list_files(path, recursive=recursive)


BROKEN: list[tuple[type[LocalExecutor], str, str]] = [
    (MixesStreams, "python_keeps_streams_apart", "stdout should be 'out"),
    (MixesStreams, "bash_keeps_streams_apart", "stdout should be"),
    (SwallowsStderr, "python_captures_other_writers", "stderr should be 'd"),
    (SwallowsStderr, "python_reports_an_exception", "the traceback ends with the exception"),
    (HidesLoss, "python_that_exits_is_begun_afresh", "state_lost should be True, got False"),
    (HidesLoss, "bash_is_killed_where_it_ignores_interruption", "state_lost should be True, got False"),
    (AlwaysWell, "bash_reports_an_exit_code", "status should be"),
    (AlwaysWell, "python_is_interrupted_at_its_timeout", "status should be <Status.TIMEOUT"),
    (NoValue, "python_gives_the_last_expression", "value should be"),
    (DoesNotCount, "python_caps_its_output", "dropped_bytes should count"),
    (Forgets, "python_keeps_its_state", "status should be <Status.OK"),
    (NewShellEachTime, "bash_keeps_its_state", "stdout should be"),
    (TakesAnyTimeout, "timeouts_are_positive_and_finite", "must raise ValueError, and returned"),
    (SwallowsCancellation, "a_cancelled_call_is_interrupted", "the code ends only when it is interrupted"),
    (FollowsLinks, "links_are_listed_and_not_followed", "must raise SandboxPermissionError, and returned b'x"),
    (ListsBackwards, "a_listing_is_of_one_folder", "sorted by path"),
    (AppendsToFiles, "a_file_is_replaced_whole", "read 16 bytes"),
    (NeverResets, "reset_removes_files", "a reset left"),
    (NeverResets, "reset_forgets_pythons_state", "value should be"),
    (NeverResets, "reset_forgets_the_shells_state", "stdout should be"),
    (KeepsProcesses, "reset_ends_processes", "value should be '[]'"),
    (ClonesItself, "a_clone_is_an_executor_of_its_own", "clone() of"),
    (NoTwoAlike, "keys_are_equal_for_one_configuration", "a box and its clone have keys"),
    (NeverReused, "a_fresh_box_may_be_reused", "out of principle"),
    (StartsAgain, "a_box_is_started_once", "a second start() must raise SandboxClosedError"),
    (InheritsEnvironment, "nothing_of_the_hosts_environment_is_seen", "sees an environment variable of the host"),
    (LocalExecutor, "processes_of_others_are_out_of_reach", "value should be '[]'"),
    (SpeaksWhenClosed, "a_box_is_used_between_start_and_close", "list_files() after close() must raise"),
]


@pytest.mark.parametrize(("kind", "name", "message"), BROKEN, ids=lambda part: getattr(part, "__name__", None))
async def test_a_broken_executor_is_caught(kind: type[LocalExecutor], name: str, message: str) -> None:
    async with kind(limits=LIMITS) as box:
        with pytest.raises(ConformanceError) as caught:
            await BY_NAME[name](box)
    assert message in str(caught.value)


async def test_a_network_is_noticed(image: str) -> None:
    async with DockerExecutor(image=image, limits=LIMITS, network="bridge") as box:
        with pytest.raises(ConformanceError, match="value should be"):
            await BY_NAME["there_is_no_network"](box)


async def test_a_call_that_hangs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverGivesUp(ScriptedExecutor):
        async def ping(self, *, timeout: float = 2.0) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("gymnast.sandbox.testing.conformance.checks.SECONDS", 0.1)
    async with NeverGivesUp([]) as box:
        with pytest.raises(ConformanceError, match=r"a_ping_is_answered did not end within 0\.1 s"):
            await BY_NAME["a_ping_is_answered"](box)


# --- the report -------------------------------------------------------------------------------------------------


async def test_the_report_of_an_executor_that_keeps_the_contract() -> None:
    report = await suite.check(lambda: ScriptedExecutor([]), provides=())
    assert report.ok, report
    assert len(report.passed) == len(OF_NO_CODE) > 10
    assert len(report.passed) + len(report.left_out) == len(CHECKS)
    assert "left out python_out_of_memory: needs code, memory" in str(report)
    assert f"{len(OF_NO_CODE)} of {len(OF_NO_CODE)} checks passed" in str(report)


class Minimal(Executor):
    """Only the nine methods that an executor must have, without those that have a default."""

    def __init__(self) -> None:
        self.inner = ScriptedExecutor([ExecutionResult(status=Status.OK, exit_code=0)] * 9)

    async def start(self) -> None:
        if self._state != "new":
            raise SandboxClosedError("a box is started once")
        self.inner = self.inner.clone()
        await self.inner.start()
        self._state = "open"

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
        return await self.inner.python(code, timeout=timeout)

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecutionResult:
        return await self.inner.bash(command, timeout=timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        await self.inner.write_file(path, data)

    async def read_file(self, path: str) -> bytes:
        return await self.inner.read_file(path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        return await self.inner.list_files(path, recursive=recursive)

    async def close(self) -> None:
        self._state = "closed"
        await self.inner.close()

    @property
    def key(self) -> Hashable:
        return type(self)

    def clone(self) -> Self:
        return type(self)()


async def test_nine_methods_make_an_executor_which_a_pool_can_lend() -> None:
    report = await suite.check(Minimal, provides=())
    assert report.ok, report
    async with ExecutorPool(Minimal(), max_boxes=1) as pool:
        for _ in range(2):
            async with pool.lease(Minimal()) as box:
                await box.write_file("f", "x")
                assert [entry.path for entry in await box.list_files()] == ["f"]
        assert (pool.statistics.created, pool.statistics.reused) == (1, 1)


class BrokenScript(ScriptedExecutor):
    """Appends a byte to what it reads, and fails to list."""

    async def read_file(self, path: str) -> bytes:
        return await super().read_file(path) + b"x"

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        raise KeyError(path)


async def test_the_report_names_what_failed_and_why() -> None:
    report = await suite.check(lambda: BrokenScript([]), provides=[])
    assert not report.ok
    failed = {check.name: error for check, error in report.failed.items()}
    assert "read 3 bytes" in failed["a_file_is_replaced_whole"] or "read 6 bytes" in failed["a_file_is_replaced_whole"]
    assert failed["a_listing_is_of_one_folder"] == "it raised KeyError('.')"
    assert "a_box_is_started_once" not in failed
    assert BY_NAME["a_file_is_replaced_whole"].sentence in str(report)


async def test_a_box_that_cannot_start_fails_every_check_and_ends() -> None:
    class Unstartable(ScriptedExecutor):
        async def start(self) -> None:
            raise ConnectionError("no engine")

    report = await suite.check(lambda: Unstartable([]), provides=[])
    assert set(report.failed.values()) == {"it raised ConnectionError('no engine')"}
    assert not report.passed


async def test_the_errors_of_an_executor_fail_the_check_that_meets_them() -> None:
    async with RaisesForErrors(limits=LIMITS) as box:
        with pytest.raises(RuntimeError, match="the command failed"):
            await BY_NAME["bash_reports_an_exit_code"](box)


async def test_provides_holds_known_names() -> None:
    needs: Any = {"teleportation"}
    with pytest.raises(ValueError, match=r"provides holds names of .*'code'.*, got \['teleportation'\]"):
        await suite.check(lambda: ScriptedExecutor([]), provides=needs)
