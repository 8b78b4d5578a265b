"""`gymnast check`: faults of an environment, and of a model with it, before a training is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..terminal.exits import CommandError
from ..terminal.options import ORACLE, AsJSON, OptionalEnvironment, Seed, Tasks, ToolFormat


def check(
    env: OptionalEnvironment = None,
    tasks: Tasks = None,
    num_tasks: Annotated[int, typer.Option("--num-tasks", "-n", min=1, help="Tasks to try, at most.")] = 8,
    oracle: Annotated[str | None, ORACLE] = None,
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
    sample: Annotated[int | None, typer.Option(min=1, help="Without ENV: tasks to check, drawn at random.")] = None,
    network: Annotated[
        str | None, typer.Option(help="Without ENV: the network of tasks that ask for one. [none]")
    ] = None,
    seed: Seed = 0,
    as_json: AsJSON = False,
) -> None:
    """Try an environment with scripted agents, and say what would spoil a training.

    A table of pass, warn and fail, with one line of advice each. The exit code is 1 if a check fails.

    Without ENV, `--tasks` is a folder of tasks in Harbor's format. In a box of each task, doing nothing must not earn
    1, and its solution must. `harbor_tasks(fit=FILE)` takes what `--json` prints, and loads the fit tasks only.
    """
    if env is None:
        _refuse("an environment: name one", oracle=oracle, model=model, tool_format=tool_format, card=card)
        if tasks is None:
            raise CommandError("name an environment, or give --tasks FOLDER to check the tasks of a folder")
        _check_folder(tasks, sample, seed, network or "none", as_json=as_json)
        return
    _refuse("a folder of tasks, without an environment", sample=sample, network=network)
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


def _refuse(subject: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise CommandError(f"--{name.replace('_', '-')} is for the check of {subject}")


def _check_folder(folder: str, sample: int | None, seed: int, network: str, *, as_json: bool) -> None:
    import asyncio
    import random

    from ...envs.tasks.harbor import task_folders
    from ...sandbox import default_box
    from ..checks.tasks import TaskCheck, check_tasks, describe
    from ..terminal.exits import FAULTS, explained
    from ..terminal.output import console, print_json, print_table

    with explained():
        found = list(task_folders([folder]))
        box = default_box().variant(network=network)
    chosen = sorted(random.Random(seed).sample(found, min(sample or len(found), len(found))))
    with console(stderr=True).status("checking") as status:
        done: list[TaskCheck] = []

        def shown(result: TaskCheck) -> None:
            done.append(result)
            status.update(f"{len(done)} of {len(chosen)} tasks, {sum(not found.is_fit for found in done)} not fit")

        checks = asyncio.run(check_tasks(chosen, box, jobs=box.creators, shown=shown))
    if as_json:
        print_json(describe(checks))
    else:
        print_table(map(TaskCheck.row, checks), headings=TaskCheck.HEADINGS)
    if not all(found.is_fit for found in checks):
        raise typer.Exit(FAULTS)
