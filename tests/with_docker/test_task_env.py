"""`TaskEnv` in real boxes: each feature of Harbor's format, the verdict, the tools, and the ends of an episode."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import (
    ConfigurationError,
    Episode,
    EpisodeLimits,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    TaskEnv,
    episode_specs,
    harbor_tasks,
    tool_call,
)
from gymnast.envs.tasks.harbor import read_task
from gymnast.sandbox import DockerBox, ExecutorPool, Limits

from ..envs.test_harbor_tasks import FOLDER

LIMITS = Limits(memory="256m", pids=64)
SUBMIT = tool_call("submit")

pytestmark = pytest.mark.usefixtures("image", "nothing_left")


async def play(script: Any, *rows: Mapping[str, Any], **options: Any) -> list[Episode]:
    engine = RolloutEngine(TaskEnv(DockerBox(limits=LIMITS), **options), ScriptedPolicy(script), max_concurrency=4)
    return await engine.run(episode_specs(rows, group_size=1, seed=0))


async def play_in(name: str, *commands: str, **options: Any) -> Episode:
    script = [*(bash(command) for command in commands), SUBMIT]
    [episode] = await play(script, *harbor_tasks(FOLDER / name), **options)
    return episode


def bash(command: str, **options: Any) -> Message:
    return tool_call("bash", command=command, **options)


def told(episode: Episode) -> list[Any]:
    return [message.get("content") for turn in episode.turns for message in turn.observation]


def task_with(folder: Path, settings: str, *, answers: str | None = None) -> dict[str, Any]:
    """The plain task with other settings; `answers` is a command of its tests that prints the reward."""
    shutil.copytree(FOLDER / "plain", folder / "task")
    (folder / "task" / "task.toml").write_text(settings)
    if answers is not None:
        (folder / "task/tests/test.sh").write_text(f"#!/bin/sh\n({answers}) > /logs/verifier/reward.txt\n")
    [row] = harbor_tasks(folder)
    return row


ZERO = {"artifacts", "canary", "hanging", "healthcheck", "plain", "separate", "steps", "user", "variables"}
NULL = dict.fromkeys(ZERO, 0.0) | {"reward_keys": 0.25}


@pytest.mark.parametrize("verify", ["separate", "shared"])
async def test_each_feature_of_the_format_is_kept(verify: str) -> None:
    rows = [row for row in harbor_tasks(FOLDER) if row["task"] != "no_reward"]
    assert NULL.keys() == {row["task"] for row in rows}
    for row in rows:
        solutions = [stage.solution / "solve.sh" for stage in read_task(row["task_dir"]).stages() if stage.solution]
        script = [call for path in solutions for call in (bash(path.read_text()), SUBMIT)]
        if row["task"] == "variables":
            script[0] = bash("SECOND=2\n" + solutions[0].read_text())
        [right], [null] = await asyncio.gather(play(script, row, verify=verify), play([SUBMIT], row, verify=verify))
        assert null.reward == NULL[row["task"]], null
        assert right.reward == (0.75 if row["task"] == "reward_keys" else 1.0), right
        assert right.stop is StopReason.FINAL_ANSWER
        if row["task"] == "reward_keys":
            assert (right.metrics["reward_right"], right.metrics["reward_length"]) == (1.0, 0.5)
        if row["task"] == "steps":
            assert told(right)[1] == (FOLDER / "steps/steps/second/instruction.md").read_text()
            assert null.stop is StopReason.ENV_TERMINATED  # its first reward is below min_reward


PLANTS = {
    "files": "mkdir -p /tests /logs/verifier; for f in txt json; do echo 1 > /logs/verifier/reward.$f; done",
    "a writer in the background": "(while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json; done) &",
    "tests": "mkdir -p /tests; printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "a folder": "mkdir -p /logs/verifier/reward.json",
    "a file that hangs the tests": "mkfifo answer.txt || python3 -c \"import os; os.mkfifo('answer.txt')\"",
}


@pytest.mark.parametrize("name", PLANTS)
async def test_what_the_agent_plants_gives_no_reward(name: str) -> None:
    episode = await play_in("hanging", PLANTS[name])
    assert (episode.failure, episode.reward) == (None, 0.0)
    [report] = episode.report["verifier"]
    assert report["rewards"] == {"reward": 0.0}
    assert ("no verdict" in report["log"]) == (name == "a file that hangs the tests")


BREAKS = {
    "no directory to work in": "cd /; rm -rf /app; touch /app",
    "no user": "sed -i /sandbox/d /etc/passwd",
    "no shell": "for f in sh bash; do cp /bin/false /tmp/$f; mv /tmp/$f /bin/$f; done",
    "tests that hang": "printf hang > answer.txt",
}


@pytest.mark.parametrize("verify", ["separate", "shared"])
@pytest.mark.parametrize("name", BREAKS)
async def test_an_agent_that_breaks_the_tests_gets_0(name: str, verify: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "hanging", tmp_path / "task")
    user = "user = 'sandbox'\n" if name == "no user" else ""
    (tmp_path / "task" / "task.toml").write_text(f"[verifier]\ntimeout_sec = 1\n{user}")
    [episode] = await play([bash(BREAKS[name]), SUBMIT], *harbor_tasks(tmp_path), verify=verify)
    assert (episode.failure, episode.reward) == (None, 0.0), episode
    assert "no verdict" in episode.report["verifier"][0]["log"]


async def test_a_file_that_is_handed_in_brings_no_files_beside_it(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "separate", tmp_path / "task")
    (tmp_path / "task/task.toml").write_text('artifacts = ["/app"]\n[verifier]\nenvironment_mode = "separate"\n')
    plant = "mkdir /app/tests; printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt' > /app/tests/test.sh"
    program = "chmod +x /app/tests/test.sh; cp /bin/false /tmp/test; mv /tmp/test $(command -v /usr/bin/test)"
    [episode] = await play([bash(f"{plant}; {program}"), SUBMIT], *harbor_tasks(tmp_path))
    assert (episode.failure, episode.reward) == (None, 0.0), episode


@pytest.mark.parametrize("verify", ["separate", "shared"])
async def test_tests_without_a_verdict_fail_the_episode(verify: str) -> None:
    episode = await play_in("no_reward", verify=verify)
    assert episode.reward is None
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("grade", "NoVerdictError")
    assert "the tests of no_reward gave no verdict" in episode.failure.message
    assert "no verdict\n" in episode.failure.message  # what they printed


async def test_a_healthcheck_that_fails_is_a_failure(tmp_path: Path) -> None:
    check = "[environment.healthcheck]\ncommand = 'echo sick; false'\nretries = 2\ninterval_sec = 0\n"
    [episode] = await play([SUBMIT], task_with(tmp_path, check))
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("reset", "SetupError")
    assert "failed 2 times, at last: sick" in episode.failure.message


async def test_the_time_of_the_task_ends_the_episode_and_it_is_graded(tmp_path: Path) -> None:
    row = task_with(tmp_path, "[agent]\ntimeout_sec = 100\n")
    script = [bash("printf 42 > answer.txt"), bash("echo begun; sleep 600"), SUBMIT]
    [episode] = await play(script, row, time_scale=0.04)
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TIME_LIMIT, 1.0, 2)
    assert episode.stop.is_truncation
    assert told(episode)[0].endswith(" s left]")
    assert told(episode)[1].startswith("begun\n[stopped after ")


async def test_the_tools_work_at_one_computer() -> None:
    calls = [
        bash("cd /tmp; x=5; printf 'a\nb\na\n' > f"),
        tool_call("view", path="f", first=2),
        tool_call("edit", path="f", old="a", new="c"),
        tool_call("edit", path="f", old="b\na", new="c"),
        tool_call("edit", path="sub/g", old="", new="new\n"),
        tool_call("edit", path="sub/absent", old="x", new="y"),
        bash("echo $x $PWD; cat f sub/g; false"),
        bash("echo before; sleep 600", timeout=0.5),
        bash("read line; echo up; sleep 600", background=True),
        bash("if"),
        bash("echo $x; exit 3"),
        bash("echo [$x] $PWD"),
        tool_call("bash_output", number=2),
        tool_call("bash_kill", number=1),
        tool_call("bash_output", number=1),
        SUBMIT,
    ]
    [episode] = await play(calls, *harbor_tasks(FOLDER / "plain"))
    results = told(episode)
    assert results[:9] == [
        "[no output]",
        "     2  b\n     3  a",
        "Error: ValueError: the text occurs 2 times in /tmp/f, and must occur once: give more of the lines around it",
        "--- /tmp/f\n+++ /tmp/f\n@@ -1,3 +1,2 @@\n a\n-b\n-a\n+c",
        "--- /tmp/sub/g\n+++ /tmp/sub/g\n@@ -0,0 +1 @@\n+new",
        results[5],
        "5 /tmp\na\nc\nnew\n[exit code 1]",
        "before\n[stopped after 0.5 s]",
        "[started in the background as number 1]",
    ]
    assert "absent" in results[5]
    assert "syntax error" in results[9]
    assert results[10:12] == ["5\n[the shell ended with exit code 3; its variables are lost]", "[] /tmp"]
    assert results[12] == "Error: ValueError: there is no background command 2; there are: 1"
    assert "it ended" in results[13]
    assert "it ended" in results[14]


HOG = 'python3 -c "x = []; [x.append(bytearray(1 << 24)) for _ in range(1 << 20)]"'


async def test_an_agent_that_uses_up_the_memory_of_its_box_fails_its_task_and_not_the_engine() -> None:
    processes = f"for n in 1 2 3 4; do (while :; do {HOG}; done) & done; sleep 20"
    for command in (HOG, f"echo -1000 > /proc/self/oom_score_adj; {processes}"):
        episode = await play_in("plain", command)
        assert (episode.failure, episode.reward) == (None, 0.0), episode


async def test_tests_that_hang_for_longer_than_step_timeout_are_no_failure(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "hanging", tmp_path / "task")
    (tmp_path / "task/task.toml").write_text("[verifier]\ntimeout_sec = 3\n")
    environment = TaskEnv(DockerBox(limits=LIMITS), command_timeout=0.8)
    script = ScriptedPolicy([bash("printf hang > answer.txt"), SUBMIT])
    engine = RolloutEngine(environment, script, limits=EpisodeLimits(step_timeout=6.0))
    [episode] = await engine.run(episode_specs(harbor_tasks(tmp_path), group_size=1, seed=0))
    assert (episode.failure, episode.reward) == (None, 0.0), episode


async def test_a_pool_of_another_event_loop_is_a_mistake_and_no_failed_episode() -> None:
    async with ExecutorPool(DockerBox(limits=LIMITS), max_boxes=1, warm=0) as pool:
        engine = RolloutEngine(TaskEnv(pool), ScriptedPolicy([SUBMIT]))
        with pytest.raises(ConfigurationError, match="open in another event loop"):
            await asyncio.to_thread(engine.play, harbor_tasks(FOLDER / "plain"))


async def test_a_cancelled_episode_leaves_no_box() -> None:
    started = asyncio.Event()

    def begin(messages: Any, tools: Any) -> Message:
        started.set()
        return bash("sleep 600")

    playing = asyncio.create_task(play(begin, *harbor_tasks(FOLDER / "plain")))
    await asyncio.wait_for(started.wait(), 60)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing  # and the fixture counts the containers


async def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="box must be a box such as DockerBox"):
        TaskEnv("docker")  # type: ignore[arg-type]
    wrongs: list[dict[str, Any]]
    wrongs = [{"verify": "never"}, {"time_scale": 0}, {"tools": ("shell",)}, {"command_timeout": -1}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TaskEnv(DockerBox(), **wrong)
    environment = TaskEnv(DockerBox(), tools=("bash", "submit"))
    assert [schema["function"]["name"] for schema in environment.tool_schemas()] == [
        "bash",
        "bash_output",
        "bash_kill",
        "submit",
    ]


@pytest.mark.parametrize(("command", "reward"), [("test -e /tests/test.sh", 1.0), ("echo ill; false", None)])
async def test_the_box_of_the_tests_has_a_healthcheck_of_its_own(
    command: str, reward: float | None, tmp_path: Path
) -> None:
    check = f"command = '{command}'\nretries = 2\ninterval_sec = 0\n"
    settings = f"[verifier]\nenvironment_mode = 'separate'\n[verifier.environment.healthcheck]\n{check}"
    [episode] = await play([SUBMIT], task_with(tmp_path, f"artifacts = ['/app']\n{settings}", answers="echo 1"))
    assert episode.reward == reward, episode
    if reward is None:
        assert episode.failure is not None
        assert "failed 2 times, at last: ill" in episode.failure.message


@pytest.mark.parametrize(("network", "same_box"), [("public", 1.0), ("no-network", 0.0)])
async def test_tests_with_a_network_of_their_own_run_in_a_box_of_their_own(
    network: str, same_box: float, tmp_path: Path
) -> None:
    settings = f"[verifier]\nnetwork_mode = '{network}'\n"
    row = task_with(
        tmp_path, settings, answers='test "$(cat answer.txt)" = "$(readlink /proc/self/ns/mnt)" && echo 1 || echo 0'
    )
    [episode] = await play([bash("readlink /proc/self/ns/mnt > answer.txt"), SUBMIT], row, verify="shared")
    assert (episode.failure, episode.reward) == (None, same_box), episode
