"""Cassettes: tools that are recorded, and episodes that are replayed without running them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import (
    ConfigurationError,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolEnv,
    tool,
    tool_call,
    tool_calls,
)

from .disk import BYE, CALLS, HELLO, WRITE_A, Disk, facts, play, ran
from .disk import empty_disk as empty_disk  # a fixture of every test

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
    assert [each.outcome for each in again.tool_calls] == [
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
    assert [(each["kind"], each["name"]) for each in lines] == [
        *[("tool", "read"), ("tool", "write"), ("tool", "write"), ("tool", "look_up"), ("tool", "look_up")],
        *[("tool", "read"), ("reply", "reply"), ("reply", "reply"), ("grade", "grade")],
    ]
    assert lines[1]["arguments"] == {"name": "a", "text": "1"}
    assert lines[1]["effects"] == {
        "reward": 0.5,
        "metrics": {"set": {"writes": 1.0}},
        "report": {"set": {"names": ["a"]}},
    }


def test_a_tool_that_is_replayed_by_arguments_may_be_called_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    yes, no = tool_call("look_up", word="yes"), tool_call("look_up", word="no")
    recorded = play(Disk(record=path), yes, WRITE_A, no, BYE)
    ran()
    episode = play(Disk(replay=path), no, WRITE_A, no, yes, BYE)
    assert ran() == []
    assert episode.reward == recorded.reward == 10.5
    assert [each.get("content") for each in episode.turns[0].observation] == ['{"word":"no","letters":2}']
    other_seed = play(Disk(replay=path), yes, tool_call("answer", text="right"), seed=7)
    assert other_seed.failure is not None  # the grade of an episode depends on all of it
    assert other_seed.failure.stage == "grade"


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

            async def cut() -> Any:
                return dataclasses.replace(await act(), stop=StopReason.TURN_TRUNCATED)

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
            return [{"type": "image", "image": object()}]

    with pytest.raises(
        ConfigurationError, match=r"the result of look\(\{\}\) cannot be recorded: Object of type object"
    ):
        play(Camera(record=tmp_path / "tools.jsonl"), tool_call("look"), BYE)
    assert play(Camera(), tool_call("look"), BYE).failure is None


def test_a_tool_marked_arguments_that_changes_the_environment_is_a_configuration_error(tmp_path: Path) -> None:
    class Wrong(ToolEnv):
        @tool(replay="arguments")
        def take(self) -> None:
            """Take."""
            self.reward = 1.0

    with pytest.raises(ConfigurationError, match=r"take is marked @tool\(replay='arguments'\).* its reward changed"):
        play(Wrong(record=tmp_path / "tools.jsonl"), tool_call("take"))


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
