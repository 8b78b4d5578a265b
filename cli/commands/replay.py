"""`gymnast replay`: the episodes of a training under another reward."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments.run_folder import RunArgument, read_run
from ..terminal.exits import FAULTS, CommandError
from ..terminal.options import AsJSON

if TYPE_CHECKING:
    from ...records.files.run import Run
    from ..rescoring.changes import Change
    from ..rescoring.rewards import RewardChange


def replay(
    run: RunArgument,
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
    from ..rescoring.changes import changes_of, figures_of
    from ..terminal.output import print_json

    found = read_run(run)
    steps = [*changes_of(found, _change(found, reward or [], weight or [], without or []))]
    played = [change for _, changes in steps for change in changes]
    failures = [change.failure for change in played if change.failure is not None]
    largest = sorted((change for change in played if change.size > 0), key=lambda change: change.size, reverse=True)
    figures = [figures_of(step, changes) for step, changes in steps]
    if as_json:
        from dataclasses import asdict

        episodes = [asdict(change) for change in largest[:top]]
        print_json({"steps": figures, "episodes": episodes, "failures": failures[:top]})
    else:
        _print(figures, largest, failures, top)
    if failures:
        raise typer.Exit(FAULTS)


def _change(run: Run, rewards: list[str], weights: list[str], without: list[str]) -> RewardChange:
    from ..arguments.references import load_object
    from ..rescoring.rewards import RewardChange

    if not (rewards or weights or without):
        raise CommandError("nothing changes: give --reward file.py:function, --weight part=2 or --without part")
    return RewardChange(
        functions=[load_object(name, "a reward function") for name in rewards],
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


def _print(figures: list[dict[str, Any]], largest: list[Change], failures: list[str], top: int) -> None:
    from ..terminal.output import console, print_table

    counts = {"advantages": "advantages", "flipped": "change sign", "appeared": "0 before", "vanished": "0 now"}
    rows = [
        (step["step"], step["episodes"], _arrow(step["reward"], step["new_reward"]), *(step[name] for name in counts))
        for step in figures
    ]
    print_table(rows, headings=("step", "episodes", "reward", *counts.values()))
    if not largest:
        console().print("no advantage changes")
    elif top:
        rows = [
            (change.step, change.episode, f"{change.group}[{change.member}]",
             _arrow(change.reward, change.new_reward), _arrow(change.advantage, change.new_advantage))
            for change in largest[:top]
        ]  # fmt: skip
        print_table(rows, headings=("step", "episode", "name", "reward", "advantage"), title="\nThe largest changes")
    if failures:
        console(stderr=True).print(f"{len(failures)} episodes have no reward now: {failures[0]}", markup=False)


def _arrow(before: float | None, after: float | None) -> str:
    return " -> ".join("none" if value is None else f"{value:.3g}" for value in (before, after))
