"""Three games whose best policy can be computed: environments as a user would write them, without PyTorch.

- `GuessNumber`: a number from 1 to 7, with the answers "too low" and "too high".
- `Mastermind`: a code of two pegs in four colours, with black and white pegs as answers.
- `PricedBandit`: one of three arms pays; a look at an arm has a price, and sometimes misleads.

The prompt says nothing about a game: its rules are learned from rewards alone. `beliefs.py` has the same rules as
probabilities, and `tests/project/test_optimum.py` compares both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from gymnast.envs import Message, ToolEnv, tool

NUMBERS = range(1, 8)
NUMBER_GUESSES = 4

COLOURS = "ABCD"
CODES = ["".join(pegs) for pegs in itertools.product(COLOURS, repeat=2)]
CODE_GUESSES = 3

PRICE_OF_A_GUESS = 0.1  # each guess before the right one takes this from the reward of 1

Arm = Literal[1, 2, 3]
ARMS = get_args(Arm)
BANDIT_CALLS = 4
PRICE_OF_A_LOOK = 0.05
TRUTHFUL = 0.8  # the share of looks that tell the truth


class Search(ToolEnv):
    """Find a secret. The reward is 1 for the right guess, less a price for each guess before it."""

    secret: Any
    guesses_left: int
    price_paid: float

    def begin(self, secret: Any, guesses: int) -> list[Message]:
        self.secret, self.guesses_left, self.price_paid = secret, guesses, 0.0
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": "Play."}]

    def judge(self, guess: Any, allowed: Sequence[Any]) -> None:
        if self.terminated or guess not in allowed:
            raise ValueError("the game is over" if self.terminated else f"allowed are {allowed[0]} to {allowed[-1]}")
        self.guesses_left -= 1
        if guess == self.secret:
            self.reward = 1 - self.price_paid
            self.metrics["success"] = 1.0
        self.price_paid += PRICE_OF_A_GUESS
        self.terminated = guess == self.secret or self.guesses_left == 0


class GuessNumber(Search):
    """A row has the `secret`, one of `NUMBERS`."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        return self.begin(task["secret"], NUMBER_GUESSES)

    @tool
    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        self.judge(number, NUMBERS)
        return compare(self.secret, number)


class Mastermind(Search):
    """A row has the `secret`, one of `CODES`."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        return self.begin(task["secret"], CODE_GUESSES)

    @tool
    def guess(self, code: str) -> str:
        """Guess the code.

        Args:
            code: The guess.
        """
        self.judge(code, CODES)
        return pegs(self.secret, code)


class PricedBandit(ToolEnv):
    """Choose the arm that pays. A row has the `paying` arm, and for each look in turn whether it is `truthful`."""

    paying: int
    truthful: list[bool]
    calls_left: int

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.paying, self.truthful, self.calls_left = task["paying"], list(task["truthful"]), BANDIT_CALLS
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": "Play."}]

    @tool
    def look(self, arm: Arm) -> str:
        """Ask whether an arm pays.

        Args:
            arm: The arm.
        """
        if self.terminated:
            raise ValueError("the game is over")
        self.calls_left -= 1
        self.terminated = self.calls_left == 0
        self.reward -= PRICE_OF_A_LOOK
        truth = arm == self.paying
        return sign(truth if self.truthful[BANDIT_CALLS - 1 - self.calls_left] else not truth)

    @tool(final=True)
    def final_answer(self, arm: Arm) -> str:
        """Choose an arm, which ends the game.

        Args:
            arm: The arm.
        """
        if self.terminated:
            raise ValueError("the game is over")
        self.metrics["success"] = float(arm == self.paying)
        self.reward += self.metrics["success"]
        return "right" if arm == self.paying else "wrong"


def compare(secret: int, guess: int) -> str:
    return "right" if guess == secret else "too low" if guess < secret else "too high"


def pegs(secret: str, guess: str) -> str:
    """Black pegs: the right colour in the right place; white pegs: a colour in another place."""
    if guess == secret:
        return "right"
    black = sum(ours == theirs for ours, theirs in zip(secret, guess, strict=False))
    common = sum(min(secret.count(colour), guess.count(colour)) for colour in set(guess))
    return f"{black} black {common - black} white"


def sign(pays: bool) -> str:
    return "pays" if pays else "does not pay"
