"""`gymnast compare`: two evaluations of the same tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..arguments.run_folder import read_run
from ..terminal.exits import CommandError, explained
from ..terminal.options import AsJSON, SuccessReward


def compare(
    first: Annotated[Path, typer.Argument(help="Results of `gymnast eval`, or a training that evaluates.")],
    second: Annotated[Path, typer.Argument(help="Another evaluation of the same tasks.")],
    success_reward: SuccessReward = None,
    as_json: AsJSON = False,
) -> None:
    """Compare two evaluations task by task: the difference, its 95 % interval, and a paired test.

    Of a training, it is the latest evaluation whose episodes are recorded.
    """
    from ...records.evaluations.comparison import compare as compare_evaluations
    from ..terminal.evaluations import print_comparison
    from ..terminal.output import print_json

    played = [read_run(path).evaluated() for path in (first, second)]
    for path, episodes in zip((first, second), played, strict=True):
        if not episodes:
            raise CommandError(f"{path} has no episode of an evaluation: `gymnast eval` writes them")
    with explained():
        comparison = compare_evaluations(*played, success_reward=success_reward)
    if as_json:
        print_json(comparison)
    else:
        print_comparison(comparison, str(first), str(second))
