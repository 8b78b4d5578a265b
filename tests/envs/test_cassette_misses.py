"""Calls that a replay does not find in its cassette: the error, and how they are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymnast.envs import Message, StopReason, ToolEnv, tool, tool_call, tool_calls

from .disk import BYE, CALLS, HELLO, READ_A, WRITE_A, WRITE_B, Disk, facts, play, ran
from .disk import empty_disk as empty_disk  # a fixture of every test


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
    assert "replay_misses='call'" in episode.failure.message


def test_an_environment_without_recorded_calls_is_named(tmp_path: Path) -> None:
    class Other(Disk):
        pass

    play(Disk(record=tmp_path / "tools.jsonl"), WRITE_A, BYE)
    episode = play(Other(replay=tmp_path / "tools.jsonl"), WRITE_A, BYE)
    assert episode.failure is not None
    assert episode.failure.message.endswith("which has no call of Other")


def test_a_miss_that_is_called_finds_the_state_of_the_calls_before_it(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), WRITE_A, BYE)
    ran()
    script = [WRITE_A, READ_A, WRITE_B, BYE]
    fresh = play(Disk(), *script)
    assert ran() == ["write", "read", "write", "reply", "grade"]
    episode = play(Disk(replay=path, replay_misses="call"), *script)
    assert facts(episode)[1:] == facts(fresh)[1:]
    assert [turn.observation for turn in episode.turns] == [turn.observation for turn in fresh.turns]
    assert ran() == ["write", "read", "write", "reply", "grade"]
    assert facts(play(Disk(replay=path), *script))[2] is StopReason.FAILED  # nothing was recorded


def test_a_call_whose_result_is_lost_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), WRITE_A, BYE)
    for _ in range(2):
        play(Disk(replay=path, replay_misses="call"), WRITE_A, READ_A, BYE)
    lost = [message.partition("(")[0] for message in caplog.messages if "its result is lost: add record=" in message]
    assert lost == [f"{path} lacks {name}" for name in ("read", "reply", "grade")]


def test_with_record_the_calls_that_were_missing_are_there_the_next_time(tmp_path: Path) -> None:
    path, copy = tmp_path / "tools.jsonl", tmp_path / "copy.jsonl"
    play(Disk(record=path), WRITE_A, BYE)
    size = len(path.read_text().splitlines())
    both = Disk(replay=path, record=path, replay_misses="call")
    extended = play(both, WRITE_A, READ_A, BYE)
    assert len(path.read_text().splitlines()) == size + 3  # read, reply and grade
    play(Disk(replay=path, record=copy, replay_misses="call"), WRITE_A, READ_A, BYE)
    ran()
    for each in (path, copy):  # the other file got the whole episode
        again = play(Disk(replay=each), WRITE_A, READ_A, BYE)
        assert (again.reward, again.report, ran()) == (extended.reward, extended.report, [])


def test_a_state_that_cannot_be_restored_fails_the_episode(tmp_path: Path) -> None:
    class Clock(ToolEnv):
        @tool
        def now(self) -> int:
            """Tell the time."""
            CALLS.append("now")
            return len(CALLS)

    path = tmp_path / "tools.jsonl"
    play(Clock(record=path), tool_call("now"), BYE)
    episode = play(Clock(replay=path, replay_misses="call"), tool_call("now"), tool_call("now"), BYE)
    assert episode.failure is not None
    assert episode.failure.type == "UnrecordedCallError"
    assert "gave another result than the recorded one: " in episode.failure.message
