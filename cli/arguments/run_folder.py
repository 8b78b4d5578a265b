"""The argument RUN of the commands that read a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..terminal.exits import explained

if TYPE_CHECKING:
    from ...records.files.run import Run

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The output_dir of a training, or the results of gymnast eval.", show_default=False
    ),
]


def read_run(folder: Path, *, names_broken_lines: bool = True) -> Run:
    """Read a run folder, and name on standard error the broken lines that it skips."""
    from ...envs.runtime.line_files import skipped
    from ...records.files.run import Run

    with explained():
        run = Run(folder)
    if run.broken and names_broken_lines:
        typer.echo(skipped(run.broken), err=True)
    return run
