"""An environment for gymnast: guess a number from 1 to 7."""

from .environment import GuessNumber, oracle, rows

__all__ = ["GuessNumber", "oracle", "rows"]
