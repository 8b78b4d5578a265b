"""The rules of the three games as probabilities: the beliefs that `dynamic_programming.py` computes with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from .dynamic_programming import Move, Outcome
from .environments import (
    ARMS,
    BANDIT_CALLS,
    CODE_GUESSES,
    CODES,
    NUMBER_GUESSES,
    NUMBERS,
    PRICE_OF_A_GUESS,
    PRICE_OF_A_LOOK,
    TRUTHFUL,
    compare,
    pegs,
    sign,
)


@dataclass(frozen=True, kw_only=True)
class SearchBelief:
    """The secrets that agree with all answers so far; all are equally likely."""

    answer: Callable[[Any, Any], str]  # to a guess, which is the second argument; the first is the secret
    allowed: Sequence[Any]
    candidates: frozenset[Any]
    guesses_left: int
    price_paid: Fraction = Fraction()

    def moves(self) -> list[Move]:
        return [("guess", guess) for guess in self.allowed]

    def outcomes(self, move: Move) -> dict[str, Outcome]:
        _, guess = move
        agreeing: dict[str, set[Any]] = defaultdict(set)
        for secret in self.candidates:
            agreeing[self.answer(secret, guess)].add(secret)
        return {
            answer: Outcome(
                probability=Fraction(len(secrets), len(self.candidates)),
                reward=1 - self.price_paid if secrets == {guess} else Fraction(),
                success=secrets == {guess},
                belief=None if secrets == {guess} or self.guesses_left == 1 else self._after(frozenset(secrets)),
            )
            for answer, secrets in agreeing.items()
        }

    def _after(self, candidates: frozenset[Any]) -> SearchBelief:
        price = self.price_paid + _exact(PRICE_OF_A_GUESS)
        return replace(self, candidates=candidates, guesses_left=self.guesses_left - 1, price_paid=price)


@dataclass(frozen=True, kw_only=True)
class BanditBelief:
    """The probability of each arm to be the one that pays."""

    probabilities: tuple[Fraction, ...]
    calls_left: int

    def moves(self) -> list[Move]:
        return [(tool, arm) for tool in ("look", "final_answer") for arm in ARMS]

    def outcomes(self, move: Move) -> dict[str, Outcome]:
        tool, arm = move
        pays = self.probabilities[ARMS.index(arm)]
        if tool == "final_answer":
            wrong = Outcome(1 - pays, Fraction(), False, None)
            return {"right": Outcome(pays, Fraction(1), True, None), "wrong": wrong}
        return {sign(seen): self._look(arm, seen) for seen in (True, False)}

    def _look(self, arm: Any, seen: bool) -> Outcome:
        """The possible observations, each with the posterior by Bayes' rule."""
        truthful = _exact(TRUTHFUL)
        joint = [
            prior * (truthful if seen == (other == arm) else 1 - truthful)
            for other, prior in zip(ARMS, self.probabilities, strict=True)
        ]
        posterior = tuple(each / sum(joint) for each in joint)
        after = BanditBelief(probabilities=posterior, calls_left=self.calls_left - 1)
        return Outcome(Fraction(sum(joint)), -_exact(PRICE_OF_A_LOOK), False, after if after.calls_left else None)


def _exact(number: float) -> Fraction:
    return Fraction(str(number))


NUMBER = SearchBelief(answer=compare, allowed=NUMBERS, candidates=frozenset(NUMBERS), guesses_left=NUMBER_GUESSES)
CODE = SearchBelief(answer=pegs, allowed=tuple(CODES), candidates=frozenset(CODES), guesses_left=CODE_GUESSES)
BANDIT = BanditBelief(probabilities=(Fraction(1, len(ARMS)),) * len(ARMS), calls_left=BANDIT_CALLS)
