"""The games whose optimum is computed: the computation is right, and the program that trains on them works."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

from ..importing import ROOT, benchmark

NAMES = ["number", "mastermind", "bandit"]


@pytest.fixture(scope="module")
def room() -> dict[str, ModuleType]:
    names = ["beliefs", "dynamic_programming", "environments", "games", "recipes", "training"]
    return {name: benchmark(f"optimum.{name}") for name in names}


@pytest.mark.parametrize("name", NAMES)
def test_the_best_policy_earns_its_computed_value_in_the_environment(name: str, room: dict[str, ModuleType]) -> None:
    game = room["games"].GAMES[name]
    assert sum(probability for _, probability in game.tasks) == pytest.approx(1)
    played = [(game.play(task, game.best_player), probability) for task, probability in game.tasks]
    reward = sum(probability * reward for (_, reward, _), probability in played)
    success = sum(probability * success for (_, _, success), probability in played)
    turns = sum(probability * (len(messages) - 1) / 2 for (messages, _, _), probability in played)
    assert (reward, success, turns) == pytest.approx(
        tuple(map(float, room["dynamic_programming"].best_value(game.start)))
    )


@pytest.mark.parametrize("name", NAMES)
def test_random_play_earns_its_computed_value_far_below_the_optimum(name: str, room: dict[str, ModuleType]) -> None:
    game, solver = room["games"].GAMES[name], room["dynamic_programming"]
    best, drawn = solver.best_value(game.start), solver.random_value(game.start)
    assert drawn.reward < best.reward / 2
    turns = [(len(messages) - 1) / 2 for messages in game.random_games(200, seed=1)]
    assert sum(turns) / 200 == pytest.approx(float(drawn.turns), abs=0.2)


def test_no_policy_of_a_small_game_earns_more(room: dict[str, ModuleType]) -> None:
    """All 27 policies for a number from 1 to 3: a first guess, and a second one for each of the two wrong answers."""
    environments = room["environments"]
    numbers = ("1", "2", "3")

    def reward(secret: str, first: str, seconds: dict[str, str]) -> Fraction:
        answer = environments.compare(secret, first)
        return Fraction(1) if answer == "right" else Fraction(9, 10) * (seconds[answer] == secret)

    rewards = [
        sum(reward(secret, first, {"too low": low, "too high": high}) for secret in numbers) / 3
        for first, low, high in itertools.product(numbers, repeat=3)
    ]
    game = room["beliefs"].SearchBelief(
        answer=environments.compare, allowed=numbers, candidates=frozenset(numbers), moves_left=2
    )
    assert room["dynamic_programming"].best_value(game).reward == max(rewards)


@pytest.mark.parametrize(
    ("name", "moves"), [("number", ["8"]), ("mastermind", ["AA", "guess AB"]), ("bandit", ["take"])]
)
def test_an_illegal_move_ends_the_game(name: str, moves: list[str], room: dict[str, ModuleType]) -> None:
    game = room["games"].GAMES[name]
    environment = game.environment()
    environment.reset(options={"task": game.tasks[-1][0]})
    *_, last = [environment.step({"role": "assistant", "content": move}) for move in moves]
    assert (last.reward, last.terminated) == (-1.0, True)
    assert environment.metrics["success"] == 0


def test_a_run_tells_its_curve_and_its_values(room: dict[str, ModuleType]) -> None:
    game, settings = room["games"].GAMES["number"], room["recipes"].settings_of("number", "grpo", seed=1, rounds=1)
    settings |= {"random_games": 100, "warm_up": [[3, 3e-3]], "measured_every": 1}
    settings |= {"curve_episodes": 8, "final_episodes": 8}
    settings["options"] |= {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2}
    run = room["training"].train(game, settings)
    assert [point["step"] for point in run["curve"]] == [0, 1, 2]
    for values in (item[kind] for item in (*run["curve"], run) for kind in ("sampled", "greedy")):
        assert -1 <= values["reward"] <= values["success"] <= 1
        assert 1 <= round(values["turns"], 6) <= game.start.moves_left


@pytest.mark.parametrize(("reward", "code"), [(0.85, 0), (0.8, 1)])  # of 0.857
def test_a_finished_run_is_not_repeated(reward: float, code: int, room: dict[str, ModuleType], tmp_path: Path) -> None:
    values = {"reward": reward, "success": 1.0, "turns": 2.5}
    settings = room["recipes"].settings_of("number", "rloo", 1)
    both = {"sampled": values, "greedy": values}
    run = {"settings": settings, "curve": [{"step": 0, **both}], "processor_seconds": 9.0, **both}
    (tmp_path / "number-rloo-seed1.json").write_text(json.dumps(run))
    command = [sys.executable, "-m", "benchmarks.optimum", "--quick", "--games", "number", "--algorithms", "rloo"]
    command += ["--runs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == code, done.stderr
    assert f"{reward / 0.857142857:.1%}" in done.stdout
    assert ("below 95% of the optimum" in done.stderr) == bool(code)
    [written] = json.loads((tmp_path / "optimum.json").read_text())["games"]["number"]["runs"]
    assert written["curve"] == run["curve"]
    assert (tmp_path / "optimum.png").read_bytes().startswith(b"\x89PNG\r\n")
