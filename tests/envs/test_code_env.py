"""`CodeEnv` against a real engine: the box of an episode from its lease to its return, and failures in between."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from gymnast.envs import (
    CodeEnv,
    ConfigurationError,
    DefaultEnv,
    Episode,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    episode_specs,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import DockerExecutor, ExecutorPool, SandboxClosedError, SandboxLostError, pool_of

from ..sandbox.boxes import LIMITS, eventually, own_containers

ROW = {"prompt": "What is 6 times 7?", "answer": 42}


@pytest.fixture(scope="module")
async def pool(image: str) -> AsyncIterator[ExecutorPool]:
    """Four boxes for the tests that do not break them."""
    before = own_containers()
    async with ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=4, warm=2) as pool:
        yield pool
    assert await eventually(lambda: own_containers() <= before, 2)


def one_box(**options: Any) -> ExecutorPool:
    return ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=1, warm=1, **options)


async def play(environment: CodeEnv, script: Any, *rows: Mapping[str, Any], **options: Any) -> list[Episode]:
    engine = RolloutEngine(environment, ScriptedPolicy(script), **options)
    return await engine.run(episode_specs(rows or [ROW], group_size=1, seed=0))


def python(*cells: str) -> Message:
    return tool_calls(*(("python", {"code": cell}) for cell in cells))


def bash(command: str) -> Message:
    return tool_call("bash", command=command)


def answer(text: str = "42") -> Message:
    return tool_call("final_answer", answer=text)


def told(episode: Episode) -> list[Any]:
    return [message.get("content") for turn in episode.turns for message in turn.observation]


# --- episodes ---------------------------------------------------------------------------------------------------


async def test_an_episode_with_state_files_and_a_right_answer(pool: ExecutorPool) -> None:
    row = {**ROW, "files": {"data/numbers.csv": "6\n7\n", "raw.bin": b"\0\xff"}}
    script = [
        python("from math import prod\nnumbers = [int(line) for line in open('data/numbers.csv')]"),
        tool_calls(("python", {"code": "print('hello')\nprod(numbers)"}), ("bash", {"command": "stat -c %s raw.bin"})),
        bash("cd data; export X=1; ls nowhere"),
        bash("echo $X; basename $PWD"),
        answer(" 42.0 "),
    ]
    [episode] = await play(CodeEnv(pool), script, row)
    said = told(episode)
    assert said[:3] == ["[no output]", "hello\n42", "2"]
    assert "ls: cannot access 'nowhere'" in said[3]
    assert said[3].endswith("\n[exit code 2]")
    assert said[4:] == ["1\ndata", "The task is over."]
    assert (episode.reward, episode.stop) == (1.0, StopReason.FINAL_ANSWER)
    assert (episode.metrics["success"], episode.metrics["code_errors"]) == (1.0, 1.0)
    assert episode.metrics["lease_seconds"] > 0
    assert [schema["function"]["name"] for schema in episode.tools] == ["python", "bash", "final_answer"]


async def test_a_wrong_answer_and_a_missing_one(pool: ExecutorPool) -> None:
    [wrong] = await play(CodeEnv(pool), [answer("41")])
    assert (wrong.reward, wrong.metrics["success"]) == (0.0, 0.0)
    [none] = await play(CodeEnv(pool), ["I give up."])
    assert (none.reward, none.stop, none.metrics["success"]) == (0.0, StopReason.MODEL_STOPPED, 0.0)


async def test_the_model_sees_why_code_failed(pool: ExecutorPool) -> None:
    script = [
        python("kept = 1", "1 / 0", "while True: pass", "kept"),
        python("import os; os._exit(3)"),
        python("kept"),
        answer(),
    ]
    [episode] = await play(CodeEnv(pool, code_timeout=2.0), script)
    said = told(episode)
    assert said[1].endswith("ZeroDivisionError: division by zero")
    assert re.search(r"\[stopped after \d(\.\d)? s; variables are kept\]$", said[2])
    assert said[3] == "1"
    assert said[4] == "[the session ended with exit code 3; variables are lost]"
    assert "NameError: name 'kept' is not defined" in said[5]
    assert (episode.reward, episode.metrics["code_errors"]) == (1.0, 4.0)


async def test_tool_timeout_applies_to_tools_of_users_only(pool: ExecutorPool) -> None:
    class Slow(CodeEnv):
        tools_in = "calls"

        @tool
        async def wait(self) -> str:
            """Wait for ever."""
            return str(await asyncio.Event().wait())

    script = [tool_calls(("python", {"code": "import time; time.sleep(0.5); 'done'"}), ("wait", {})), answer()]
    [episode] = await play(Slow(pool, tool_timeout=0.1), script)
    assert told(episode)[:2] == ["'done'", "Error: wait did not finish within 0.1 s."]


async def test_tools_of_a_subclass_use_the_box(pool: ExecutorPool) -> None:
    class Reader(CodeEnv):
        tools_in = "calls"

        async def reset_task(self, task: Mapping[str, Any]) -> list[Message]:  # type: ignore[override]
            await self.box.write_file("from_reset.txt", "written in reset_task")
            return [{"role": "user", "content": task["prompt"]}]

        @tool
        async def show(self, path: str) -> str:
            """Show a file.

            Args:
                path: Its path.
            """
            return (await self.box.read_file(path)).decode()

    script = [tool_calls(("show", {"path": "from_reset.txt"}), ("show", {"path": "missing.txt"})), answer()]
    [episode] = await play(Reader(pool), script)
    assert told(episode)[0] == "written in reset_task"
    assert told(episode)[1].startswith("Error: SandboxFileNotFoundError: ")
    assert episode.reward == 1.0


async def test_32_episodes_on_four_boxes(pool: ExecutorPool) -> None:
    """No episode waits for ever, although each needs a second box for its checks, and none sees another's files."""
    code = (
        "import pathlib\nseen = sorted(p.name for p in pathlib.Path().iterdir()), 'mark' in globals()\nmark = 1\nseen"
    )

    def script(messages: list[Message]) -> Message:
        number = messages[0].get("content")
        write = f"echo 'def number(): return {number}' > solution.py; touch /tmp/mark; cat number.txt"
        return [python(code), bash(write), bash("ls /tmp"), answer()][sum(m["role"] == "assistant" for m in messages)]

    rows = [
        {
            "prompt": str(number),
            "files": {"number.txt": str(number)},
            "submit": ["solution.py"],
            "checks": [{"run": "import solution\nsolution.number()", "value": str(number)}],
        }
        for number in range(32)
    ]
    episodes = await play(CodeEnv(pool), script, *rows)
    assert [episode.failure for episode in episodes] == [None] * 32
    assert [episode.reward for episode in episodes] == [1.0] * 32
    for number, episode in enumerate(episodes):
        assert told(episode)[:3] == ["(['number.txt'], False)", str(number), "mark"]
    assert pool.statistics.leased == 0


# --- the lease --------------------------------------------------------------------------------------------------


async def test_a_lease_lasts_from_reset_to_the_end(pool: ExecutorPool) -> None:
    environment = CodeEnv(pool)
    with pytest.raises(SandboxClosedError, match="CodeEnv has no box now"):
        _ = environment.box
    for _ in range(2):  # the second reset gives the first box back
        await environment.areset(options={"task": ROW})
        assert pool.statistics.leased == 1
        assert (await environment.box.python("'x' in globals()")).value == "False"
        await environment.astep(python("x = 1"))
    assert (await environment.astep(answer())).terminated
    assert pool.statistics.leased == 1
    assert await environment.agrade(StopReason.FINAL_ANSWER) == 1.0
    assert pool.statistics.leased == 0
    await environment.areset(options={"task": ROW})
    await environment.aclose()
    await environment.aclose()
    assert pool.statistics.leased == 0


async def test_a_reset_that_fails_keeps_no_box(pool: ExecutorPool) -> None:
    environment = CodeEnv(pool)
    for row, error in [
        ({"answer": 1}, ValueError),  # no prompt
        ({**ROW, "files": {"/etc/x": ""}}, ConfigurationError),
        ({**ROW, "files": {"x": 1}}, ConfigurationError),
        ({**ROW, "files": {"x" * 300: ""}}, OSError),  # the name is too long
        ({"prompt": "no verdict"}, ConfigurationError),
    ]:
        with pytest.raises(error):
            await environment.areset(options={"task": row})
        assert pool.statistics.leased == 0


# --- failures ---------------------------------------------------------------------------------------------------


async def test_a_box_that_is_lost_while_grading_is_a_failed_episode(pool: ExecutorPool) -> None:
    class Lost(CodeEnv):
        async def agrade(self, stop: StopReason) -> float | None:
            raise SandboxLostError("the box is lost: while grading")

    [episode] = await play(Lost(pool), [answer()])
    assert (episode.reward, str(episode.failure)) == (None, "grade: SandboxLostError: the box is lost: while grading")


async def test_no_engine_is_a_failed_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    async with ExecutorPool(DockerExecutor(limits=LIMITS), warm=0) as pool:
        [episode] = await play(CodeEnv(pool), [answer()])
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type, episode.reward) == ("reset", "EngineError", None)
    assert "/nowhere/docker.sock" in episode.failure.message


async def test_no_free_box_is_a_failed_episode(image: str) -> None:
    async with one_box(lease_timeout=0.2) as pool:
        async with pool.lease(timeout=30):
            [episode] = await play(CodeEnv(pool), [answer()])
        assert str(episode.failure).startswith("reset: SandboxTimeoutError: ")
        assert episode.reward is None


async def test_no_free_box_for_grading_is_a_failed_episode(image: str) -> None:
    release = asyncio.Event()

    class Taken(CodeEnv):
        async def fresh(self) -> None:
            async with pool.lease(timeout=30, priority=True):
                await release.wait()

        async def agrade(self, stop: StopReason) -> float | None:
            other = asyncio.create_task(self.fresh())
            await asyncio.sleep(0)  # it waits in the queue now, before the grading box is asked for
            try:
                return await super().agrade(stop)
            finally:
                release.set()
                await other

    row = {"prompt": "go", "submit": ["a"], "checks": [{"run": "1", "value": "1"}]}
    async with one_box(lease_timeout=3.0) as pool:
        await asyncio.sleep(0)
        async with pool.lease(timeout=30):
            pass  # the box is made
        [episode] = await play(Taken(pool), [answer()], row)
    assert str(episode.failure).startswith("grade: SandboxTimeoutError: ")
    assert episode.reward is None


# --- construction, Gymnasium and imports ------------------------------------------------------------------------


async def test_wrong_arguments_are_refused(pool: ExecutorPool) -> None:
    with pytest.raises(TypeError, match="code_executor must be an executor such as DockerExecutor"):
        CodeEnv("docker")  # type: ignore[arg-type]
    for timeout in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="code_timeout must be a positive number"):
            CodeEnv(pool, code_timeout=timeout)
    for wrong in ("30", True):
        with pytest.raises(TypeError, match="code_timeout must be a number of seconds, got "):
            CodeEnv(pool, code_timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tool_timout"):
        CodeEnv(pool, tool_timout=3)
    async with pool.lease() as box:
        with pytest.raises(ValueError, match="start"):
            CodeEnv(box)
    recipe = DockerExecutor(limits=LIMITS)
    assert DefaultEnv(recipe).clone()._pool is DefaultEnv(recipe)._pool is pool_of(recipe)


def test_the_checker_of_gymnasium_passes(image: str) -> None:
    recipe = DockerExecutor(limits=LIMITS)
    gymnasium.register("gymnast-test/Code-v0", lambda **kwargs: CodeEnv(recipe, tasks=[ROW], **kwargs))
    environment = gymnasium.make("gymnast-test/Code-v0", render_mode="ansi").unwrapped
    try:
        check_env(environment)  # warnings are errors here
        environment.reset(seed=1)
        environment.step(python("6 * 7"))
        assert environment.render() == (
            "[user] What is 6 times 7?\n[assistant] \n  python({'code': '6 * 7'})\n[tool] 42"
        )
    finally:
        environment.close()
        run_in_loop(pool_of(recipe).close())


PROGRAM = """
from gymnast.envs import CodeEnv, tool_call
from gymnast.sandbox import DockerExecutor, Limits

environment = CodeEnv(DockerExecutor(limits=Limits(memory="256m", workspace="64m", tmp="32m")))
for _ in range(2):
    environment.reset(options={"task": {"prompt": "go", "answer": 42}})
    messages = environment.step(tool_call("python", code="6 * 7")).messages
    result = environment.step(tool_call("final_answer", answer="42"))
    print(messages[0]["content"], result.reward, environment.grade(result.info["stop_reason"]))
environment.close()
"""


def test_a_plain_script(image: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr, result.returncode) == ("42 0.0 1.0\n42 0.0 1.0\n", "", 0)


def test_importing_loads_no_client_of_the_engine(tmp_path: Path) -> None:
    code = (
        "import sys, gymnast.envs, gymnast.records\n"
        "print([n for n in ('docker', 'requests', 'urllib3', 'torch', 'PIL') if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
