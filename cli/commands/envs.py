"""`gymnast envs`: the environments that installed packages offer."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import typer

from ..terminal.options import AsJSON

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def envs(as_json: AsJSON = False) -> None:
    """List the environments that installed packages offer; ENV of the other commands may be such a name."""
    from ...envs.installed import GROUP, installed_environments
    from ..terminal.output import print_json, print_table

    found = [_described(entry) for entry in installed_environments()]
    if as_json:
        print_json({"environments": found})
    elif not found:
        typer.echo(f"no installed package has the entry-point group {GROUP}; gymnast init makes one that has")
    else:
        print_table(
            [
                (entry["name"], f"{entry['package']} {entry['version']}", entry["error"] or entry["description"])
                for entry in found
            ]
        )


def _described(entry: EntryPoint) -> dict[str, str | None]:
    """Return the facts of an entry; one that cannot be imported has an error instead of a description."""
    from ..terminal.output import one_line

    assert entry.dist is not None
    facts = {"name": entry.name, "package": entry.dist.name, "version": entry.dist.version, "object": entry.value}
    try:
        offered = entry.load()
    except Exception as error:  # of a package that is no part of gymnast
        return facts | {"description": None, "error": f"broken: {type(error).__name__}: {one_line(error, 200)}"}
    return facts | {"description": cleandoc(offered.__doc__ or "").partition("\n")[0], "error": None}
