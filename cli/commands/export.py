"""`gymnast export`: the episodes of a training in the formats of other viewers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments.run_folder import RunArgument, read_run
from ..terminal.exits import CommandError
from ..terminal.options import AsJSON, Output

if TYPE_CHECKING:
    from ...envs.episode import Episode
    from ...records.files.run import Run

FORMATS = ("atif", "inspect")


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", help="atif: one JSON file for each episode. inspect: a log of Inspect.")],
    output: Output = None,
    step: Annotated[list[int] | None, typer.Option(help="Only the episodes of this step. Repeatable.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Write the recorded episodes of a training for other viewers.

    With atif, RUN/atif/ gets a trajectory for each episode; with inspect, RUN/run.eval is a log for `inspect view`.
    """
    from ..terminal.output import print_result

    if to not in FORMATS:
        raise CommandError(f"--to takes {' or '.join(FORMATS)}, got {to!r}")
    found = read_run(run)
    played = _episodes(found, step or [])
    path = _write_trajectories(found, played, output) if to == "atif" else _write_log(found, played, output)
    figures = {"path": str(path), "episodes": len(played)}
    print_result(figures, f"{path}: {len(played)} episodes", as_json=as_json)


def _episodes(run: Run, steps: list[int]) -> list[tuple[int, Episode]]:
    known = [step for step, _ in run.steps()]
    if not known:
        raise CommandError(f"{run.folder} has no episodes; a training writes them with log_episodes_steps=1")
    if missing := sorted(set(steps) - set(known)):
        raise CommandError(f"step {missing[0]} is not recorded; the steps are {', '.join(map(str, known))}")
    rows = [row for row in run.episodes if not steps or row.step in steps]
    return [(row.step, run.episode(row)) for row in rows]


def _write_trajectories(run: Run, played: list[tuple[int, Episode]], output: Path | None) -> Path:
    from ..exporting.atif import file_name, trajectory

    folder, model = output or run.folder / "atif", _model(run)
    folder.mkdir(parents=True, exist_ok=True)
    for step, episode in played:
        text = json.dumps(trajectory(episode, step, model), default=str)
        (folder / file_name(episode, step)).write_text(text + "\n")
    return folder


def _write_log(run: Run, played: list[tuple[int, Episode]], output: Path | None) -> Path:
    from ..exporting.inspect_log import write_log

    path = output or run.folder / "run.eval"
    if path.suffix not in (".eval", ".json"):
        raise CommandError(f"a log of Inspect is a file that ends with .eval or .json, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_log(path, played, name=run.folder.resolve().name, model=_model(run))
    return path


def _model(run: Run) -> str:
    """Return the model's name, if `gymnast train` wrote the run down."""
    from ...records.files.run_files import RUN_FILE

    path = run.folder / RUN_FILE
    return str(tomllib.loads(path.read_text())["model"]) if path.exists() else "unknown"
