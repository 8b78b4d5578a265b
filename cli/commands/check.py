"""`gymnast check`: faults of an environment, and of a model with it, before a training is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..terminal.completions import players
from ..terminal.exits import CommandError
from ..terminal.options import AsJSON, EnvironmentReference, Seed, Tasks, ToolFormat


def check(
    env: EnvironmentReference,
    tasks: Tasks = None,
    num_tasks: Annotated[int, typer.Option("--num-tasks", "-n", min=1, help="Tasks to try, at most.")] = 8,
    oracle: Annotated[
        str | None,
        typer.Option(metavar="SCRIPT", help="file.py:name of a player that solves the tasks.", autocompletion=players),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Check this model with the environment, too; its weights are not loaded.")
    ] = None,
    tool_format: ToolFormat = None,
    card: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the environment's card: tasks, tools, rewards, findings, versions. In a README it stands "
            "between <!-- card --> and <!-- end of card -->.",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJSON = False,
) -> None:
    """Try an environment with scripted agents, and say what would spoil a training.

    A table of pass, warn and fail, with one line of advice each. The exit code is 1 if a check fails.
    """
    from ..arguments.references import load_environment, load_policy
    from ..arguments.rows import draw_rows, load_rows
    from ..checks.card import card_of, write_card
    from ..checks.catalogue import check_environment
    from ..checks.model import check_model
    from ..checks.subject import Subject
    from ..terminal.output import console
    from ..terminal.verdicts import conclude

    if tool_format is not None and model is None:
        raise CommandError("--tool-format is for a model: give its --model")
    environment = load_environment(env)
    all_rows = load_rows(tasks) if tasks else draw_rows(environment, num_tasks, seed)
    player = None if oracle is None else load_policy(oracle)
    subject = Subject(environment=environment, rows=all_rows[:num_tasks], oracle=player, all_rows=all_rows)
    with console(stderr=True).status("playing"):
        findings = check_environment(subject) | ({} if model is None else check_model(model, subject, tool_format))
    if card is not None:
        write_card(card_of(env, subject, findings), card)
    conclude(findings, as_json=as_json)
