"""The argument RUN of the commands that read a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..terminal.exits import CommandError

if TYPE_CHECKING:
    from ..runs.run import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The output_dir of a training.", show_default=False)]


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        CommandError: it is none, or one of its lines is broken.
    """
    from ..runs.run import Run

    try:
        run = Run(folder)
        run.read()
    except (FileNotFoundError, ValueError) as error:
        raise CommandError(str(error)) from error
    return run
