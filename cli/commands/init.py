"""`gymnast init`: a project of one's own, with an environment that works."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from ..terminal.exits import CommandError


def init(name: Annotated[Path, typer.Argument(help="The folder to make.")]) -> None:
    """Make a project: an environment, its test, a training with its options, and a README."""
    files = {file.name: file for file in (resources.files("gymnast.cli") / "template").iterdir() if file.is_file()}
    names = sorted(files, key=str.lower)
    if there := [file for file in names if (name / file).exists()]:
        raise CommandError(f"{name} has files that would be overwritten: {', '.join(there)}")
    name.mkdir(parents=True, exist_ok=True)
    for file in names:
        (name / file).write_text(files[file].read_text().replace("PROJECT", name.resolve().name))
    typer.echo(f"made {name}/ with {', '.join(names)}\nnext: cd {name}, then pip install pytest && pytest")
