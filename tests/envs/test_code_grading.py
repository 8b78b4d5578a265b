"""`CodeEnv` beside its box: the text of a result, the columns of a row, and errors that break an episode."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from gymnast.envs import (
    BrokenEnvironmentError,
    ConfigurationError,
    EpisodeLimits,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolEnv,
    tool,
    tool_calls,
)
from gymnast.envs.code.actions import Language
from gymnast.envs.code.files import files_of, submit_of
from gymnast.envs.code.grading import checks_of, same_answer
from gymnast.envs.code.results import describe
from gymnast.sandbox import (
    EngineError,
    ExecutionResult,
    ImageError,
    SandboxClosedError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxLostError,
    SandboxTimeoutError,
    Status,
)

# --- describe ---------------------------------------------------------------------------------------------------

lost = partial(ExecutionResult, state_lost=True)
DESCRIBED: list[tuple[ExecutionResult, Language, str]] = [
    (ExecutionResult(status=Status.OK), "python", "[no output]"),
    (ExecutionResult(status=Status.OK, exit_code=0), "bash", "[no output]"),
    (ExecutionResult(status=Status.OK, stdout="said\n", value="42", stderr="warned\n"), "python", "said\n42\nwarned"),
    (ExecutionResult(status=Status.OK, stdout="no newline", value="''"), "python", "no newline\n''"),
    (ExecutionResult(status=Status.OK, stdout="\n\n"), "bash", "\n"),
    (lost(status=Status.OK, stdout="x\n"), "python", "x\n[variables are lost]"),
    (ExecutionResult(status=Status.ERROR, stderr="NameError: x\n", exit_code=1), "python", "NameError: x"),
    (ExecutionResult(status=Status.ERROR, stdout="a\n", stderr="b\n", exit_code=2), "bash", "a\nb\n[exit code 2]"),
    (
        ExecutionResult(status=Status.TIMEOUT, stdout="tick\n", duration=30.01),
        "python",
        "tick\n[stopped after 30 s; variables are kept]",
    ),
    (lost(status=Status.TIMEOUT, duration=0.52), "bash", "[stopped after 0.5 s; the shell's variables are lost]"),
    (lost(status=Status.OOM, exit_code=-9), "python", "[killed: out of memory; variables are lost]"),
    (
        ExecutionResult(status=Status.OOM, exit_code=-9),
        "bash",
        "[killed: out of memory; the shell's variables are kept]",
    ),
    (lost(status=Status.EXITED, exit_code=3), "python", "[the session ended with exit code 3; variables are lost]"),
    (lost(status=Status.SIGNAL, exit_code=-11), "python", "[killed by SIGSEGV; variables are lost]"),
    (lost(status=Status.SIGNAL, exit_code=-40), "python", "[killed by signal 40; variables are lost]"),
    (
        lost(status=Status.PROTOCOL),
        "python",
        "[killed: the code wrote into the channel of the results; variables are lost]",
    ),
]


@pytest.mark.parametrize(("result", "language", "text"), DESCRIBED)
def test_a_result_is_described(result: ExecutionResult, language: Language, text: str) -> None:
    assert describe(result, language) == text


def test_every_status_is_described() -> None:
    assert {result.status for result, _, _ in DESCRIBED} == set(Status)


# --- answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        (" Paris\n", "Paris", True),
        ("paris", "Paris", False),
        ("12", 12, True),
        ("12.0", 12, True),
        ("12", "12.00", False),
        ("1.10", "1.1", False),
        ("1.10", 1.1, True),
        ("007", "7", False),
        ("007", 7, True),
        ("1_000", 1000, False),
        ("\u0661\u0662", 12, False),
        ("\uff11\uff12", 12, False),
        ("Infinity", float("inf"), False),
        ("inf", float("inf"), True),
        ("+.5", 0.5, True),
        ("-5.e-1", Decimal("-0.50"), True),
        ("1e9999999999999999999", 1, False),
        ("12 000", 12000, False),
        ("1.2e1", 12.0, True),
        ("0.10", 0.1, True),
        ("12.000001", 12, False),
        ("100000000000000000001", 100000000000000000000, False),  # equal as floats
        ("True", True, True),
        ("1", True, False),
        ("nan", "NaN", False),
        ("sNaN", 1, False),
        ("twelve", 12, False),
        ("12.0", np.int64(12), True),
        ("7", np.float32(7), True),
        ("1", np.bool_(True), False),
        ("1/3", Fraction(1, 3), True),
        ("", 0, False),
    ],
)
def test_answers_are_compared_as_text_or_as_numbers(answer: str, expected: Any, same: bool) -> None:
    assert same_answer(answer, expected) is same


# --- rows -------------------------------------------------------------------------------------------------------


def test_the_columns_of_a_row_are_read() -> None:
    row = {"files": {"./a//b.txt": "text", "c": b"\0", "d": None}, "submit": ["x/./y.py"]}
    assert files_of(row) == {"a/b.txt": "text", "c": b"\0"}
    assert submit_of(row) == ("x/y.py",)
    for absent in ({"answer": 1}, {"answer": 1, "files": None, "submit": None, "checks": None}):
        assert (files_of(absent), submit_of(absent), checks_of(absent, "MyEnv", max_output=1024)) == ({}, (), ())
    checks = [{"run": "f()", "value": "1", "stdout": None, "bash": None}, {"bash": "x", "stdout": "", "exit_code": 3}]
    [one, two] = checks_of({"checks": checks, "submit": ["x"]}, "MyEnv", max_output=1024)
    assert (one.python, one.bash, one.value, one.stdout) == ("f()", None, "1", None)
    assert (two.python, two.bash, two.stdout, two.exit_code) == (None, "x", "", 3)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a"], "the row's 'files' must map relative paths to text or bytes, got list"),
        ({"a.csv": 3}, r"the row's files\['a.csv'\] must be text or bytes, got int: 3"),
        ({"/etc/passwd": ""}, r"the row's files\['/etc/passwd'\]: a path must be relative"),
        ({"a/../../b": ""}, r"files\['a/../../b'\]: a path must be relative and without '..'"),
        ({"a/": ""}, "must name a file, got 'a/'"),
        ({".": ""}, "must name a file"),
        ({"": ""}, "a path is text"),
        ({"a\0": ""}, "a path is text"),
        ({3: ""}, "a path is text"),
        ({"a/b": "", "a/./b": ""}, r"files\['a/./b'\]: another entry is this file too: 'a/b'"),
    ],
)
def test_wrong_files_are_a_configuration_error(files: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        files_of({"files": files})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"checks": []}, "must be a list of at least one check, got list"),
        ({"checks": "print(1)"}, "must be a list of at least one check, got str"),
        ({"checks": ["print(1)"]}, r"checks\[0\] must be \{'run': Python code"),
        ({"checks": [{"stdout": "1"}]}, r"checks\[0\] must be .*got the fields \['stdout'\]"),
        ({"checks": [{"run": "1", "bash": "1", "stdout": ""}]}, "got the fields"),
        ({"checks": [{"run": "1", "value": "1", "exit_code": 0}]}, "got the fields"),
        ({"checks": [{"bash": "1", "value": "1"}]}, "got the fields"),
        ({"checks": [{"run": "1", "expected": "1"}]}, r"got the fields \['expected', 'run'\]"),
        ({"checks": [{"run": "1"}]}, r"checks\[0\] expects no output, so code that does nothing would pass"),
        ({"checks": [{"bash": "1", "exit_code": 0}]}, "expects no output"),
        ({"checks": [{"run": "1", "value": 1}]}, r"checks\[0\]\['value'\] must be text, got int: 1"),
        ({"checks": [{"run": b"1", "value": "1"}]}, r"checks\[0\]\['run'\] must be text, got bytes"),
        ({"checks": [{"bash": "1", "stdout": "", "exit_code": 256}]}, "must be an integer from 0 to 255"),
        ({"checks": [{"bash": "1", "stdout": "", "exit_code": True}]}, "must be an integer from 0 to 255"),
        ({"submit": None}, "the row has 'checks' but no 'submit'"),
        ({"submit": "a.py"}, "the row's 'submit' must be a list of relative paths, got str: 'a.py'"),
        ({"submit": ["../a.py"]}, r"the row's submit\[0\]: a path must be relative"),
        ({"submit": ["a.py", "./a.py"]}, r"submit\[1\]: another entry is this file too: 'a.py'"),
        ({"checks": [{"run": "f()", "value": "None"}]}, r"checks\[0\]\['value'\] is 'None', but .* expect 'True'"),
        ({"checks": [{"run": "f()", "stdout": " \n"}]}, "expects an empty output and the exit code 0"),
        ({"checks": [{"bash": "x", "stdout": "", "exit_code": 0}]}, "expects an empty output"),
        ({"checks": [{"bash": "x", "stdout": "", "exit_code": 1}]}, "expects an empty output and the exit code 1"),
        ({"checks": [{"bash": "x", "stdout": "\n", "exit_code": 127}]}, "expects an empty output"),
        ({"checks": [{"bash": "x", "stdout": "", "exit_code": 137}]}, "expects an empty output"),
        ({"checks": [{"run": "f()", "stdout": "é" * 512}]}, r"checks\[0\]\['stdout'\] is as long as the 1024 bytes"),
        ({"checks": [{"run": "f()", "value": "1" * 1024}]}, r"checks\[0\]\['value'\] is as long as the 1024 bytes"),
        *(
            (
                {"checks": [{"stdout": "passed\n", **check}]},
                r"checks\[0\] prints the expected output .*which is a verdict",
            )
            for check in (
                {"bash": "python3 -c 'import a; assert a.f() == 5' && echo passed"},
                {"bash": "if python3 a.py; then echo -n 'passed'; fi"},
                {"bash": 'pytest -q || exit; printf "passed\\n"'},
                {"bash": "python3 a.py && echo passed || echo failed"},
                {"bash": "if python3 a.py; then echo passed; else echo failed; fi"},
                {"bash": "python3 -c 'import a\nassert a.f([1])[0] == 5'; echo passed\n"},
            )
        ),
        ({"checks": None}, r"MyEnv: the row has neither 'checks' nor 'answer' \(its columns: .*override agrade\(\)"),
    ],
)
def test_a_row_without_a_verdict_is_a_configuration_error(columns: dict[str, Any], message: str) -> None:
    row = {"checks": [{"run": "1", "value": "1"}], "submit": ["a.py"]}
    checks_of(row, "MyEnv", max_output=1024)
    with pytest.raises(ConfigurationError, match=message):
        checks_of({**row, **columns}, "MyEnv", max_output=1024)


def test_an_expectation_that_an_empty_submission_does_not_meet_is_accepted() -> None:
    checks = [
        {"run": "f()", "value": "1", "stdout": ""},
        {"bash": "x", "stdout": "", "exit_code": 3},
        {"run": "f()", "stdout": "x" * 1023 + "\n"},
        {"run": "import test_a\nprint('passed')", "stdout": "passed"},  # which must reach its end
        {"bash": "echo 5 | python3 a.py", "stdout": "5"},  # the input of a program, and no output of the check
        {"bash": "printf '5\\n' > in; python3 a.py < in", "stdout": "5"},
        {"bash": "echo 512; python3 a.py", "stdout": "5"},
        {"bash": "echo 3 4 | python3 a.py", "stdout": "3"},
        {"bash": "echo hello world | python3 a.py", "stdout": "hello"},
        {"bash": "(echo 3; echo 4) | python3 a.py", "stdout": "3"},
        {"bash": "python3 a.py $(echo 5)", "stdout": "5"},
        {"bash": "python3 a.py <(cd; echo 5)", "stdout": "5"},
        {"bash": "echo 5 2 > in.txt; python3 a.py < in.txt", "stdout": "5"},
        {"bash": "python3 -c 'from a import f; print(1 + f(0))'", "stdout": "1"},
        {"bash": "cat > run.py <<END\nfrom a import f; print(2)\nEND\npython3 run.py", "stdout": "2"},
        {"bash": 'if [ "$(python3 a.py)" = 25 ]; then echo yes; else echo no; fi', "stdout": "yes"},
        {"bash": "python3 a.py > out; diff out wanted && echo same", "stdout": "same"},
        {"bash": "pytest -q | grep -o '3 passed'", "stdout": "3 passed"},
    ]
    assert len(checks_of({"checks": checks, "submit": ["a.py"]}, "MyEnv", max_output=1024)) == len(checks)


@pytest.mark.parametrize(
    ("command", "files", "ends"),
    [
        (". ./test.sh", {"test.sh": "echo 3 passed\nexit 0"}, True),
        ("source test.sh", {"test.sh": b"\xff\nset -euo pipefail"}, True),
        ("python3 a.py; exit 3", {}, True),
        ("if ! python3 a.py; then exit 3; fi", {}, True),
        ("python3 a.py || exit", {}, True),
        (". ./a.sh; python3 -c 'print(set([1]))'", {}, False),
        (". ./a.sh; exit_code=3; ./exit; echo exit", {"test.py": "import a\nexec('1')\nexit()"}, False),
    ],
)
def test_a_check_may_end_its_shell_by_commands_of_its_own(command: str, files: dict[str, Any], ends: bool) -> None:
    row = {"checks": [{"bash": command, "stdout": "3 passed", "files": files}], "submit": ["a.sh"]}
    [check] = checks_of(row, "MyEnv", max_output=1024)
    assert check.may_end_shell is ends


# --- errors that break an episode -------------------------------------------------------------------------------

BREAKING = [
    BrokenEnvironmentError("the database is down"),
    EngineError("no engine"),
    ImageError("no bash"),
    SandboxClosedError("closed"),
    SandboxTimeoutError("no box in time"),
    SandboxLostError("the box is lost"),
]


def raiser(error: BaseException, *, asynchronous: bool) -> ToolEnv:
    """An environment with the tool `broken`, which raises this."""

    def blocking() -> str:
        """Break."""
        raise error

    async def broken() -> str:
        """Break."""
        raise error

    blocking.__name__ = "broken"
    return ToolEnv([broken if asynchronous else blocking], tasks=[{"prompt": "go"}])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", BREAKING, ids=lambda error: type(error).__name__)
def test_a_broken_environment_is_a_failed_episode(error: Exception, asynchronous: bool) -> None:
    policy = ScriptedPolicy([tool_calls(("broken", {}))])
    engine = RolloutEngine(raiser(error, asynchronous=asynchronous), policy, on_failure="retry(1)")
    [episode] = engine.play([{"prompt": "go"}])
    assert (episode.stop, episode.reward, episode.attempts) == (StopReason.FAILED, None, 2)
    assert str(episode.failure) == f"step: {type(error).__name__}: {error}"
    assert episode.turns[0].observation == []


@pytest.mark.parametrize("error", [SandboxFileNotFoundError(2, "No such file", "a.txt"), SandboxFileError(28, "full")])
def test_the_model_sees_a_file_error(error: SandboxError) -> None:
    policy = ScriptedPolicy([tool_calls(("broken", {})), "I see"])
    [episode] = RolloutEngine(raiser(error, asynchronous=True), policy).play([{"prompt": "go"}])
    assert (episode.stop, episode.reward) == (StopReason.MODEL_STOPPED, None)
    [said] = episode.turns[0].observation
    assert said.get("content") == f"Error: {type(error).__name__}: {error}"
    assert episode.turns[0].tool_calls[0].outcome == "refused"


def test_a_configuration_error_in_a_tool_stops_the_run() -> None:
    environment = raiser(ConfigurationError("no key"), asynchronous=True)
    with pytest.raises(ConfigurationError, match="no key"):
        RolloutEngine(environment, ScriptedPolicy([tool_calls(("broken", {}))])).play([{"prompt": "go"}])


async def test_the_error_leaves_its_groups_and_the_calls_beside_it_are_cancelled() -> None:
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    @tool(parallel=True)
    async def wait() -> str:
        """Wait."""
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    @tool(parallel=True)
    async def broken() -> str:
        """Break in a group of tasks."""

        async def lose() -> None:
            await waiting.wait()
            try:
                raise KeyError("the cause")
            except KeyError as cause:
                raise SandboxLostError("the box is lost") from cause

        async with asyncio.TaskGroup() as group:
            group.create_task(lose())
        return ""

    environment = ToolEnv([wait, broken])
    await environment.areset(options={"task": {"prompt": "go"}})
    with pytest.raises(SandboxLostError, match="the box is lost") as caught:
        await environment.astep(tool_calls(("wait", {}), ("broken", {})))
    assert isinstance(caught.value.__cause__, KeyError)
    assert cancelled.is_set()


async def test_a_cancellation_is_not_lost_in_a_call_that_breaks() -> None:
    started = asyncio.Event()

    async def broken() -> str:
        """Break when cancelled."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise SandboxLostError("lost meanwhile") from None
        return ""

    environment = ToolEnv([broken])
    await environment.areset(options={"task": {"prompt": "go"}})
    task = asyncio.create_task(environment.astep(tool_calls(("broken", {}))))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_sandbox_timeout_is_not_a_tool_timeout() -> None:
    """`SandboxTimeoutError` is a TimeoutError too, but neither the tool's time nor the episode's was over."""
    environment = raiser(SandboxTimeoutError("no box in time"), asynchronous=True)
    policy = ScriptedPolicy([tool_calls(("broken", {}))])
    limits = EpisodeLimits(episode_timeout=60, step_timeout=50)
    [episode] = RolloutEngine(environment, policy, limits=limits).play([{"prompt": "go"}])
    assert str(episode.failure) == "step: SandboxTimeoutError: no box in time"


def test_a_blocking_tool_that_breaks_frees_the_others() -> None:
    release = threading.Event()

    @tool(parallel=True)
    def block() -> str:
        """Block."""
        release.wait(30)
        return ""

    @tool(parallel=True)
    def broken() -> str:
        """Break."""
        raise BrokenEnvironmentError("the database is down")

    policy = ScriptedPolicy([tool_calls(("block", {}), ("broken", {}))])
    [episode] = RolloutEngine(ToolEnv([block, broken]), policy).play([{"prompt": "go"}])
    assert str(episode.failure) == "step: BrokenEnvironmentError: the database is down"
    assert not release.is_set()
    release.set()
