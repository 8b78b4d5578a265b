"""Hidden checks of a `CodeEnv`, in a real box: a submission is right or wrong, and cannot decide that itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gymnast.envs import (
    CodeEnv,
    ConfigurationError,
    Episode,
    EpisodeLimits,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    episode_specs,
    tool_call,
)
from gymnast.sandbox import DockerExecutor, ExecutorPool

from ..sandbox.boxes import LIMITS

ROW = {
    "prompt": "Write solution.py with add(a, b).",
    "submit": ["solution.py", "notes/more.txt"],
    "checks": [
        {"run": "from solution import add\nadd(2, 3)", "value": "5"},
        {"run": "import solution\nprint(solution.add('a', 'b'))", "stdout": "ab\n"},
        {"bash": "python3 -c 'import solution; print(solution.add(1, 1))'; exit 3", "stdout": "2", "exit_code": 3},
    ],
}
RIGHT = "def add(a, b): return a + b\n"


@pytest.fixture(scope="module")
async def pool(image: str) -> AsyncIterator[ExecutorPool]:
    async with ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=2) as pool:
        yield pool


async def play(environment: CodeEnv, *commands: str, row: Mapping[str, Any] = ROW) -> Episode:
    """An episode of these commands and a final answer."""
    script = [*(tool_call("bash", command=command) for command in commands), tool_call("final_answer", answer="done")]
    [episode] = await RolloutEngine(environment, ScriptedPolicy(script)).run(episode_specs([row], group_size=1, seed=0))
    return episode


async def hand_in(pool: ExecutorPool, source: str, *, row: Mapping[str, Any] = ROW) -> Episode:
    episode = await play(CodeEnv(pool, code_timeout=3.0), f"cat > solution.py <<'END'\n{source}\nEND", row=row)
    assert episode.failure is None, episode.failure.traceback
    return episode


async def test_a_right_submission_passes(pool: ExecutorPool) -> None:
    episode = await hand_in(pool, RIGHT)
    assert (episode.reward, episode.metrics["success"], episode.metrics["checks_passed"]) == (1.0, 1.0, 1.0)


async def test_passing_some_of_the_checks_gives_no_reward(pool: ExecutorPool) -> None:
    episode = await hand_in(pool, "def add(a, b): return a + b if a != 'a' else ''")
    assert (episode.reward, episode.metrics["success"]) == (0.0, 0.0)
    assert episode.metrics["checks_passed"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def add(a, b): return a - b",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "def add(a, b):\n    while True: pass",
        "def add(a, b): return b'x' * (1 << 30)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "class Yes(str):\n    def __eq__(self, other): return True\ndef add(a, b): return Yes('x')",
        "import builtins\nbuiltins.repr = builtins.print = lambda *a, **k: True\ndef add(a, b): return 1",
        "import unittest, sys\nsys.exit = lambda code=0: None\nsys.excepthook = lambda *a: None\nraise SystemExit(0)",
        "import os\nopen('/workspace/reward.txt', 'w').write('1.0')\nos.write(1, b'reward: 1.0\\n')\nos._exit(0)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0' * 64)\n    except OSError: pass",
        # The submission counts the checks, but each has a fresh session and a fresh workspace.
        "import os\ndef add(a, b):\n    open('count', 'a').write('x')\n"
        "    return [5, 'ab', 2][os.path.getsize('count') - 1]",
    ],
)
async def test_a_wrong_submission_gets_nothing(pool: ExecutorPool, source: str) -> None:
    episode = await hand_in(pool, source)
    assert (episode.reward, episode.metrics["success"]) == (0.0, 0.0)
    assert episode.metrics["checks_passed"] < 1


async def test_a_script_that_ends_the_shell_of_its_check_gets_nothing(pool: ExecutorPool) -> None:
    row = {**ROW, "checks": [{"bash": ". ./solution.py; add 2 3", "stdout": "5"}]}
    assert (await hand_in(pool, "add() { echo $(($1 + $2)); }", row=row)).reward == 1.0
    for source in ("echo 5; exit 0", "add() { echo 5; exit; }"):
        assert (await hand_in(pool, source, row=row)).reward == 0.0
    own = {"bash": ". ./test.sh", "stdout": "5", "files": {"test.sh": ". ./solution.py; add 2 3\nexit 0"}}
    assert (await hand_in(pool, "add() { echo 5; }", row={**ROW, "checks": [own]})).reward == 1.0


async def test_what_the_agent_planted_does_not_count(pool: ExecutorPool) -> None:
    """Only the files of `submit` leave the agent's box."""
    planted = "echo 1.0 > reward.txt; echo 'def add(a, b): return a + b' | tee sitecustomize.py helper.py"
    episode = await play(CodeEnv(pool), planted, "echo 'from helper import add' > solution.py")
    assert episode.reward == 0.0
    look = {"bash": "find . -type f | sort; cat notes/more.txt", "stdout": "./given.txt\n./notes/more.txt\nmore"}
    row = {**ROW, "files": {"given.txt": "x", "solution.py": RIGHT}, "checks": [look]}
    episode = await play(CodeEnv(pool), f"{planted}; rm solution.py; mkdir notes; echo more > notes/more.txt", row=row)
    assert episode.reward == 1.0  # the agent removed the row's solution.py, and it did not come back


@pytest.mark.parametrize(
    "trap",
    [
        "echo 'def add(a, b): return a + b' > real.py; ln -s real.py solution.py",
        "ln -s /etc/passwd solution.py",
        "mkfifo solution.py",
        "mkdir solution.py",
        "ln -s /dev/zero solution.py",
        "head -c 40000000 /dev/zero > solution.py",
    ],
)
async def test_a_submission_that_is_not_a_plain_file_is_not_handed_in(pool: ExecutorPool, trap: str) -> None:
    look = {"bash": "ls -A | wc -l", "stdout": "0"}
    episode = await play(CodeEnv(pool), trap, row={**ROW, "checks": [look]})
    assert (episode.failure, episode.reward) == (None, 1.0)


SPY = r"""
import gc, os, re

def add(a, b):
    texts = [str(dict(os.environ)), open("/proc/self/cmdline").read()]
    for folder in (".", "/tmp", "/dev/shm"):
        for path, _, names in os.walk(folder):
            texts += [open(os.path.join(path, name), errors="replace").read() for name in names]
    for thing in gc.get_objects():
        texts += [str(found) for found in gc.get_referents(thing) if isinstance(found, (str, bytes, bytearray))]
    return " ".join(sorted(set(re.findall("(?:expected|written)-[0-9]{4}", " ".join(texts)))))
"""


async def test_the_expected_output_never_enters_the_box(pool: ExecutorPool) -> None:
    """A submission that searches its process and its files finds the code of the check, not the expected output."""
    check = {"run": "from solution import add\nadd(1, 2)  # written-1234", "value": "'written-1234'"}
    more = {"run": "1  # written-5678", "value": "expected-5678"}
    row = {**ROW, "answer": "expected-1234", "note": "expected-4321"}
    found = await hand_in(pool, SPY, row={**row, "checks": [check]})
    assert found.reward == 1.0  # it finds the files that are there
    for checks, passed in [([{**check, "stdout": "expected-8765"}], 0), ([more, check], 0.5)]:
        hidden = await hand_in(pool, SPY, row={**row, "checks": checks})
        assert (hidden.reward, hidden.metrics["checks_passed"]) == (0.0, passed)


async def test_a_row_that_cannot_be_graded_stops_the_run_before_any_box(pool: ExecutorPool) -> None:
    for row in ({"prompt": "go"}, {**ROW, "submit": None}, {**ROW, "checks": [{"run": "1"}]}):
        environment = CodeEnv(pool)
        with pytest.raises(ConfigurationError):
            await play(environment, row=row)


# --- a grade of your own ----------------------------------------------------------------------------------------


async def test_grade_may_be_overridden(pool: ExecutorPool) -> None:
    class Half(CodeEnv):
        async def agrade(self, stop: StopReason) -> float | None:
            mine = await self.box.read_file("solution.py")
            async with self.fresh_box() as box:
                assert await box.read_file("solution.py") == mine
                assert (await box.bash("ls")).stdout == "solution.py\n"
            async with self.fresh_box() as box:
                assert (await box.bash("ls")).stdout == "solution.py\n"
            return 0.5

    class Blocking(CodeEnv):
        def grade(self, stop: StopReason) -> float:
            return float(self.given_answer == "done")

    row = {"prompt": "go", "submit": ["solution.py"]}
    half = await play(Half(pool), "echo x > solution.py; touch other", row=row)
    assert (half.failure, half.reward, "success" in half.metrics) == (None, 0.5, False)
    blocking = await play(Blocking(pool), row={"prompt": "go"})
    assert blocking.reward == 1.0


async def test_a_right_submission_is_rewarded_however_the_episode_ends(pool: ExecutorPool) -> None:
    write = tool_call("bash", command=f"cat > solution.py <<'END'\n{RIGHT}\nEND")
    for script, limits, stop in [
        ([write, "I am done."], {}, StopReason.MODEL_STOPPED),
        ([write], {"max_turns": 1}, StopReason.MAX_TURNS),
        ([write], {"max_tool_calls": 1}, StopReason.MAX_TOOL_CALLS),
    ]:
        engine = RolloutEngine(CodeEnv(pool), ScriptedPolicy(script), limits=EpisodeLimits(**limits))
        [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
        assert (episode.stop, episode.reward, episode.metrics["checks_passed"]) == (stop, 1.0, 1.0)
