"""Verdicts of checks, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import typer

from .exits import FAULTS
from .output import print_json, print_table

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


def conclude(verdicts: Sequence[Verdict], *, as_json: bool) -> None:
    """Print the verdicts, a line for each check or JSON, and end the command if one is bad.

    Raises:
        typer.Exit: a check failed.
    """
    from rich.text import Text

    if as_json:
        print_json({"checks": [verdict._asdict() for verdict in verdicts]})
    else:
        print_table([(Text(outcome, STYLES[outcome]), name, advice) for name, outcome, advice in verdicts])
    if any(verdict.outcome == "fail" for verdict in verdicts):
        raise typer.Exit(FAULTS)
