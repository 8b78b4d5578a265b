"""Cassettes as files: writing by many processes, broken files, several results of one call."""

from __future__ import annotations

import json
import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import ToolEnv, tool, tool_call

from .disk import BYE, CALLS, READ_A, WRITE_A, WRITE_B, Disk, facts, play, ran
from .disk import empty_disk as empty_disk  # a fixture of every test


def test_of_several_results_of_one_call_the_first_counts_with_what_followed_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Clock(ToolEnv):
        @tool
        def now(self) -> int:
            """Tell the time."""
            CALLS.append("now")
            return len(CALLS)

    path = tmp_path / "tools.jsonl"
    script = [tool_call("now"), tool_call("now"), BYE]
    first = play(Clock(record=path), *script)
    play(Clock(record=path), *script)
    with caplog.at_level(logging.WARNING):
        again = play(Clock(replay=path), *script)
    assert facts(again) == facts(first)
    assert [record.message for record in caplog.records if "several results" in record.message]


def dictionary(meaning: str) -> type[ToolEnv]:
    """An environment, as a file of this version has it."""

    class Dictionary(ToolEnv):
        @tool
        def look_up(self, word: str) -> str:
            """Look up a word.

            Args:
                word: The word.
            """
            return meaning

        @tool
        def spell(self, word: str) -> str:
            """Spell a word.

            Args:
                word: The word.
            """
            return "-".join(word)

    return Dictionary


def changed(meaning: str) -> type[ToolEnv]:
    class Dictionary(dictionary(meaning)):  # type: ignore[misc]
        @tool
        def look_up(self, word: str) -> str:
            """Look up a word.

            Args:
                word: The word.
            """
            return meaning.upper()

    return Dictionary


def test_a_replay_names_a_tool_that_has_changed_since_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tools.jsonl"
    script = [tool_call("look_up", word="sea"), tool_call("spell", word="sea"), tool_call("look_up", word="sea"), BYE]
    recorded = play(dictionary("water")(record=path), *script)
    assert facts(play(dictionary("water")(replay=path), *script)) == facts(recorded)
    assert caplog.messages == []
    for _ in range(2):
        assert facts(play(changed("water")(replay=path), *script)) == facts(recorded)
    [message] = caplog.messages
    assert message.startswith(f"{path} has results of look_up from before its description, signature or source changed")


HERMIT = """
from gymnast.envs import ToolEnv, tool

class Hermit(ToolEnv):
    @tool
    def wait(self) -> str:
        'Wait.'
        return "nothing came"
"""


def test_a_tool_whose_source_is_not_found_is_not_said_to_have_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a host, which gets a class without its file."""
    (tmp_path / "hermit.py").write_text(HERMIT)
    without: dict[str, Any] = {"__name__": "hermit"}
    exec(HERMIT, without)
    classes = [runpy.run_path(str(tmp_path / "hermit.py"))["Hermit"], without["Hermit"]]
    for number, (first, then) in enumerate(zip(classes, reversed(classes), strict=True)):
        path = tmp_path / f"{number}.jsonl"
        recorded = play(first(record=path), tool_call("wait"), BYE)
        assert facts(play(then(replay=path), tool_call("wait"), BYE)) == facts(recorded)
    assert caplog.messages == []


WRITER = """
import sys
from gymnast.envs import RolloutEngine, ScriptedPolicy, ToolEnv, tool_call

def shout(text: str) -> str:
    '''Shout.

    Args:
        text: Words.
    '''
    return text.upper() * 500

rows = [{"prompt": f"{sys.argv[2]}-{index}"} for index in range(40)]
call = lambda messages: tool_call("shout", text=messages[0]["content"])
policy = ScriptedPolicy(lambda messages: call(messages) if len(messages) < 8 else "bye")
episodes = RolloutEngine(ToolEnv([shout], record=sys.argv[1]), policy).play(rows)
assert not any(episode.failure for episode in episodes)
"""


def test_episodes_and_processes_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    commands = [[sys.executable, "-c", WRITER, str(path), name] for name in ("one", "two", "three")]
    writers = [subprocess.Popen(command) for command in commands]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert first == {"cassette": 1}
    assert len(lines) == 3 * 40 * 4
    assert {line["content"] for line in lines} == {
        f"{name}-{index}".upper() * 500 for name in ("one", "two", "three") for index in range(40)
    }


SETS = '''
import sys
from gymnast.envs import RolloutEngine, ScriptedPolicy, ToolEnv, tool_call

def count(words: set[str]) -> int:
    """Count.

    Args:
        words: Words.
    """
    return len(words)

script = [tool_call("count", words=["one", "two", "three", "four", "five", "six"]), "bye"]
rows = [{"prompt": "go", "words": {"seven", "eight", "nine", "ten"}}]
[episode] = RolloutEngine(ToolEnv([count], **{sys.argv[1]: sys.argv[2]}), ScriptedPolicy(script)).play(rows)
assert not episode.failure, episode.failure
'''


def test_sets_are_found_again_by_another_process(tmp_path: Path) -> None:
    for seed, way in enumerate(("record", "replay")):
        command = [sys.executable, "-c", SETS, way, str(tmp_path / "tools.jsonl")]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=True, timeout=120)


def test_a_recording_without_calls_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tools.jsonl"
    play(ToolEnv(record=path), BYE)
    assert play(ToolEnv(replay=path), BYE).failure is None


def test_a_broken_line_costs_one_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), WRITE_A, BYE)
    whole = path.read_bytes() + b'{"tool": "x"}\n5\n'
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole + lines[1][:40])  # it was killed while it wrote
    assert play(Disk(replay=path), WRITE_A, BYE).reward == 10.5
    play(Disk(record=path), WRITE_B, BYE)  # the next recording goes on behind it
    ran()
    with caplog.at_level(logging.WARNING):
        episodes = [play(Disk(replay=path), write, BYE) for write in (WRITE_A, WRITE_B)]
    assert [episode.reward for episode in episodes] == [10.5, 10.5]
    assert ran() == []
    assert [message.partition(" (")[0] for message in caplog.messages[-3:]] == [
        f"skipped line {number} of {path}" for number in (len(lines) - 1, len(lines), len(lines) + 1)
    ]


def test_a_cassette_that_is_recorded_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), WRITE_A, BYE)
    assert play(Disk(replay=path), WRITE_A, BYE).failure is None
    old = path.read_text()
    path.unlink()
    play(Disk(record=path), WRITE_B, READ_A, BYE)
    path.write_text(path.read_text())
    assert len(path.read_text()) > len(old)
    assert play(Disk(replay=path), WRITE_A, BYE).failure is not None
    assert play(Disk(replay=path), WRITE_B, READ_A, BYE).failure is None


def test_a_wrong_file_is_refused_when_the_environment_is_made(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    path.write_text('{"cassette": 99}\n')
    for way in ("record", "replay"):
        with pytest.raises(ValueError, match="a cassette of version 99, expected 1: record it again"):
            Disk(**dict[str, Any]({way: path}))
    path.write_text("step,reward\n")
    with pytest.raises(ValueError, match="is no cassette: its first line is not"):
        Disk(replay=path)


def test_a_cassette_cannot_be_recorded_and_replayed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), BYE)
    with pytest.raises(ValueError, match="replay= answers from one: give one of them"):
        Disk(record=path, replay=path)


def test_an_unknown_way_to_replay_a_tool_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a tool's replay must be one of .*, got 'never'"):
        tool(replay="never")  # type: ignore[call-overload]
