"""Verdicts of checks, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Outcome = Literal["pass", "warn", "fail", "skip"]

STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


class Verdict(NamedTuple):
    """The outcome of one check."""

    name: str
    outcome: Outcome
    advice: str  # a line: what was found, and what to do


def print_verdicts(verdicts: Iterable[Verdict]) -> None:
    """Print a line for each check."""
    from rich.text import Text

    from .output import print_table

    print_table([(Text(each.outcome, STYLES[each.outcome]), each.name, each.advice) for each in verdicts])
