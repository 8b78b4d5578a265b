"""`gymnast init`: a project of one's own, with an environment that works."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..terminal.exits import CommandError

TEMPLATE = Path(__file__).parents[1] / "template"


def init(name: Annotated[Path, typer.Argument(help="The folder to make.")]) -> None:
    """Make a project: a package with an environment, its test, a training with its options, and a README."""
    if name.is_file():
        raise CommandError(f"{name} is a file: give the name of a new folder")
    package = _package_name(name.resolve().name)
    words = {"PACKAGE": package, "PROJECT": package.replace("_", "-")}

    def filled(text: str) -> str:
        return re.sub("|".join(words), lambda word: words[word.group()], text)

    found = [path for path in TEMPLATE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {filled(path.relative_to(TEMPLATE).as_posix()): filled(path.read_text()) for path in found}
    paths = sorted(files, key=str.lower)
    if there := [path for path in paths if (name / path).exists()]:
        raise CommandError(f"{name} has files that would be overwritten: {', '.join(there)}")
    for path in paths:
        (name / path).parent.mkdir(parents=True, exist_ok=True)
        (name / path).write_text(files[path])
    enter = "" if name.samefile(".") else f"cd {name}, then "
    typer.echo(f"made {name}/ with {', '.join(paths)}\nnext: {enter}pip install pytest && pytest")


def _package_name(folder: str) -> str:
    """Return a name that imports and hides no other module: `2048` -> `env_2048`, `json` -> `json_env`."""
    name = re.sub("[^a-z0-9]+", "_", folder.lower()).strip("_")
    if not name[:1].isalpha():
        name = f"env_{name}".rstrip("_")
    return f"{name}_env" if _is_taken(name) else name


def _is_taken(name: str) -> bool:
    if name == "tests" or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # without an origin it is a mere folder
