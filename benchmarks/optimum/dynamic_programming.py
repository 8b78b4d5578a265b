"""The best possible policy of a small game, by dynamic programming over beliefs, in exact fractions.

A belief is everything that a player knows, with the remaining budget. It is a sufficient statistic: the value of the
best policy from belief b follows from those of the next beliefs by Bellman's recursion,

    V(b) = max over moves m of  sum over answers o of  P(o | b, m) * (r(b, m, o) + V(b after m and o)),

and V = 0 where the game is over. Each move takes one from the budget, so the recursion ends. The policy that draws
its moves uniformly has the same recursion, with the mean over moves in place of the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple, Protocol


class Belief(Hashable, Protocol):
    """Everything that a player knows: the probabilities of the secrets, and the number of moves left."""

    def moves(self) -> Sequence[str]: ...

    def outcomes(self, move: str) -> Mapping[str, Outcome]:
        """The outcomes of a move, by the answer that the player reads; their probabilities add up to 1."""
        ...


class Outcome(NamedTuple):
    probability: Fraction
    reward: Fraction
    success: bool
    belief: Belief | None  # afterwards; None: the game is over


class Value(NamedTuple):
    """Expectations over the rest of the game, in the order in which a policy prefers them."""

    reward: Fraction
    success: Fraction
    turns: Fraction


@cache
def best_value(belief: Belief) -> Value:
    """The value of the best policy; among equal rewards, that of the higher success."""
    return max(value_of(belief, move) for move in belief.moves())


def best_move(belief: Belief) -> str:
    return max(belief.moves(), key=lambda move: value_of(belief, move))


def value_of(belief: Belief, move: str) -> Value:
    """The value of a move, and of the best policy after it."""
    return _expected(belief, move, best_value)


@cache
def random_value(belief: Belief) -> Value:
    """The value of moves that are drawn uniformly."""
    values = [_expected(belief, move, random_value) for move in belief.moves()]
    return Value(*(sum(component, Fraction()) / len(values) for component in zip(*values, strict=True)))


def _expected(belief: Belief, move: str, value: Callable[[Belief], Value]) -> Value:
    """The expectation over the answers to a move, of its reward and of the value of the belief after it."""
    reward = success = turns = Fraction()
    for outcome in belief.outcomes(move).values():
        after = value(outcome.belief) if outcome.belief is not None else Value(Fraction(), Fraction(), Fraction())
        reward += outcome.probability * (outcome.reward + after.reward)
        success += outcome.probability * (outcome.success + after.success)
        turns += outcome.probability * (1 + after.turns)
    return Value(reward, success, turns)
