"""`gymnast eval` and `gymnast compare`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gymnast.envs import StopReason
from gymnast.records import Run as RunOfFolder
from gymnast.records.evaluations.comparison import sign_flip_test
from gymnast.records.evaluations.summary import summary_of
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

from .made_runs import episode
from .running import Run

GAME = """
from pathlib import Path
from gymnast.envs import BrokenEnvironmentError, ToolEnv, tool, tool_call

rows = [{"number": number} for number in range(6)]

class Guess(ToolEnv):
    def reset_task(self, task):
        self.number = task["number"]
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": f"Guess from 0 to {self.number}."}]

    @tool
    def peek(self) -> int:
        '''Look at the number.'''
        if Path("blind").exists():
            raise LookupError("it is dark")
        return self.number

    @tool(final=True)
    def answer(self, number: int) -> str:
        '''Answer.

        Args:
            number: The number.
        '''
        if Path("down").exists() and self.number > 2:
            raise BrokenEnvironmentError("the database is down")
        self.reward = self.metrics["success"] = float(number == self.number)
        return ""

def always_3(messages):
    return tool_call("peek") if len(messages) == 1 else tool_call("answer", number=3)

def oracle(messages):
    return tool_call("answer", number=int(messages[0]["content"].split()[-1][:-1]))
"""


@pytest.fixture
def game(tmp_path: Path) -> Path:
    (tmp_path / "guessing.py").write_text(GAME)
    return tmp_path


EVAL = ["eval", "guessing.py:Guess", "--tasks", "guessing.py:rows"]


def test_a_summary(run: Run, game: Path) -> None:
    (game / "blind").touch()
    summary = run(*EVAL, "--policy", "guessing.py:always_3", "-k", 2, "--json").json
    assert (summary["episodes"], summary["tasks"], summary["failed"]) == (12, 6, 0)
    assert summary["pass@1"] == summary["pass@2"] == pytest.approx(1 / 6)
    assert summary["pass@2/low"] < 1 / 6 < summary["pass@2/high"]
    assert summary["stop"] == {"final_answer": 12}
    assert summary["tools"]["peek"]["failed"] == 12
    assert "it is dark" in summary["tools"]["peek"]["error"]
    assert summary["settings"]["rows"] == "guessing.py:rows"


def test_an_evaluation_is_looked_at_like_a_training(run: Run, game: Path) -> None:
    (game / "blind").touch()
    run(*EVAL, "--policy", "guessing.py:always_3", "-k", 2)
    first, tasks, *others = run("why", "evals/Guess-always_3").out.splitlines()
    line = 1 + GAME.splitlines().index('            raise LookupError("it is dark")')
    assert first.startswith(
        "evals/Guess-always_3: pass@1 is 17%, the reward 0.167: 12 of 12 calls of peek end with the "
    )
    assert f"it is dark, at {game}/guessing.py:{line}, in peek; see evals/Guess-always_3/view.html#episode=" in first
    assert tasks.startswith("1 of 6 tasks are always solved, 5 never: 'Guess from 0 to ")
    assert not any("spread" in line or "step" in line for line in others)
    assert run("view", "evals/Guess-always_3", "--json").json["episodes"] == 12
    assert run("export", "evals/Guess-always_3", "--to", "atif").out == "evals/Guess-always_3/atif: 12 episodes\n"
    exported = [json.loads(path.read_text()) for path in (game / "evals" / "Guess-always_3" / "atif").iterdir()]
    assert {trace["agent"]["model_name"] for trace in exported} == {"guessing.py:always_3"}
    assert (
        "evals' has no metrics.jsonl and no episodes.jsonl. It holds runs, such as evals/Guess"
        in run("why", "evals").err
    )


def test_the_table_for_people(run: Run, game: Path) -> None:
    outcome = run(*EVAL, "--policy", "guessing.py:oracle", "-n", 2, "--price", 1, 2)
    assert outcome.code == 0
    for text in (
        "2 of 2 tasks, 0 failed",
        "pass@1",
        "100.0%",
        "final_answer 2",
        "gymnast view evals/Guess-oracle shows",
    ):
        assert text in outcome.out


def test_an_evaluation_goes_on_where_it_ended(run: Run, game: Path) -> None:
    (game / "down").touch()
    interrupted = run(*EVAL, "--policy", "guessing.py:oracle", "--json")
    assert (interrupted.code, interrupted.json["failed"]) == (1, 3)
    assert list(interrupted.json["failures"].values()) == [3]
    path = game / "evals" / "Guess-oracle" / "evaluations.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:40])  # as a killed process leaves it
    (game / "down").unlink()
    resumed = run(*EVAL, "--policy", "guessing.py:oracle", "--resume", "--json")
    assert (resumed.code, resumed.json["episodes"], resumed.json["pass@1"]) == (0, 6, 1.0)
    assert len(path.read_text().splitlines()) == 6  # those that failed, and the half line, have left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "evals/Guess-oracle exists: --resume plays what is missing in it, --output names another folder"),
        (["--resume", "-k", 2], "holds another evaluation: samples was 1 and is 2"),
        (["--resume", "-o", "."], ". does not hold an evaluation: `gymnast eval` writes them"),
        (["-o", "guessing.py"], "guessing.py is a file: --output names a folder"),
        (["--model", "m"], "give --model NAME (and --url for a model of a server), or --policy SCRIPT"),
        (["--temperature", 0], "--temperature and --max-tokens are for a model"),
        (["--max-tokens", 9], "--temperature and --max-tokens are for a model"),
        (["--request", "{}"], "--request and --requests-per-minute are for a server: give its --url"),
        (["--price", "cheap", "dear"], "Invalid value for '--price'"),
    ],
)
def test_arguments_that_contradict(run: Run, game: Path, arguments: list[str], message: str) -> None:
    run(*EVAL, "--policy", "guessing.py:oracle")
    outcome = run(*EVAL, "--policy", "guessing.py:oracle", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_two_evaluations_are_compared_task_by_task(run: Run, game: Path) -> None:
    run(*EVAL, "--policy", "guessing.py:always_3", "-o", "first")
    run(*EVAL, "--policy", "guessing.py:oracle", "-n", 5, "-o", "second")
    comparison = run("compare", "first", "second", "--json").json
    assert comparison["tasks"] == 5
    assert comparison["pass@1"]["difference"] == pytest.approx(0.8)
    assert comparison["pass@1"]["p"] == pytest.approx(2 / 16)  # four tasks changed: two of their 2^4 signs are as far
    assert "+0.800" in run("compare", "first", "second").out


def test_one_task_gives_no_interval(run: Run, game: Path) -> None:
    run(*EVAL, "--policy", "guessing.py:always_3", "-n", 1, "-o", "first")
    run(*EVAL, "--policy", "guessing.py:oracle", "-n", 1, "-o", "second")
    comparison = run("compare", "first", "second", "--json").json
    assert (comparison["reward"]["low"], comparison["reward"]["high"]) == (None, None)
    assert run("compare", "first", "second").code == 0


def test_a_broken_line_of_results_costs_its_episode(run: Run, game: Path) -> None:
    run(*EVAL, "--policy", "guessing.py:oracle", "-o", "first")
    run(*EVAL, "--policy", "guessing.py:always_3", "-o", "second")
    path = game / "second" / "evaluations.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1][:100] + "\n", *lines[2:]]))
    compared = run("compare", "first", "second", "--json")
    assert compared.json["tasks"] == 5
    assert "skipped line 2 of second/evaluations.jsonl (ValueError: " in compared.err
    resumed = run(*EVAL, "--policy", "guessing.py:always_3", "-o", "second", "--resume", "--json")
    assert (resumed.code, resumed.json["episodes"]) == (0, 6)


def test_greedy_episodes_of_one_task_are_said_to_be_equal(run: Run, game: Path) -> None:
    run(*EVAL, "--policy", "guessing.py:oracle", "-k", 2, "-o", "greedy")
    summary = summary_of(RunOfFolder(game / "greedy").evaluated(), temperature=0.0)
    assert summary["notes"] == [
        "at temperature 0 the episodes of a task are equal, or nearly: one sample of a task says as much"
    ]


ENDLESS = """
from gymnast.envs import ToolEnv, tool, tool_call

rows = [{}, {}]

class Endless(ToolEnv):
    def reset_task(self, task):
        return [{"role": "user", "content": "Wait."}]

    @tool
    def wait(self) -> str:
        '''Wait for the next day.'''
        return "nothing happens"

def waits(messages):
    return tool_call("wait")
"""
WAITING = ("endless.py:Endless", "--tasks", "endless.py:rows", "--policy", "endless.py:waits")


def test_an_episode_that_never_ends_is_cut_after_100_turns(run: Run, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    outcome = run("eval", *WAITING)
    assert outcome.code == 0
    assert "2 of 2 episodes were cut after 100 turns" in outcome.out
    assert "100% of the episodes are cut by max_turns: raise max_turns" in run("why", "evals/Endless-waits").out
    summary = run("eval", *WAITING, "--max-turns", 3, "-o", "short", "--json").json
    assert (summary["stop"], summary["turns"], summary["settings"]["max_turns"]) == ({"max_turns": 2}, 3, 3)
    assert "the episode was cut after 100 turns" in run("play", *WAITING).out


def test_zero_lifts_the_bound_of_turns(run: Run, tmp_path: Path) -> None:
    until = ENDLESS.replace('tool_call("wait")', 'tool_call("wait") if len(messages) < 250 else "enough"')
    (tmp_path / "endless.py").write_text(until)
    summary = run("eval", *WAITING, "--max-turns", 0, "--json").json
    assert summary["stop"] == {"model_stopped": 2}
    assert summary["turns"] > 100
    assert "stop reason model_stopped" in run("play", *WAITING, "--max-turns", 0).out


def test_a_success_that_only_successes_set(run: Run, game: Path) -> None:
    (game / "guessing.py").write_text(
        GAME.replace('self.metrics["success"] = 0.0', "pass").replace(
            'self.reward = self.metrics["success"] = float(number == self.number)',
            'if number == self.number: self.metrics["success"] = 1.0',
        )
    )
    run(*EVAL, "--policy", "guessing.py:oracle", "-n", 3)
    summary = run(*EVAL, "--policy", "guessing.py:always_3", "--json").json
    assert summary["pass@1"] == pytest.approx(1 / 6)
    [note] = summary["notes"]
    assert note.startswith("5 of 6 episodes have no metric 'success' and count as failures")
    summary = run(*EVAL, "--policy", "guessing.py:always_3", "-n", 3, "-o", "never", "--json").json
    assert summary["notes"] == [
        "there is no pass@k: no episode has a metric 'success', and success_reward is not given"
    ]
    comparison = run("compare", "evals/Guess-oracle", "never", "--json").json
    assert comparison["pass@1"]["difference"] == -1


def test_an_overlong_prompt_is_not_said_to_count_as_a_failure() -> None:
    played, overlong = episode(), episode(member=1, stop=StopReason.CONTEXT_OVERFLOW)
    played.metrics["success"] = 1.0
    overlong.turns.clear()
    summary = summary_of([played, overlong])
    assert (summary["pass@1"], summary["notes"]) == (1.0, [])


def test_evaluations_of_other_tasks_are_not_compared(run: Run, game: Path) -> None:
    (game / "others.json").write_text('[{"number": 77}]')
    run(*EVAL, "--policy", "guessing.py:oracle", "-o", "first")
    run(*EVAL[:2], "--tasks", "others.json", "--policy", "guessing.py:oracle", "-o", "second")
    assert "have no task in common" in run("compare", "first", "second").err


def test_random_signs_estimate_the_test_with_all_signs() -> None:
    difference_T = np.random.default_rng(1).normal(0.3, 1, size=14)
    exact = sign_flip_test(difference_T)
    drawn = sign_flip_test(np.concatenate([difference_T, np.zeros(1)]))  # a task without a difference changes nothing
    assert drawn == pytest.approx(exact, abs=0.02)


def test_a_model_that_is_loaded_here(run: Run, game: Path) -> None:
    tokenizer = make_tiny_tokenizer([])
    make_tiny_model(tokenizer).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    summary = run(*EVAL, "--model", "tiny", "-n", 2, "-k", 2, "--max-tokens", 8, "--json").json
    assert (summary["episodes"], summary["failed"]) == (4, 0)
    assert 0 < summary["tokens"]["answer"] <= 32
    played = RunOfFolder(game / "evals" / "Guess-tiny")
    ids = {str(token) for episode in played.evaluated() for trace in episode.traces for token in trace.ids}
    assert ids
    assert ids <= played.tokens.keys()  # the page needs no tokenizer
