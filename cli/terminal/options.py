"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import completions

_ENVIRONMENT = typer.Argument(
    metavar="ENV",
    help="A name that `gymnast envs` lists, a Gymnasium id, file.py:Class or package.module:Class; also a function "
    "that returns an environment.",
    autocompletion=completions.environments,
)
EnvironmentReference = Annotated[str, _ENVIRONMENT]
OptionalEnvironment = Annotated[str | None, _ENVIRONMENT]
AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs instead of text.")]
Seed = Annotated[int, typer.Option(help="Chooses the tasks and seeds the environment.")]
Tasks = Annotated[
    str | None,
    typer.Option(
        metavar="ROWS",
        help="Rows to play: a .jsonl, .json, .csv or .parquet file, hub:owner/name[split], or file.py:name of a list "
        "or of a function that returns one. "
        "By default the environment's own tasks.",
        autocompletion=completions.rows,
    ),
]
ORACLE = typer.Option(
    metavar="SCRIPT", help="file.py:name of a player that solves the tasks.", autocompletion=completions.players
)
ToolFormat = Annotated[
    str | None,
    typer.Option(help="How the model writes calls, if its template does not show it, such as react.", metavar="NAME"),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of one answer.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")]
SuccessReward = Annotated[
    float | None,
    typer.Option(help="Least reward that counts as a success in pass@k, for environments without a metric `success`."),
]

MAX_TURNS = 100

MaxTurns = Annotated[int, typer.Option(min=0, help="Answers after which an episode is cut; 0 = no bound.")]
