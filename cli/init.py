"""`gymnast init`: a project of one's own, with an environment that works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal.exits import CommandError


def init(name: Annotated[Path, typer.Argument(help="The folder to make.")]) -> None:
    """Make a project: an environment, its test, a training with its options, and a README."""
    from .new_project import FILES

    if there := [file for file in FILES if (name / file).exists()]:
        raise CommandError(f"{name} has files that would be overwritten: {', '.join(there)}")
    name.mkdir(parents=True, exist_ok=True)
    for file, text in FILES.items():
        (name / file).write_text(text.replace("PROJECT", name.resolve().name).lstrip("\n"))
    typer.echo(f"made {name}/ with {', '.join(FILES)}\nnext: cd {name}, then pip install pytest && pytest")
