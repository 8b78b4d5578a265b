"""Three games whose best policy can be computed: environments as a user would write them, without PyTorch.

- `GuessNumber`: a number from 1 to 7, with the answers "too low" and "too high".
- `Mastermind`: a code of two pegs in three colours, with black and white pegs as answers.
- `PricedBandit`: one of three arms pays; a look at an arm has a price, and sometimes misleads.

The model writes its move and nothing else. The prompt says nothing about a game: its rules are learned from rewards
alone. `beliefs.py` has the same rules as probabilities, and `tests/programs/test_optimum.py` compares both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gymnast.envs import Environment, Message, StepResult

NUMBERS = tuple(str(number) for number in range(1, 8))
NUMBER_GUESSES = 4

COLOURS = "ABC"
CODES = tuple("".join(pegs) for pegs in itertools.product(COLOURS, repeat=2))
CODE_GUESSES = 4

PRICE_OF_A_GUESS = 0.1  # each guess before the right one takes this from the reward of 1

ARMS = "ABC"
LOOKS_AND_CHOICES = tuple(f"{verb} {arm}" for verb in ("look", "take") for arm in ARMS)
BANDIT_MOVES = 3
PRICE_OF_A_LOOK = 0.03
PRICE_OF_A_MISTAKE = 0.5  # of taking an arm that does not pay
TRUTHFUL = 0.9  # the share of looks that tell the truth

PRICE_OF_AN_ILLEGAL_MOVE = 1.0


class Reply(NamedTuple):
    """The game's reply to a legal move."""

    answer: str
    reward: float
    over: bool


class TextGame(Environment):
    """A game of at most `moves_left` moves. An illegal move ends it."""

    allowed: Sequence[str]
    moves_left: int

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        super().reset(seed=seed)
        self.begin(self.task_of(options))
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": "Play."}], {}

    def step(self, action: Message) -> StepResult:
        move = action.get("content")
        if move not in self.allowed:
            return StepResult([], -PRICE_OF_AN_ILLEGAL_MOVE, True, False, {})
        self.moves_left -= 1
        answer, reward, over = self.reply(str(move))
        return StepResult([{"role": "user", "content": answer}], reward, over or self.moves_left == 0, False, {})

    def begin(self, task: Mapping[str, Any]) -> None:
        """Begin the game of this row, and set `moves_left`."""
        raise NotImplementedError

    def reply(self, move: str) -> Reply:
        raise NotImplementedError


class Search(TextGame):
    """Find a secret. The reward is 1 for the right guess, less a price for each guess before it."""

    guesses: int
    compare: Callable[[str, str], str]
    secret: str
    price_paid: float

    def begin(self, task: Mapping[str, Any]) -> None:
        self.secret, self.moves_left, self.price_paid = task["secret"], self.guesses, 0.0

    def reply(self, move: str) -> Reply:
        right = move == self.secret
        self.metrics["success"] = float(right)
        reward = 1 - self.price_paid if right else 0.0
        self.price_paid += PRICE_OF_A_GUESS
        return Reply(type(self).compare(self.secret, move), reward, right)


def compare(secret: str, guess: str) -> str:
    return "right" if guess == secret else "too low" if int(guess) < int(secret) else "too high"


def pegs(secret: str, guess: str) -> str:
    """Black pegs: the right colour in the right place; white pegs: a colour in another place."""
    if guess == secret:
        return "right"
    black = sum(ours == theirs for ours, theirs in zip(secret, guess, strict=True))
    common = sum(min(secret.count(colour), guess.count(colour)) for colour in set(guess))
    return " ".join(["black"] * black + ["white"] * (common - black)) or "none"


class GuessNumber(Search):
    """A row has the `secret`, one of `NUMBERS`."""

    allowed, guesses, compare = NUMBERS, NUMBER_GUESSES, compare


class Mastermind(Search):
    """A row has the `secret`, one of `CODES`."""

    allowed, guesses, compare = CODES, CODE_GUESSES, pegs


class PricedBandit(TextGame):
    """Take the arm that pays. A row has the `paying` arm, and for each look in turn whether it is `truthful`."""

    allowed = LOOKS_AND_CHOICES
    paying: str
    truthful: list[bool]

    def begin(self, task: Mapping[str, Any]) -> None:
        self.paying, self.truthful, self.moves_left = task["paying"], list(task["truthful"]), BANDIT_MOVES

    def reply(self, move: str) -> Reply:
        verb, arm = move.split()
        pays = arm == self.paying
        if verb == "take":
            self.metrics["success"] = float(pays)
            return Reply("right" if pays else "wrong", 1.0 if pays else -PRICE_OF_A_MISTAKE, over=True)
        return Reply(sign(pays if self.truthful.pop(0) else not pays), -PRICE_OF_A_LOOK, over=False)


def sign(pays: bool) -> str:
    return "pays" if pays else "does not pay"
