"""A `CodeEnv` rewards every submission, even a hostile one. A check that cannot run is logged for its author."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gymnast.envs import CodeEnv, Episode, RolloutEngine, ScriptedPolicy, episode_specs, tool_call, tool_calls
from gymnast.sandbox import DockerExecutor, ExecutionResult, ExecutorPool, LocalExecutor, SandboxLostError

from ..sandbox.boxes import LIMITS

PRINTS = {"run": "import solution\nsolution.main()\nprint('passed')", "stdout": "5\npassed"}
ROW = {"prompt": "Write solution.py.", "submit": ["solution.py"], "checks": [PRINTS]}


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[ExecutorPool]:
    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        yield pool


async def hand_in(pool: ExecutorPool, source: str, *, row: Mapping[str, Any] = ROW, **options: Any) -> Episode:
    script = [tool_call("bash", command=f"cat > solution.py <<'END'\n{source}\nEND"), "I am done."]
    engine = RolloutEngine(CodeEnv(pool, **options), ScriptedPolicy(script))
    [episode] = await engine.run(episode_specs([row], group_size=1, seed=0))
    assert episode.failure is None, episode.failure.traceback
    return episode


async def test_a_check_that_did_not_run_to_its_end_has_not_passed(pool: ExecutorPool) -> None:
    right = await hand_in(pool, "def main(): print(5)")
    assert right.reward == 1.0
    early = await hand_in(pool, "import sys\ndef main():\n    print('5\\npassed')\n    sys.exit(0)")
    assert (early.reward, early.report["checks"][0]["status"]) == (0.0, "ok")


async def test_the_report_has_the_outcome_of_each_check(pool: ExecutorPool) -> None:
    checks = [
        {"run": "import solution\nsolution.f(2)", "value": "4"},
        {"run": "import solution\nprint('said')\nsolution.f(None)", "value": "0"},
        {"bash": "cat solution.py; exit 3", "stdout": "x", "exit_code": 4},
    ]
    episode = await hand_in(pool, "def f(x): return x * 2", row={**ROW, "checks": checks})
    one, two, three = Episode.from_json(episode.to_json()).report["checks"]
    assert (one["passed"], one["value"], one["expected"]) == (True, "4", {"value": "4"})
    assert (two["passed"], two["status"], two["stdout"], two["expected"]) == (False, "error", "said\n", {"value": "0"})
    assert "TypeError" in two["stderr"]
    assert (three["exit_code"], three["expected"]) == (3, {"stdout": "x", "exit_code": "4"})
    assert episode.metrics["checks_passed"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (
            {"run": "import no_such_module_1\n1", "value": "1"},
            "ModuleNotFoundError: No module named 'no_such_module_1'",
        ),
        ({"run": "def (:\n1", "value": "1"}, "SyntaxError: invalid syntax"),
        ({"bash": "no-such-program-1", "stdout": "x"}, "no-such-program-1: command not found"),
    ],
)
async def test_a_check_that_cannot_run_is_logged_once_for_its_author(
    pool: ExecutorPool, check: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert (await hand_in(pool, "1", row={**ROW, "checks": [check]})).reward == 0.0
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("hidden check 0 cannot run with any submission: ")
    assert reason in message


@pytest.mark.parametrize("source", ["import nothing_like_it", "def (:", "1"])
async def test_the_fault_of_a_submission_is_not_logged(
    pool: ExecutorPool, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    checks = [PRINTS, {"run": "import helper\nhelper.f()", "value": "1"}]
    await hand_in(pool, source, row={**ROW, "submit": ["solution.py", "helper.py"], "checks": checks})
    assert caplog.records == []


async def test_a_check_brings_files_that_the_agent_never_sees(pool: ExecutorPool) -> None:
    test = "import solution\nassert solution.f(2) == 4\n"
    check = {"run": "import tests.test_f\nprint('end')", "stdout": "end", "files": {"tests/test_f.py": test}}
    row = {**ROW, "checks": [check, {"bash": "ls", "stdout": "solution.py"}]}
    assert (await hand_in(pool, "def f(x): return x * 2", row=row)).reward == 1.0
    wrong = await hand_in(pool, "def f(x): return 5", row=row)
    assert [check["passed"] for check in wrong.report["checks"]] == [False, True]
    in_the_way = {**row, "submit": ["solution.py", "tests"]}  # a file where the check needs a folder
    command = "cat > tests <<< x; echo 'def f(x): return 4' > solution.py"
    engine = RolloutEngine(CodeEnv(pool), ScriptedPolicy([tool_call("bash", command=command), "done"]))
    [episode] = await engine.run(episode_specs([in_the_way], group_size=1, seed=0))
    assert [check["passed"] for check in episode.report["checks"]] == [True, False]


async def test_passing_checks_that_are_too_slow_together_are_logged_once(
    pool: ExecutorPool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.envs.code.checking.SLOW_PASSES", 1)
    slow = {"run": "import time, solution\ntime.sleep(0.8)\nsolution.f()", "value": "4"}
    for _ in range(2):
        episode = await hand_in(pool, "def f(): return 4", row={**ROW, "checks": [slow] * 6}, code_timeout=3.0)
        assert {check["status"] for check in episode.report["checks"]} == {"ok", "not_run"}
        assert episode.reward == 0.0
    [message] = [record.getMessage() for record in caplog.records]
    assert "of the 6 checks of a task were not run and count as failed, although the others passed" in message


async def test_after_a_time_out_the_other_checks_are_not_run(pool: ExecutorPool) -> None:
    source = "import time\ndef main(): time.sleep(600)"
    episode = await hand_in(pool, source, row={**ROW, "checks": [PRINTS] * 3}, code_timeout=0.3)
    assert [check["status"] for check in episode.report["checks"]] == ["timeout", "not_run", "not_run"]
    assert (episode.reward, episode.metrics["checks_passed"]) == (0.0, 0.0)


async def test_slow_calls_in_one_turn_cannot_make_the_episode_fail(pool: ExecutorPool) -> None:
    slow = tool_calls(*[("bash", {"command": "sleep 600"})] * 12)
    [episode] = await RolloutEngine(CodeEnv(pool, code_timeout=0.05), ScriptedPolicy([slow, "done"])).run(
        episode_specs([ROW], group_size=1, seed=0)
    )
    assert (episode.failure, episode.reward) == (None, 0.0)
    said = [message.get("content") for message in episode.turns[0].observation]
    assert re.fullmatch(r"\[stopped after \d\.\d s; the shell's variables are kept\]", str(said[0]))
    assert said[-1] == "Error: ValueError: not run, the calls of this turn took 0.25 s; try again"


class Fragile(LocalExecutor):
    """A box that a file named `bomb` takes down when Python runs."""

    runs = 0

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecutionResult:
        type(self).runs += 1
        if any(entry.path == "bomb" for entry in await self.list_files()):
            raise SandboxLostError("the box is lost")
        return await super().python(code, timeout=timeout)


async def test_a_submission_that_takes_every_box_down_is_wrong() -> None:
    row = {**ROW, "submit": ["bomb"], "checks": [PRINTS] * 3}
    script = [tool_call("bash", command="touch bomb"), "done"]
    async with ExecutorPool(Fragile(), max_boxes=1) as pool:
        engine = RolloutEngine(CodeEnv(pool), ScriptedPolicy(script))
        [episode] = await engine.run(episode_specs([row], group_size=1, seed=0))
    assert (episode.failure, episode.reward, Fragile.runs) == (None, 0.0, 2)
    assert [check["status"] for check in episode.report["checks"]] == ["sandbox_lost", "not_run", "not_run"]


LEASE = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
open("solution.py", "w").write("def main(): print(4)")
held = os.open("solution.py", os.O_RDONLY)
fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""


@pytest.mark.parametrize("code", [LEASE, "import os\nos.mkfifo('solution.py')", "import os\nos.mkdir('solution.py')"])
async def test_a_file_that_cannot_be_read_is_a_wrong_submission(code: str, image: str) -> None:
    script = [tool_call("python", code=code), "done"]
    async with ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=1) as pool:
        engine = RolloutEngine(CodeEnv(pool), ScriptedPolicy(script))
        [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
    assert (episode.failure, episode.reward) == (None, 0.0)
    assert "No module named 'solution'" in episode.report["checks"][0]["stderr"]


async def test_a_misspelt_column_is_named(pool: ExecutorPool, caplog: pytest.LogCaptureFixture) -> None:
    await hand_in(pool, "def main(): print(5)", row={**ROW, "file": {"a": "b"}})
    assert [record.getMessage() for record in caplog.records] == [
        "the row has a column 'file', which CodeEnv does not read: is it 'files'?"
    ]


def test_an_option_of_the_pool_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"lease_timeout is an option of the pool: CodeEnv\(ExecutorPool\(\.\.\., lease_timeout"
    ):
        CodeEnv(LocalExecutor(), lease_timeout=3)
