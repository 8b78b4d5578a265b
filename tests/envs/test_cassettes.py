"""Cassettes: tools that are recorded, and episodes that are replayed without running them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import (
    CodeEnv,
    ConfigurationError,
    Episode,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolEnv,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import LocalExecutor, ScriptedExecutor

from .disk import BYE, CALLS, HELLO, READ_A, WRITE_A, WRITE_B, Disk, facts, play, ran
from .disk import empty_disk as empty_disk  # a fixture of every test
from .pictures import picture

SCRIPT = [
    tool_call("read", name="a"),
    tool_calls(("write", {"name": "a", "text": "1"}), ("write", {"name": "b", "text": "2"}), ("nothing", {})),
    tool_calls(("look_up", {"word": "yes"}), ("look_up", {"word": "no"}), ("read", {"name": "a"}), ("read", {})),
    HELLO,
    BYE,
]


def test_a_replay_is_the_same_episode_and_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tools.jsonl"
    plain, recorded = play(Disk(), *SCRIPT), play(Disk(record=path), *SCRIPT)
    assert facts(recorded)[1:] == facts(plain)[1:]
    assert recorded.reward == 2 * 0.5 + 2 * 10.0
    assert recorded.metrics == {"writes": 2.0, "replies": 1.0}
    assert recorded.report == {"names": ["a", "b"], "disk": {"a": "1", "b": "2"}}
    ran()
    again = play(Disk(replay=str(path)), *SCRIPT)
    assert ran() == []
    assert facts(again) == facts(recorded)
    assert [record.outcome for record in again.tool_calls] == [
        *("refused", "ok", "ok", "unknown"),
        *("ok", "ok", "ok", "bad_arguments"),
    ]


def test_the_end_that_a_hook_gave_is_replayed(tmp_path: Path) -> None:
    enough: Message = {"role": "assistant", "content": "enough"}
    recorded = play(Disk(record=tmp_path / "tools.jsonl"), enough)
    assert recorded.stop is StopReason.ENV_TRUNCATED
    assert facts(play(Disk(replay=tmp_path / "tools.jsonl"), enough)) == facts(recorded)


def test_the_first_line_has_the_version_and_every_other_line_is_a_call(tmp_path: Path) -> None:
    play(Disk(record=tmp_path / "tools.jsonl"), *SCRIPT)
    first, *lines = map(json.loads, (tmp_path / "tools.jsonl").read_text().splitlines())
    assert first == {"cassette": 1}
    assert [(line["kind"], line["name"]) for line in lines] == [
        *[("tool", "read"), ("tool", "write"), ("tool", "write"), ("tool", "look_up"), ("tool", "look_up")],
        *[("tool", "read"), ("reply", "reply"), ("reply", "reply"), ("grade", "grade")],
    ]
    assert lines[1]["arguments"] == {"name": "a", "text": "1"}
    assert lines[1]["effects"]["set"] == {"reward": 0.5, "metrics.writes": 1.0, "report.names": ["a"]}


def test_a_tool_marked_run_runs_again_so_a_new_answer_is_judged(tmp_path: Path) -> None:
    class Quiz(Disk):
        grade_in_replay = True

        def grade(self, stop: StopReason) -> float:
            return 0.25

    path = tmp_path / "tools.jsonl"
    look = tool_call("look_up", word="yes")
    wrong = play(Quiz(record=path), look, tool_call("answer", text="wrong"))
    right = play(Quiz(replay=path), look, tool_call("answer", text="right"))
    assert (wrong.reward, right.reward) == (0.25, 1.25)
    assert right.stop is StopReason.FINAL_ANSWER


def test_the_reward_of_a_recorded_call_is_added_to_that_of_a_tool_that_runs_again(tmp_path: Path) -> None:
    class Bonus(Disk):
        bonus = 1.0

        @tool(replay="run")
        def bid(self) -> str:
            """Bid."""
            self.reward += self.bonus
            return "done"

    class Higher(Bonus):
        bonus = 3.0

    Higher.__name__ = "Bonus"  # the same class after an edit
    script = [tool_calls(("bid", {}), ("write", {"name": "a", "text": "1"})), BYE]
    recorded = play(Bonus(record=tmp_path / "tools.jsonl"), *script)
    edited = play(Higher(replay=tmp_path / "tools.jsonl"), *script)
    assert [episode.turns[0].reward for episode in (recorded, edited)] == [1.5, 3.5]


def test_what_a_tool_deletes_stays_deleted(tmp_path: Path) -> None:
    class Forgetful(ToolEnv):
        def reset_task(self, task: Any) -> list[dict[str, Any]]:
            self.report["note"] = "begun"
            return [{"role": "user", "content": task["prompt"]}]

        @tool
        def forget(self) -> None:
            """Forget."""
            del self.report["note"]

    path = tmp_path / "tools.jsonl"
    for options in ({"record": path}, {"replay": path}):
        episode = play(Forgetful(**dict[str, Any](options)), tool_call("forget"), BYE)
        assert (episode.failure, episode.report) == (None, {})


def test_another_result_of_a_tool_marked_run_is_another_history(tmp_path: Path) -> None:
    class Moody(Disk):
        @tool(replay="run")
        def mood(self) -> str:
            """Tell the mood."""
            return MOODS.pop()

    MOODS = ["bad", "good", "good"]
    play(Moody(record=tmp_path / "tools.jsonl"), tool_call("mood"), WRITE_A, BYE)
    same, other = (play(Moody(replay=tmp_path / "tools.jsonl"), tool_call("mood"), WRITE_A, BYE) for _ in range(2))
    assert (same.failure, same.reward) == (None, 10.5)
    assert other.failure is not None
    assert "another history" in other.failure.message


def test_an_episode_whose_first_turn_ends_it_is_graded(tmp_path: Path) -> None:
    class Cut(ScriptedPolicy):
        """Its first turn is cut, so the environment never sees it."""

        def begin(self, spec: Any, messages: Any, tools: Any) -> Any:
            conversation: Any = super().begin(spec, messages, tools)
            act = conversation.act

            async def cut(**limits: Any) -> Any:
                return dataclasses.replace(await act(**limits), stop=StopReason.TURN_TRUNCATED)

            conversation.act = cut
            return conversation

    path = tmp_path / "tools.jsonl"
    for options in ({"record": path}, {"replay": path}):
        [episode] = RolloutEngine(Disk(**dict[str, Any](options)), Cut([HELLO])).play([{"prompt": "go"}])
        assert (episode.stop, episode.failure, episode.reward) == (StopReason.TURN_TRUNCATED, None, 0.0)
    assert ran() == ["grade"]


def test_a_row_that_no_other_process_could_find_again_is_refused(tmp_path: Path) -> None:
    for row in ({"prompt": "go", "image": [object()]}, {"prompt": "go", "image": {"check": lambda: None}}):
        with pytest.raises(ConfigurationError, match=r"the row's column 'image' holds <.* at 0x.*no replay could find"):
            RolloutEngine(Disk(record=tmp_path / "tools.jsonl"), ScriptedPolicy([BYE])).play([row])
    assert play(Disk(record=tmp_path / "tools.jsonl"), BYE, prompt=f"What is {object()}?").failure is None


def test_a_result_without_json_is_not_recorded_as_something_else(tmp_path: Path) -> None:
    class Camera(ToolEnv):
        @tool
        def look(self) -> list[Any]:
            """Take a picture."""
            return [{"type": "audio", "audio": object()}]

    with pytest.raises(
        ConfigurationError, match=r"the result of look\(\{\}\) cannot be recorded: Object of type object"
    ):
        play(Camera(record=tmp_path / "tools.jsonl"), tool_call("look"), BYE)
    assert play(Camera(), tool_call("look"), BYE).failure is None


def test_a_picture_is_kept_once_and_replayed(tmp_path: Path) -> None:
    class Camera(ToolEnv):
        @tool
        def look(self, number: int) -> list[Any]:
            """Take a picture.

            Args:
                number: Which.
            """
            return ["seen:", picture(number), picture(0)]

        def reply(self, message: Message) -> list[Message] | None:
            return None if message == BYE else [{"role": "user", "content": [{"type": "image", "image": picture(2)}]}]

    path = tmp_path / "tools.jsonl"
    script = [tool_call("look", number=0), tool_call("look", number=1), HELLO, BYE]
    recorded, again = play(Camera(record=path), *script), play(Camera(replay=path), *script)
    assert again.failure is None
    assert facts(again) == facts(recorded)
    files = {file.name for file in (tmp_path / "tools.jsonl.images").iterdir()}
    assert files == {picture(number).file_name for number in range(3)}
    (tmp_path / "tools.jsonl.images" / picture(1).file_name).unlink()
    assert "picture is lost" in str(play(Camera(replay=path), *script).failure)


def test_calls_of_parallel_tools_are_recorded_one_after_the_other(tmp_path: Path) -> None:
    class Line(ToolEnv):
        @tool(parallel=True)
        async def stand(self, name: str) -> str:
            """Stand in a line.

            Args:
                name: A name.
            """
            await asyncio.sleep(0.02 if name == "a" else 0)
            CALLS.append(name)
            return " ".join(CALLS)

    path, both = tmp_path / "tools.jsonl", tool_calls(("stand", {"name": "a"}), ("stand", {"name": "b"}))
    recorded = play(Line(record=path), both, BYE)
    assert [message.get("content") for message in recorded.turns[0].observation] == ["a", "a b"]
    assert facts(play(Line(replay=path), both, BYE)) == facts(recorded)


def test_grade_is_replayed_in_a_loop_of_ones_own_and_recorded_once(tmp_path: Path) -> None:
    class Half(Disk):
        def grade(self, stop: StopReason) -> float:
            return super().grade(stop) / 2

    for way in ("record", "replay"):
        environment = Half(**dict[str, Any]({way: tmp_path / "tools.jsonl"}))
        environment.reset(seed=0, options={"task": {"prompt": "go"}})
        environment.step(WRITE_A)
        assert environment.grade(StopReason.MAX_TURNS) == 5.0
        assert environment.report["disk"] == {"a": "1"}
    assert ran() == ["write", "grade"]
    kinds = [json.loads(line).get("kind") for line in (tmp_path / "tools.jsonl").read_text().splitlines()]
    assert kinds == [None, "tool", "grade"]


def test_a_tool_that_ran_out_of_time_does_so_in_the_replay(tmp_path: Path) -> None:
    class Slow(ToolEnv):
        @tool(timeout=0.01)
        async def wait(self) -> None:
            """Wait."""
            CALLS.append("wait")
            await asyncio.sleep(60)

    path = tmp_path / "tools.jsonl"
    recorded = play(Slow(record=path), tool_call("wait"), BYE)
    assert recorded.tool_calls[0].outcome == "timeout"
    assert facts(play(Slow(replay=path), tool_call("wait"), BYE)) == facts(recorded)
    assert ran() == ["wait"]


def test_a_stateful_tool_is_answered_only_where_its_state_is_the_recorded_one(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), WRITE_A, READ_A, BYE)
    ran()
    episode = play(Disk(replay=path), READ_A, BYE)  # a policy that forgets to write: its file cannot be there
    assert episode.stop is StopReason.FAILED
    assert episode.reward is None
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("step", "UnrecordedCallError")
    assert 'The nearest recorded call is read({"name": "a"}): another history' in episode.failure.message
    assert ran() == []


@pytest.mark.parametrize(
    ("script", "seed", "prompt", "near"),
    [
        ([tool_call("write", name="a", text="9")], 0, "go", 'write({"name": "a", "text": "1"}): other arguments'),
        ([WRITE_A], 1, "go", 'write({"name": "a", "text": "1"}): seed 0, not 1'),
        ([WRITE_A], 0, "stay", 'write({"name": "a", "text": "1"}): another task'),
        ([tool_call("look_up", word="x")], 0, "go", 'write({"name": "a", "text": "1"}): another tool'),
        ([tool_calls(("write", {"name": "a", "text": "1"}), ("write", {"name": "b", "text": "2"})), BYE], 0, "go",
         'write({"name": "b", "text": "2"}): another history'),
        ([WRITE_A, WRITE_B, HELLO], 0, "go", 'reply({"message": {"content": "bye", "role": "assistant"}}): other'),
    ],
    ids=["arguments", "seed", "task", "tool", "in one turn, not in two", "reply"],
)  # fmt: skip
def test_the_error_of_a_miss_shows_the_nearest_call(
    tmp_path: Path, script: list[Message], seed: int, prompt: str, near: str
) -> None:
    play(Disk(record=tmp_path / "tools.jsonl"), WRITE_A, WRITE_B, BYE)
    episode = play(Disk(replay=tmp_path / "tools.jsonl"), *script, seed=seed, prompt=prompt)
    assert episode.failure is not None
    assert f"The nearest recorded call is {near}" in episode.failure.message
    assert "Record the episode again, with record=" in episode.failure.message


def test_an_environment_without_recorded_calls_is_named(tmp_path: Path) -> None:
    class Other(Disk):
        pass

    play(Disk(record=tmp_path / "tools.jsonl"), WRITE_A, BYE)
    episode = play(Other(replay=tmp_path / "tools.jsonl"), WRITE_A, BYE)
    assert episode.failure is not None
    assert (
        'is write({"name": "a", "text": "1"}): another environment, Disk. Record the episode again'
        in episode.failure.message
    )


CHECK = {"run": "import solution\n6 * 7", "value": "42"}
CODE_ROW = {"prompt": "Write solution.py.", "submit": ["solution.py"], "checks": [CHECK]}
CODE_SCRIPT = [
    tool_call("python", code="open('solution.py', 'w').write('print(1)')"),
    tool_call("bash", command="cat solution.py; exit 3"),
    tool_call("final_answer", answer="done"),
]


def play_code(environment: CodeEnv, *script: Message, row: Any = CODE_ROW) -> Episode:
    try:
        [episode] = RolloutEngine(environment, ScriptedPolicy(list(script))).play([row])
    finally:
        run_in_loop(environment._pool.close())
    return episode


def test_code_is_replayed_without_a_box(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    recorded = play_code(CodeEnv(LocalExecutor(), record=path), *CODE_SCRIPT)
    assert recorded.reward == 1.0, recorded.failure
    no_box = CodeEnv(ScriptedExecutor([]), replay=path)  # it could answer no call
    again = play_code(no_box, *CODE_SCRIPT)
    assert [turn.observation for turn in again.turns] == [turn.observation for turn in recorded.turns]
    assert (again.reward, again.report) == (1.0, recorded.report)
    timing = {name for name in recorded.metrics if name.endswith("lease_seconds")}
    assert {name: value for name, value in again.metrics.items() if name not in timing} == {
        name: value for name, value in recorded.metrics.items() if name not in timing
    }
    missed = play_code(no_box, tool_call("python", code="1"), *CODE_SCRIPT)
    assert missed.failure is not None
    assert missed.failure.type == "UnrecordedCallError"


def test_code_without_checks_is_judged_anew(tmp_path: Path) -> None:
    path, row = tmp_path / "tools.jsonl", {"prompt": "6 times 7?", "answer": 42}
    look = tool_call("python", code="6 * 7")
    wrong = play_code(CodeEnv(LocalExecutor(), record=path), look, tool_call("final_answer", answer="41"), row=row)
    replayed = CodeEnv(ScriptedExecutor([]), replay=path)
    right = play_code(replayed, look, tool_call("final_answer", answer="42"), row=row)
    assert (wrong.reward, right.reward) == (0.0, 1.0)
