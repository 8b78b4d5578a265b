"""`gymnast replay`: the episodes of a training under another reward."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments.run_folder import RunFolder, read_run
from ..terminal.exits import FAULTS, CommandError
from ..terminal.options import AsJSON

if TYPE_CHECKING:
    from ...records.files.run import Run
    from ..rescoring.changes import Change, StepChange
    from ..rescoring.rewards import RewardChange


def replay(
    run: RunFolder,
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE:FUNCTION", help="A reward function; it replaces the part of its name. Repeatable."),
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="PART=NUMBER", help="Another weight of a part. Repeatable.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="A part that no longer counts, such as environment. Repeatable."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="The number of episodes to list.")] = 10,
    as_json: AsJSON = False,
) -> None:
    """Score the recorded episodes of a training with another reward, and count the advantages that change sign.

    Nothing is generated, and no tool runs.
    """
    from ..rescoring.changes import changes_of
    from ..terminal.output import print_json

    found = read_run(run)
    steps = [*changes_of(found, _change(found, reward or [], weight or [], without or []))]
    changes = sorted((each for step in steps for each in step.episodes), key=lambda each: each.size, reverse=True)
    changes = [each for each in changes if each.size > 0]
    failures = [each.failure for step in steps for each in step.episodes if each.failure is not None]
    if as_json:
        from dataclasses import asdict

        figures = [step.figures() for step in steps]
        print_json({"steps": figures, "episodes": [asdict(each) for each in changes[:top]], "failures": failures[:top]})
    else:
        _print(steps, changes, failures, top)
    if failures:
        raise typer.Exit(FAULTS)


def _change(run: Run, rewards: list[str], weights: list[str], without: list[str]) -> RewardChange:
    from ..arguments.references import load_object
    from ..rescoring.rewards import RewardChange

    if not (rewards or weights or without):
        raise CommandError("nothing changes: give --reward file.py:function, --weight part=2 or --without part")
    return RewardChange(
        functions=[load_object(each, "a reward function") for each in rewards],
        weights=dict(map(_parse_weight, weights)),
        without=without,
        recorded_weights=run.settings.get("reward_weights", {}),
    )


def _parse_weight(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise CommandError(f"--weight takes part=number, such as brevity=0.5, got {text!r}")
    return name, weight


def _print(steps: list[StepChange], changes: list[Change], failures: list[str], top: int) -> None:
    from ..terminal.output import console, print_table

    rows = [_row(step.figures()) for step in steps]
    headings = ("step", "episodes", "reward", "advantages", "change sign", "0 before", "0 now")
    print_table(rows, headings=headings)
    if not changes:
        console().print("no advantage changes")
    elif top:
        listed = [
            (each.step, each.episode, f"{each.group}[{each.member}]", _arrow(each.reward, each.new_reward),
             _arrow(each.advantage, each.new_advantage))
            for each in changes[:top]
        ]  # fmt: skip
        print_table(listed, headings=("step", "episode", "name", "reward", "advantage"), title="\nThe largest changes")
    if failures:
        console(stderr=True).print(f"{len(failures)} episodes have no reward now: {failures[0]}", markup=False)


def _row(figures: dict[str, Any]) -> tuple[Any, ...]:
    counts = (figures[name] for name in ("advantages", "flipped", "appeared", "vanished"))
    return (figures["step"], figures["episodes"], _arrow(figures["reward"], figures["new_reward"]), *counts)


def _arrow(before: float | None, after: float | None) -> str:
    return " -> ".join("none" if each is None else f"{each:.3g}" for each in (before, after))
