"""`gymnast export`: the episodes of a run in the formats of other viewers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments.run_folder import RunArgument, read_run
from ..terminal.exits import CommandError
from ..terminal.options import AsJSON, Output

if TYPE_CHECKING:
    from ...records.files.run import Run
    from ..exporting.turns import Played

FORMATS = {"atif": ("atif", "atif-evaluations"), "inspect": ("run.eval", "evaluations.eval")}
"""The folder or the file in the run's folder that each format gets by default, without and with `--evaluations`."""


def export(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="atif: one JSON file for each episode. inspect: a log of Inspect.",
            autocompletion=lambda incomplete: [name for name in FORMATS if name.startswith(incomplete)],
        ),
    ],
    output: Output = None,
    step: Annotated[list[int] | None, typer.Option(help="Only the episodes of this step. Repeatable.")] = None,
    evaluations: Annotated[
        bool, typer.Option("--evaluations", help="The episodes of a training's evaluations, instead of its rounds.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Write the recorded episodes of a training or an evaluation for other viewers.

    With atif, RUN/atif/ gets a trajectory for each episode; with inspect, RUN/run.eval is a log for `inspect view`.
    """
    from ..terminal.output import print_result

    if to not in FORMATS:
        raise CommandError(f"--to takes {' or '.join(FORMATS)}, got {to!r}")
    found = read_run(run)
    played = _episodes(found, step or [], evaluations=evaluations)
    path, model = output or run / FORMATS[to][evaluations], _model(found)
    if to == "atif":
        from ..exporting.atif import write_trajectories

        write_trajectories(path, played, model=model)
    else:
        from ..exporting.inspect_log import write_log

        write_log(path, played, name=run.resolve().name, model=model)
    figures = {"path": str(path), "episodes": len(played)}
    print_result(figures, f"{path}: {len(played)} episodes", as_json=as_json)


def _episodes(run: Run, steps: list[int], *, evaluations: bool) -> Played:
    rows = [row for row in run.episodes if row.evaluation is not None] if evaluations else run.played()
    known = sorted({row.step for row in rows})
    if not known:
        kind = "evaluated episodes" if evaluations else "episodes"
        raise CommandError(f"{run.folder} has no {kind}; a training writes them with log_episodes_steps=1")
    if missing := sorted(set(steps) - set(known)):
        raise CommandError(f"step {missing[0]} is not recorded; the steps are {', '.join(map(str, known))}")
    return [(row, run.episode(row)) for row in rows if not steps or row.step in steps]


def _model(run: Run) -> str:
    """Return the model's name, or that of a script, if `gymnast train` or `gymnast eval` wrote it down."""
    from ...records.files.run_files import RUN_FILE
    from ..arguments.run_file import read_entries

    path = run.folder / RUN_FILE
    asked = read_entries(path) if path.exists() else run.asked
    return asked.get("model") or asked.get("policy") or "unknown"
