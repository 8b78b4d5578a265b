"""The games together: each environment with its tasks, and with the belief from which its values are computed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.envs import Message

from .beliefs import BANDIT, CODE, NUMBER
from .dynamic_programming import Belief, best_move
from .environments import (
    ARMS,
    BANDIT_MOVES,
    CODES,
    NUMBERS,
    TRUTHFUL,
    GuessNumber,
    Mastermind,
    PricedBandit,
    TextGame,
)

Task = dict[str, Any]
Player = Callable[[Sequence[str]], str]
"""Chooses a move, given the environment's answers so far."""


@dataclass(frozen=True)
class Game:
    title: str
    environment: type[TextGame]
    start: Belief
    tasks: list[tuple[Task, float]]  # every possible task, with its probability

    def draw(self, count: int, seed: int) -> list[Task]:
        """Draw tasks with their probabilities."""
        rows, weights = zip(*self.tasks, strict=True)
        return random.Random(seed).choices(rows, weights, k=count)

    def training_tasks(self, seed: int) -> list[Task]:
        """The tasks in proportion to their probabilities: each once if they are equally likely."""
        if len({probability for _, probability in self.tasks}) == 1:
            return [task for task, _ in self.tasks]
        return self.draw(4096, seed)

    def play(self, task: Task, player: Player) -> tuple[list[Message], float, float]:
        """Play one game; return its conversation, its reward and its success."""
        environment = self.environment()
        messages, _ = environment.reset(options={"task": task})
        answers: list[str] = []
        reward, over = 0.0, False
        while not over:
            move: Message = {"role": "assistant", "content": player(answers)}
            replies, gained, over, _, _ = environment.step(move)
            messages += [move, *replies]
            answers.append(str(replies[0].get("content")))
            reward += gained
        environment.close()
        return messages, reward, environment.metrics["success"]

    def best_player(self, answers: Sequence[str]) -> str:
        """The best move after these answers to the best moves."""
        belief: Belief | None = self.start
        for answer in answers:
            assert belief is not None, "the game was over"
            belief = belief.outcomes(best_move(belief))[answer].belief
        assert belief is not None, "the game was over"
        return best_move(belief)

    def random_games(self, count: int, seed: int) -> Iterator[list[Message]]:
        """Conversations in which every move is drawn uniformly from all legal moves."""
        rng = random.Random(seed)
        moves = self.start.moves()
        for task in self.draw(count, seed):
            yield self.play(task, lambda answers: rng.choice(moves))[0]


def _secrets(secrets: Sequence[Any]) -> list[tuple[Task, float]]:
    return [({"secret": secret}, 1 / len(secrets)) for secret in secrets]


def _bandit_tasks() -> Iterator[tuple[Task, float]]:
    for arm, *truthful in itertools.product(ARMS, *[(True, False)] * BANDIT_MOVES):
        luck = math.prod(TRUTHFUL if is_true else 1 - TRUTHFUL for is_true in truthful)
        yield {"paying": arm, "truthful": truthful}, luck / len(ARMS)


GAMES = {
    "number": Game("Guess the number", GuessNumber, NUMBER, _secrets(NUMBERS)),
    "mastermind": Game("Mastermind", Mastermind, CODE, _secrets(CODES)),
    "bandit": Game("Bandit with priced looks", PricedBandit, BANDIT, list(_bandit_tasks())),
}
