"""ScriptedExecutor and Recorder: answers by hand, and answers that were recorded."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.sandbox import (
    EngineError,
    ExecutionResult,
    Executor,
    ExecutorPool,
    FileEntry,
    Limits,
    LocalExecutor,
    Recorder,
    Recording,
    SandboxClosedError,
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

from .boxes import GRACE

LIMITS = Limits(grace=GRACE)
SAID_42 = ExecutionResult(status=Status.OK, stdout="42\n", exit_code=0)
FAILED = ExecutionResult(status=Status.ERROR, stderr="no\n", exit_code=1)
LOST = SandboxLostError("the power failed")


def saved(recorder: Recorder) -> Recording:
    """The recording after it was saved and read again."""
    return Recording.from_json(recorder.recording.to_json())


# --- answers by hand --------------------------------------------------------------------------------------------


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


def test_the_lifetime_is_that_of_the_box() -> None:
    assert ScriptedExecutor([]).lifetime == math.inf
    assert Recorder(ScriptedExecutor([])).lifetime == math.inf
    assert Recorder(LocalExecutor(limits=Limits(lifetime=60.0))).lifetime == 60.0


def test_a_recorder_passes_on_lifetime_and_creators() -> None:
    class Slow(ScriptedExecutor):
        """A box that should not be started many times at once."""

        @property
        def creators(self) -> int:
            return 3

        @property
        def lifetime(self) -> float:
            return 60.0

    recorder = Recorder(Slow([]))
    assert (recorder.creators, recorder.lifetime) == (3, 60.0)


async def test_files_are_there_and_have_the_limits_of_a_box() -> None:
    async with ScriptedExecutor([], files={"d/f": "é"}, limits=Limits(max_file=10, max_code=10)) as box:
        assert await box.read_file("/workspace/d/f") == "é".encode()
        assert await box.list_files() == [FileEntry(path="d", kind="directory", size=0)]
        assert await box.list_files("/workspace/d") == [FileEntry(path="f", kind="file", size=2)]
        assert [entry.path for entry in await box.list_files("/", recursive=True)] == [
            "tmp", "workspace", "workspace/d", "workspace/d/f"
        ]  # fmt: skip
        with pytest.raises(SandboxFileTooLargeError, match=r"11 bytes, Limits\.max_file is 10"):
            await box.write_file("g", bytes(11))
        with pytest.raises(SandboxFileNotFoundError):
            await box.read_file("d/g")
        with pytest.raises(SandboxFileError, match="Is a directory"):
            await box.read_file("d")


@pytest.mark.parametrize("wrong", ["42", None, ValueError("x"), {"stdout": "42"}])
def test_a_script_holds_results_and_errors(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a script holds ExecutionResult and SandboxError, got"):
        ScriptedExecutor([SAID_42, wrong])


def test_a_recording_brings_its_own_files() -> None:
    with pytest.raises(ValueError, match="leave out files="):
        ScriptedExecutor(Recording(), files={"f": "x"})


async def test_every_lease_of_a_pool_meets_the_whole_script() -> None:
    async with ExecutorPool(ScriptedExecutor([SAID_42, FAILED])) as pool:
        for _ in range(3):
            async with pool.lease() as box:
                await box.write_file("f", "x")
                assert [(await box.python("1")).ok, (await box.bash("2")).ok] == [True, False]
        async with pool.lease() as first, pool.lease() as second:
            assert (await first.python("1")).ok
            assert (await second.python("1")).ok


async def test_a_lease_can_be_recorded() -> None:
    async with ExecutorPool(LocalExecutor(limits=LIMITS), max_boxes=1) as pool, pool.lease() as box:
        recorder = Recorder(box)
        said = await recorder.python("6 * 7")
    async with ExecutorPool(ScriptedExecutor(saved(recorder)), max_boxes=1) as pool, pool.lease() as box:
        assert await box.python("6 * 7") == said


# --- recordings -------------------------------------------------------------------------------------------------


async def drive(box: Executor) -> list[Any]:
    """Every kind of call and of outcome; returns the results."""
    said: list[Any] = []

    async def ask(call: Any) -> None:
        try:
            said.append(await call)
        except (SandboxError, ValueError) as error:
            said.append((type(error), str(error), vars(error)))

    async with box:
        await ask(box.python("print('é', chr(0xd800)); 6 * 7"))
        await ask(box.python("import os; os._exit(3)"))
        await ask(box.bash("echo out; echo err >&2; exit 4"))
        await ask(box.write_file("text", "é\r\n"))
        await ask(box.write_file("bytes", b"\xff\x00"))
        await ask(box.write_file("large", bytes(100_000)))
        await ask(box.read_file("text"))
        await ask(box.read_file("bytes"))
        await ask(box.list_files(recursive=True))
        await ask(box.read_file("missing"))
        await ask(box.write_file("text/below", b""))
        await ask(box.python("1", timeout=-1))
        await ask(box.ping())
        await ask(box.reset())
        await ask(box.list_files())
        await ask(box.start())
    await ask(box.python("1"))
    return said


async def test_a_replay_equals_the_recorded_calls() -> None:
    recorder = Recorder(LocalExecutor(limits=LIMITS))
    said = await drive(recorder)
    assert [type(thing) for thing in said[:2]] == [ExecutionResult, ExecutionResult]
    assert said[0].value == "42"
    replay = ScriptedExecutor(saved(recorder))
    assert await drive(replay) == said
    assert replay.unused == 0


async def test_a_recording_is_readable_and_small() -> None:
    recorder = Recorder(ScriptedExecutor([SAID_42]))
    async with recorder as box:
        await box.python("print(6 * 7)")
        await box.write_file("large", bytes(1_000_000))
        await box.read_file("large")
    steps = json.loads(recorder.recording.to_json())["steps"]
    assert [step["operation"] for step in steps] == ["start", "python", "write_file", "read_file"]
    assert steps[1]["arguments"] == {"code": "print(6 * 7)"}
    assert steps[1]["outcome"]["result"]["stdout"] == "42\n"
    assert steps[2]["arguments"]["data"]["bytes"] == 1_000_000
    assert len(json.dumps(steps[2])) < 300


async def recording_of(*codes: str) -> Recording:
    recorder = Recorder(ScriptedExecutor([SAID_42] * len(codes)))
    async with recorder as box:
        for code in codes:
            await box.python(code)
    return saved(recorder)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda box: box.python("2"), r"call 1 was python\(code='1'\), and now it is python\(code='2'\)"),
        (lambda box: box.bash("1"), r"call 1 was python\(code='1'\), and now it is bash\(command='1'\)"),
        (lambda box: box.reset(), r"call 1 was python\(code='1'\), and now it is reset\(\)"),
        (lambda box: box.python("x" * 9999), r"and now it is python\(code='xxx+\.\.\.$"),
        (lambda box: box.write_file("f", "1"), r"now it is write_file\(path='f', data='1'\)"),
    ],
)
async def test_a_call_that_differs_is_an_error(call: Callable[[Executor], Any], message: str) -> None:
    async with ScriptedExecutor(await recording_of("1")) as box:
        with pytest.raises(ScriptError, match=message):
            await call(box)
        assert (await box.python("1")).stdout == "42\n"  # the wrong call has consumed no step of the script
        with pytest.raises(ScriptError, match="the recording ends after 2 calls, and none answers"):
            await call(box)


async def test_timeouts_are_not_compared() -> None:
    async with ScriptedExecutor(await recording_of("1")) as box:
        assert (await box.python("1", timeout=1.234)).stdout == "42\n"


async def test_a_recording_may_begin_in_the_middle() -> None:
    async with ScriptedExecutor([SAID_42]) as box:
        recorder = Recorder(box)
        await recorder.python("1")
    async with ScriptedExecutor(saved(recorder)) as replay:
        assert await replay.python("1") == SAID_42


async def test_a_start_that_failed_fails_again() -> None:
    class NoEngine(ScriptedExecutor):
        async def start(self) -> None:
            raise EngineError("no engine")

    recorder = Recorder(NoEngine([]))
    with pytest.raises(EngineError):
        await recorder.start()
    replay = ScriptedExecutor(saved(recorder))
    with pytest.raises(EngineError, match="no engine"):
        await replay.start()
    with pytest.raises(SandboxClosedError):
        await replay.ping()


async def test_a_clone_of_a_replay_restarts() -> None:
    async with ScriptedExecutor(await recording_of("1")) as box:
        await box.python("1")
        async with box.clone() as clone:
            assert (await clone.python("1")).stdout == "42\n"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_call_that_did_not_end_cannot_be_saved(cancelled: bool) -> None:
    recorder = Recorder(LocalExecutor(limits=LIMITS))
    async with recorder as box:
        running = asyncio.ensure_future(box.bash("sleep 0.2"))
        await asyncio.sleep(0)
        if cancelled:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(ValueError, match="step 1, bash, is still running or was cancelled"):
            recorder.recording.to_json()
        if not cancelled:
            await running
            assert len(saved(recorder).steps) == 2


# --- the file of a recording ------------------------------------------------------------------------------------


async def test_an_unknown_error_is_recorded_as_its_nearest_known_class() -> None:
    class Quota(SandboxTimeoutError):
        """An error that a recording does not know."""

    class Restricted(ScriptedExecutor):
        async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
            raise Quota("wait")

    recorder = Recorder(Restricted([]))
    async with recorder as box:
        with pytest.raises(Quota):
            await box.python("1")
    async with ScriptedExecutor(saved(recorder)) as replay:
        with pytest.raises(SandboxTimeoutError, match="wait") as caught:
            await replay.python("1")
    assert type(caught.value) is SandboxTimeoutError


def text_of(**outcome: Any) -> str:
    step = {"operation": "python", "arguments": {"code": "1"}, "outcome": outcome}
    return json.dumps({"format": 2, "steps": [step]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a JSON object of format 2, got 'list'"),
        ('{"format": 1}', "of format 2, got 1: record it again"),
        ('{"format": 2}', "has a list 'steps'"),
        ("nonsense", "Expecting value"),
        (text_of(error="os.system", arguments=["true"]), "step 0 .* one of EngineError, .*, got 'os.system'"),
        (text_of(error="KeyboardInterrupt", arguments=[]), "got 'KeyboardInterrupt'"),
        (text_of(error="SandboxFileError"), "step 0 .* KeyError"),
        (text_of(result={"status": "fine"}), "step 0 .* 'fine' is not a valid Status"),
        (text_of(result={"status": "ok", "colour": "red"}), "step 0 .* TypeError: .*'colour'"),
        (text_of(base64="???"), "step 0 "),
        (text_of(), "step 0 .* KeyError"),
        (text_of(base64="NDI="), "python is answered by ExecutionResult, got bytes"),
        (text_of(base64="NDI=").replace("python", "rm_rf"), "operation must be one of start, python, .*, got 'rm_rf'"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recording.from_json(text)
