"""Cassettes: tools that are recorded, and episodes that are replayed without running them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import (
    CodeEnv,
    ConfigurationError,
    Episode,
    EpisodeSpec,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    Task,
    ToolEnv,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.threads import run_in_loop
from gymnast.sandbox import ExecutorPool, LocalExecutor, ScriptedExecutor

DISK: dict[str, str] = {}  # what the tools of `Disk` change; nothing in the environment itself
CALLS: list[str] = []  # tools and hooks that ran


@pytest.fixture(autouse=True)
def empty_disk() -> None:
    DISK.clear()
    CALLS.clear()


class Disk(ToolEnv):
    """Tools with a state outside of the environment, and rewards of every kind."""

    def reset_task(self, task: Any) -> list[dict[str, Any]]:
        DISK.clear()
        return [{"role": "user", "content": task["prompt"]}]

    @tool
    def write(self, name: str, text: str) -> int:
        """Write a file.

        Args:
            name: Its name.
            text: Its content.
        """
        CALLS.append("write")
        DISK[name] = text
        self.reward += 0.5
        self.metrics["writes"] = self.metrics.get("writes", 0.0) + 1.0
        self.report.setdefault("names", []).append(name)
        return len(DISK)

    @tool
    def read(self, name: str) -> str:
        """Read a file.

        Args:
            name: Its name.
        """
        CALLS.append("read")
        if name not in DISK:
            raise ValueError(f"no file {name}")
        return DISK[name]

    @tool(parallel=True, replay="arguments")
    def look_up(self, word: str) -> dict[str, Any]:
        """Look a word up.

        Args:
            word: The word.
        """
        CALLS.append("look_up")
        return {"word": word, "letters": len(word)}

    @tool(final=True, replay="run")
    def answer(self, text: str) -> str:
        """Answer.

        Args:
            text: The answer.
        """
        CALLS.append("answer")
        self.reward = float(text == "right")
        return "thanks"

    def reply(self, message: Message) -> list[Message] | None:
        CALLS.append("reply")
        if message.get("content") == "bye":
            return None
        self.truncated = message.get("content") == "enough"
        self.metrics["replies"] = self.metrics.get("replies", 0.0) + 1.0
        return [{"role": "user", "content": f"{len(DISK)} files"}]

    def grade(self, stop: StopReason) -> float:
        CALLS.append("grade")
        self.report["disk"] = dict(DISK)
        return 10.0 * len(DISK)


WRITE_A = tool_call("write", name="a", text="1")
WRITE_B = tool_call("write", name="b", text="2")
READ_A = tool_call("read", name="a")
HELLO: Message = {"role": "assistant", "content": "hello"}
BYE: Message = {"role": "assistant", "content": "bye"}


def play(environment: Any, *script: Message, seed: int = 0, prompt: str = "go") -> Episode:
    spec = EpisodeSpec(task=Task(id="t", row={"prompt": prompt}, seed=seed), group="t@0")
    engine = RolloutEngine(environment, ScriptedPolicy(list(script)))
    [episode] = run_in_loop(engine.run([spec]))
    return episode


def facts(episode: Episode) -> tuple[Any, ...]:
    """Everything that a replay must repeat."""
    turns = [
        (turn.observation, turn.reward, [(each.outcome, each.traceback) for each in turn.tool_calls])
        for turn in episode.turns
    ]
    return turns, episode.reward, episode.stop, episode.metrics, episode.report


def ran() -> list[str]:
    """The tools and hooks that ran since the last time."""
    found, CALLS[:] = CALLS[:], []
    return found


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
    assert lines[1]["effects"] == {"reward": 0.5, "metrics": {"writes": 1.0}, "report": {"names": ["a"]}}


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
    first = play(Clock(record=path), tool_call("now"), tool_call("now"), BYE)
    play(Clock(record=path), tool_call("now"), tool_call("now"), BYE)
    with caplog.at_level(logging.WARNING):
        again = play(Clock(replay=path), tool_call("now"), tool_call("now"), BYE)
    assert facts(again) == facts(first)
    assert [record.message for record in caplog.records if "several results" in record.message]


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


# --- the file -----------------------------------------------------------------------------------------------------

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
assert not any(each.failure for each in episodes)
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


def test_the_half_line_of_a_killed_process_costs_one_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tools.jsonl"
    play(Disk(record=path), WRITE_A, BYE)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole + lines[1][:40])  # it was killed while it wrote
    assert play(Disk(replay=path), WRITE_A, BYE).reward == 10.5
    play(Disk(record=path), WRITE_B, BYE)  # the next recording goes on behind it
    ran()
    with caplog.at_level(logging.WARNING):
        episodes = [play(Disk(replay=path), each, BYE) for each in (WRITE_A, WRITE_B)]
    assert [each.reward for each in episodes] == [10.5, 10.5]
    assert ran() == []
    assert [record.message for record in caplog.records] == [
        f"line {len(lines) + 1} of {path} is cut short, as a killed process leaves it: skipped"
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
    with pytest.raises(FileNotFoundError, match=r"there is no cassette .*tools.jsonl: record= writes one"):
        Disk(replay=path)
    path.write_text('{"cassette": 99}\n')
    for way in ("record", "replay"):
        with pytest.raises(ValueError, match="a cassette of version 99, expected 1: record it again"):
            Disk(**dict[str, Any]({way: path}))
    path.write_text("step,reward\n")
    with pytest.raises(ValueError, match="is no cassette: its first line is not"):
        Disk(replay=path)
    path.write_text('{"cassette": 1}\n{"tool": "x"}\n')
    with pytest.raises(ValueError, match=r"line 2 of .* is no recorded call"):
        Disk(replay=path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay_misses": "call"}, "replay_misses is one of .*, with replay="),
        ({"replay": "x.jsonl", "replay_misses": "skip"}, r"replay_misses is one of .* got 'skip'"),
        ({"replay": "x.jsonl", "record": "y.jsonl"}, "add replay_misses='call'"),
    ],
)
def test_an_option_without_effect_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Disk(**options)


def test_an_unknown_way_to_replay_a_tool_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a tool's replay must be one of .*, got 'never'"):
        tool(replay="never")  # type: ignore[call-overload]


# --- code ---------------------------------------------------------------------------------------------------------

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


def test_code_that_was_not_recorded_runs_in_a_box_in_which_the_earlier_code_ran(tmp_path: Path) -> None:
    path, row = tmp_path / "tools.jsonl", {"prompt": "6 times 7?", "answer": 42, "files": {"n.txt": "7"}}
    begin = tool_call("python", code="n = int(open('n.txt').read())")
    play_code(CodeEnv(LocalExecutor(), record=path), begin, tool_call("final_answer", answer="1"), row=row)
    pool = ExecutorPool(LocalExecutor(), max_boxes=1)
    environment = CodeEnv(pool, replay=path, replay_misses="call")
    episode = play_code(
        environment, begin, tool_call("python", code="6 * n"), tool_call("final_answer", answer="42"), row=row
    )
    assert [str(each.get("content")).strip() for each in episode.turns[1].observation] == ["42"]
    assert episode.reward == 1.0


def test_parallel_calls_that_were_not_recorded_wait_for_the_box(tmp_path: Path) -> None:
    class Counting(CodeEnv):
        @tool(parallel=True, replay="arguments")
        async def add_one(self, number: int) -> str | None:
            """Add one.

            Args:
                number: A number.
            """
            return (await self.box.python(f"{number} + 1")).value

    path, row = tmp_path / "tools.jsonl", {"prompt": "6 times 7?", "answer": 42}
    answer = tool_call("final_answer", answer="42")
    play_code(Counting(LocalExecutor(), record=path), tool_call("python", code="1"), answer, row=row)
    both = tool_calls(("add_one", {"number": 1}), ("add_one", {"number": 2}))
    replayed = Counting(LocalExecutor(), replay=path, replay_misses="call")
    episode = play_code(replayed, both, answer, row=row)
    assert (episode.failure, episode.reward) == (None, 1.0)
    assert [each.get("content") for each in episode.turns[0].observation] == ["2", "3"]
