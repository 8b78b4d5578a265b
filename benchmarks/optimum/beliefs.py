"""The rules of the three games as probabilities: the beliefs that `dynamic_programming.py` computes with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .dynamic_programming import Outcome
from .environments import (
    ARMS,
    BANDIT_MOVES,
    CODE_GUESSES,
    CODES,
    LOOKS_AND_CHOICES,
    NUMBER_GUESSES,
    NUMBERS,
    PRICE_OF_A_GUESS,
    PRICE_OF_A_LOOK,
    PRICE_OF_A_MISTAKE,
    TRUTHFUL,
    compare,
    pegs,
    sign,
)


@dataclass(frozen=True, kw_only=True)
class SearchBelief:
    """The secrets that agree with all answers so far; all are equally likely."""

    answer: Callable[[str, str], str]  # to a guess, which is the second argument; the first is the secret
    allowed: tuple[str, ...]
    candidates: frozenset[str]
    moves_left: int
    price_paid: Fraction = Fraction()

    def moves(self) -> Sequence[str]:
        return self.allowed

    def outcomes(self, move: str) -> dict[str, Outcome]:
        agreeing: dict[str, set[str]] = defaultdict(set)
        for secret in self.candidates:
            agreeing[self.answer(secret, move)].add(secret)
        return {
            answer: Outcome(
                probability=Fraction(len(secrets), len(self.candidates)),
                reward=1 - self.price_paid if secrets == {move} else Fraction(),
                success=secrets == {move},
                belief=None if secrets == {move} or self.moves_left == 1 else self._after(frozenset(secrets)),
            )
            for answer, secrets in agreeing.items()
        }

    def _after(self, candidates: frozenset[str]) -> SearchBelief:
        price = self.price_paid + _exact(PRICE_OF_A_GUESS)
        return replace(self, candidates=candidates, moves_left=self.moves_left - 1, price_paid=price)


@dataclass(frozen=True, kw_only=True)
class BanditBelief:
    """The probability of each arm to be the one that pays."""

    probabilities: tuple[Fraction, ...]
    moves_left: int

    def moves(self) -> Sequence[str]:
        return LOOKS_AND_CHOICES

    def outcomes(self, move: str) -> dict[str, Outcome]:
        verb, arm = move.split()
        if verb == "look":
            return {sign(seen): self._look(arm, seen) for seen in (True, False)}
        pays = self.probabilities[ARMS.index(arm)]
        wrong = Outcome(1 - pays, -_exact(PRICE_OF_A_MISTAKE), False, None)
        return {"right": Outcome(pays, Fraction(1), True, None), "wrong": wrong}

    def _look(self, arm: str, seen: bool) -> Outcome:
        """The possible observations, each with the posterior by Bayes' rule."""
        truthful = _exact(TRUTHFUL)
        joint = [
            prior * (truthful if seen == (other == arm) else 1 - truthful)
            for other, prior in zip(ARMS, self.probabilities, strict=True)
        ]
        posterior = tuple(probability / sum(joint) for probability in joint)
        after = BanditBelief(probabilities=posterior, moves_left=self.moves_left - 1)
        return Outcome(Fraction(sum(joint)), -_exact(PRICE_OF_A_LOOK), False, after if after.moves_left else None)


def _exact(number: float) -> Fraction:
    return Fraction(str(number))


NUMBER = SearchBelief(answer=compare, allowed=NUMBERS, candidates=frozenset(NUMBERS), moves_left=NUMBER_GUESSES)
CODE = SearchBelief(answer=pegs, allowed=CODES, candidates=frozenset(CODES), moves_left=CODE_GUESSES)
BANDIT = BanditBelief(probabilities=(Fraction(1, len(ARMS)),) * len(ARMS), moves_left=BANDIT_MOVES)
