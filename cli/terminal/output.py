"""Output of commands: tables and texts for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Mapping[str, Any] | str) -> None:
    """Print one JSON object on standard output, in one line; NaN and infinity are null. A str is JSON already."""
    if not isinstance(value, str):
        value = json.dumps(from_json(to_json(value, inf_nan_mode="null", fallback=str)), ensure_ascii=False)
    sys.stdout.write(value + "\n")


def print_result(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print the result of a command: the value for programs, or the text for people."""
    if as_json:
        print_json(value)
    else:
        sys.stdout.write(text + "\n")


def one_line(text: object, most: int) -> str:
    """Return the text in one line of at most so many characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def console(*, stderr: bool = False) -> Console:
    """Return the terminal; standard error takes progress and remarks, which are not the result of a command."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, soft_wrap=True)


def print_table(rows: Iterable[Sequence[Any]], *, headings: Sequence[str] = (), title: str | None = None) -> None:
    """Print a table; cells are plain, or objects of rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, show_header=bool(headings), pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*[cell if hasattr(cell, "__rich_console__") else Text(str(cell)) for cell in row])
    console().print(table)
