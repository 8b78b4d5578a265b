"""Cassettes of a `CodeEnv`: code that is replayed without a box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnast.envs import CodeEnv, Episode, Message, RolloutEngine, ScriptedPolicy, tool, tool_call, tool_calls
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import ExecutorPool, LocalExecutor, ScriptedExecutor

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
