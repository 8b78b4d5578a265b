"""Verdicts of checks, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from .output import print_table

Outcome = Literal["pass", "warn", "fail", "skip"]

STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


class Finding(NamedTuple):
    """What one check found."""

    outcome: Outcome
    advice: str  # a line: the fact, and what to do


class Verdict(NamedTuple):
    """The finding of the check with this name."""

    name: str
    outcome: Outcome
    advice: str


def print_verdicts(verdicts: Iterable[Verdict]) -> None:
    """Print a line for each check."""
    from rich.text import Text

    print_table([(Text(outcome, STYLES[outcome]), name, advice) for name, outcome, advice in verdicts])
