"""`TextGameEnv` plays TextArena's games; GEM's are in tests/with_adapters, since GEM needs other versions."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import numpy as np
import pytest
import textarena

from gymnast.envs import Episode, EpisodeLimits, RolloutEngine, ScriptedPolicy, StopReason
from gymnast.envs.adapters import TextGameEnv

from .episodes import say


def guessing() -> textarena.Env:
    return textarena.make("GuessTheNumber-v0-raw")


def play(factory: Any, script: Any, rows: list[dict[str, Any]] | None = None, **options: Any) -> list[Episode]:
    engine = RolloutEngine(TextGameEnv(factory, **options), ScriptedPolicy(script))
    return engine.play(rows or [{"seed": 3}], seed=0)


def bisect(conversation: Any) -> Any:
    """Guess a number from 1 to 20 by what the game has said."""
    low, high = 1, 20
    for guess, told in zip(conversation[1::2], conversation[2::2], strict=True):
        number = int(re.findall(r"\d+", guess["content"])[0])
        low, high = (number + 1, high) if "higher" in told["content"] else (low, number - 1)
    return say(f"I say [{(low + high) // 2}]")


def contents(episode: Episode) -> list[str]:
    return [str(message.get("content")) for message in [*episode.prompt, *episode.completion]]


def test_a_game_is_won_by_messages() -> None:
    [episode] = play(guessing, bisect)
    prompt, *_, last = contents(episode)
    assert prompt.startswith("You are Player 0. You are playing Guess The Number.")
    assert last == "Congratulations! You guessed the correct number."
    assert (episode.stop, episode.reward) == (StopReason.ENV_TERMINATED, 1.0)
    assert [turn.reward for turn in episode.turns[:-1]] == [0.0] * (len(episode.turns) - 1)


def test_the_model_reads_only_news_though_a_wrapper_repeats_everything() -> None:
    [raw] = play(guessing, bisect)
    [wrapped] = play(lambda: textarena.make("GuessTheNumber-v0"), bisect)
    assert len(raw.turns) == len(wrapped.turns) > 2
    assert contents(raw)[2] in ("The target number is higher.", "The target number is lower.")
    assert contents(wrapped)[2] == f"\n[Player] I say [10]\n[GAME] {contents(raw)[2]}"
    assert "I say [10]" not in contents(wrapped)[4]


def test_games_at_the_same_time_have_random_numbers_of_their_own() -> None:
    def targets(rows: list[dict[str, Any]]) -> list[str]:
        episodes = play(lambda: textarena.make("2048-v0-raw"), [say("[up]"), say("[left]"), say("[down]")] * 2, rows)
        return ["".join(contents(episode)) for episode in episodes]

    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr, call-overload]
    together = targets([{"seed": seed} for seed in (1, 2, 1)])
    assert together == [*targets([{"seed": 1}]), *targets([{"seed": 2}]), *targets([{"seed": 1}])]
    assert together[0] != together[1]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[union-attr, call-overload]


def test_a_game_without_a_seed_is_another_one_each_time() -> None:
    def boards(seed: int) -> list[str]:
        environment = TextGameEnv(lambda: textarena.make("2048-v0-raw"))
        resets = [environment.reset(seed=seed), environment.reset(), environment.reset()]
        return [str(messages[0].get("content")) for messages, _ in resets]

    found = boards(seed=1)
    assert len(set(found)) == 3
    assert boards(seed=1) == found  # as Gymnasium has it: the generator of the environment goes on


def test_a_game_that_draws_when_it_is_made_is_given_by_its_seed() -> None:
    class Numbers:
        def __init__(self) -> None:
            self.number = random.random(), np.random.random()

        def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
            return f"{self.number} {random.random()}", {}

    random.seed(5)
    before = random.getstate()
    first, second, again = (TextGameEnv(Numbers).reset(seed=seed)[0] for seed in (1, 2, 1))
    assert first == again != second
    assert random.getstate() == before


def test_an_opponent_moves_for_the_other_player() -> None:
    seen: list[str] = []

    def opponent(text: str) -> str:
        seen.append(text)
        return f"[{len(seen)}]"

    script = [say("[0]"), say("[3]"), say("[6]")]  # a column
    [episode] = play(lambda: textarena.make("TicTacToe-v0-raw"), script, players=2, opponent=opponent)
    assert (episode.stop, episode.reward) == (StopReason.ENV_TERMINATED, 1.0)
    assert len(seen) == 2
    assert "[0]" in seen[0]
    with pytest.raises(ValueError, match="a game of 2 players needs an opponent"):
        TextGameEnv(guessing, players=2)

    async def ask(text: str) -> str:
        return "[0]"

    with pytest.raises(TypeError, match="the opponent is `async def`; make it a plain function"):
        TextGameEnv(guessing, players=2, opponent=ask)  # type: ignore[arg-type]


def test_a_crash_of_the_game_fails_the_episode() -> None:
    class Broken(type(guessing())):  # type: ignore[misc]
        def step(self, action: str) -> Any:
            raise ZeroDivisionError("in the game")

    [episode] = play(Broken, bisect)
    assert episode.failure is not None
    assert episode.failure.message == "the game raised ZeroDivisionError: in the game"
    assert episode.reward is None


class Duel:
    """A game in TextArena's form, in which the model and an opponent each say one word; "hang" hangs the game."""

    goes_on = threading.Event()

    def __init__(self, *, first: int = 0, rewards: Any = None) -> None:
        self.player = first
        self.rewards = rewards
        self.said: list[str] = []

    def reset(self, num_players: int, seed: int) -> None: ...

    def get_observation(self) -> tuple[int, str]:
        return self.player, " ".join(["Speak!", *self.said])

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if action == "hang":
            self.goes_on.wait(60)
        self.said.append(action)
        self.player = 1 - self.player
        return len(self.said) == 2 or action == "give up", {}

    def close(self) -> tuple[Any, dict[int, Any]]:
        return self.rewards, {}


def test_a_slow_opponent_holds_up_no_other_game() -> None:
    both = threading.Barrier(2)

    def opponent(text: str) -> str:
        return str(both.wait(30))

    episodes = play(lambda: Duel(rewards={0: 1}), [say("hello")], [{}, {}], players=2, opponent=opponent)
    assert [episode.reward for episode in episodes] == [1.0, 1.0]


def test_a_game_that_hangs_holds_up_the_others_until_its_episode_has_failed() -> None:
    def duel(word: str, step_timeout: float) -> Episode:
        environment = TextGameEnv(lambda: Duel(rewards={0: 1}), players=2, opponent=lambda text: "bye")
        limits = EpisodeLimits(step_timeout=step_timeout)
        [episode] = RolloutEngine(environment, ScriptedPolicy([say(word)]), limits=limits).play([{}])
        return episode

    try:
        hanging, other = duel("hang", 0.2), duel("hello", 10)
    finally:
        Duel.goes_on.set()
    assert hanging.failure is not None
    assert (hanging.failure.type, other.failure, other.reward) == ("TimeoutError", None, 1.0)


@pytest.mark.parametrize(
    ("game", "opponent", "message"),
    [
        ({"rewards": None}, "bye", "the game is over and gave the model, player 0, no reward: None"),
        ({"rewards": {1: 1.0}}, "bye", "the game is over and gave the model, player 0, no reward: {1: 1.0}"),
        ({"first": 1}, "give up", "the game was over before the model's first move"),
        ({}, None, "the opponent raised AttributeError: "),
    ],
)
def test_a_game_without_an_outcome_fails_the_episode(game: dict[str, Any], opponent: Any, message: str) -> None:
    [episode] = play(lambda: Duel(**game), [say("hello")], players=2, opponent=lambda text: opponent.lower())
    assert episode.failure is not None
    assert episode.failure.type == "BrokenEnvironmentError"
    assert episode.failure.message.startswith(message)
    assert episode.reward is None
