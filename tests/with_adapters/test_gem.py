"""`TextGameEnv` plays GEM's games."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from gymnast.envs import RolloutEngine, ScriptedPolicy, StopReason
from gymnast.envs.adapters import TextGameEnv

gem: Any = importlib.import_module("gem")


def box(move: Any) -> Any:
    return {"role": "assistant", "content": f"I say \\boxed{{{move}}}."}


def bisect(conversation: Any) -> Any:
    low, high = 1, 10
    for guess, told in zip(conversation[1::2], conversation[2::2], strict=True):
        number = int(re.findall(r"boxed\{(\d+)", guess["content"])[0])
        low, high = (number + 1, high) if "higher" in told["content"] else (low, number - 1)
    return box((low + high) // 2)


def test_a_game_is_won_by_messages() -> None:
    environment = TextGameEnv(lambda: gem.make("game:GuessTheNumber-v0-easy"))
    for episode in RolloutEngine(environment, ScriptedPolicy(bisect)).play([{"seed": seed} for seed in range(3)]):
        prompt = str(episode.prompt[0].get("content"))
        assert prompt.startswith("You are playing Guess The Number.")
        assert prompt.endswith("Enter your next guess.")
        assert (episode.stop, episode.reward) == (StopReason.ENV_TERMINATED, 1.0)


def test_each_turn_has_its_reward_and_the_seed_makes_the_game() -> None:
    environment = TextGameEnv(lambda: gem.make("game:FifteenPuzzle-v0-easy"))
    script = ScriptedPolicy([box("up"), box("nowhere")])
    first, second, other = RolloutEngine(environment, script).play([{"seed": 1}, {"seed": 1}, {"seed": 2}])
    assert first.prompt == second.prompt != other.prompt
    assert "__" in str(first.prompt[0].get("content"))  # the board, which GEM keeps in info["suffix"]
    game = gem.make("game:FifteenPuzzle-v0-easy")
    game.reset(seed=1)
    rewards, over = [], False
    for move in ("up", "nowhere"):
        if not over:
            _, reward, terminated, truncated, _ = game.step(f"\\boxed{{{move}}}")
            rewards.append(reward)
            over = terminated or truncated
    assert [turn.reward for turn in first.turns] == pytest.approx(rewards)
