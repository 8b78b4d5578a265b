"""`gymnast compare`: two evaluations of the same tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..terminal.exits import explained
from ..terminal.options import AsJSON, SuccessReward


def compare(
    first: Annotated[Path, typer.Argument(help="Results of `gymnast eval`.")],
    second: Annotated[Path, typer.Argument(help="Results of another evaluation of the same tasks.")],
    success_reward: SuccessReward = None,
    as_json: AsJSON = False,
) -> None:
    """Compare two evaluations task by task: the difference, its 95 % interval, and a paired test."""
    from ...records.evaluations.comparison import compare as compare_evaluations
    from ...records.evaluations.evaluation_file import EvaluationFile
    from ..terminal.evaluations import print_comparison
    from ..terminal.output import print_json

    with explained():
        played = [EvaluationFile.read(path, partial(typer.echo, err=True)).episodes for path in (first, second)]
        comparison = compare_evaluations(*played, success_reward=success_reward)
    if as_json:
        print_json(comparison)
    else:
        print_comparison(comparison, str(first), str(second))
