"""The findings of checks, and their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import typer

from .exits import FAULTS
from .output import print_json, print_table

Outcome = Literal["pass", "warn", "fail", "skip"]

STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


class Finding(NamedTuple):
    """The result of one check."""

    outcome: Outcome
    advice: str  # a line: the fact, and what to do


def conclude(findings: Mapping[str, Finding], *, as_json: bool) -> None:
    """Print the findings by the names of their checks, a line for each or JSON; a `typer.Exit` if a check failed."""
    from rich.text import Text

    if as_json:
        print_json({"checks": [{"name": name, **finding._asdict()} for name, finding in findings.items()]})
    else:
        rows = [(Text(found.outcome, STYLES[found.outcome]), name, found.advice) for name, found in findings.items()]
        print_table(rows)
    if any(finding.outcome == "fail" for finding in findings.values()):
        raise typer.Exit(FAULTS)
