"""Files of rows: `.json`, `.jsonl`, `.csv` and `.parquet`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..terminal.exits import CommandError, explained


def read_rows(path: Path) -> Any:
    """Return what a file of rows holds; its ending is one of `READERS`."""
    with explained():
        return READERS[path.suffix](path)


def _json(path: Path) -> Any:
    return _parsed(path.read_text(), str(path))


def _json_lines(path: Path) -> list[Any]:
    lines = enumerate(path.read_text().split("\n"), 1)
    return [_parsed(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{place} is not JSON: {error}") from error


def _csv(path: Path) -> list[dict[str, Any]]:
    """Read a table whose first line names the columns; the values of a column have one type.

    As in `datasets`, a column of numbers has numbers and one of True and False has booleans; an empty field is None.
    Unlike there, 007 and NA are text.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            lines = [(reader.line_num, fields) for fields in reader if fields]
        except csv.Error as error:
            raise CommandError(f"{path} is not CSV: {error}") from error
    if repeated := {name for name in names if names.count(name) > 1}:
        raise CommandError(f"{path} has several columns named {', '.join(map(repr, sorted(repeated)))}")
    for number, fields in lines:
        if len(fields) != len(names):
            raise CommandError(
                f"{path}:{number} has {len(fields)} fields, and the first line names {len(names)} columns "
                f"({', '.join(names)}); put a field with a comma into double quotes"
            )
    columns = [_typed(column) for column in zip(*(fields for _, fields in lines), strict=True)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _typed(column: tuple[str, ...]) -> list[Any]:
    """Return the values of a column with the first type that all of its fields have."""
    for pattern, convert in TYPES:
        if all(re.fullmatch(pattern, field) for field in column if field):
            return [convert(field) if field else None for field in column]
    return [field or None for field in column]


def _parquet(path: Path) -> Any:
    from ...envs.extras import needs_extra  # late: a list of the endings needs no environments

    with needs_extra("datasets", str(path)):
        import datasets
        import pyarrow.parquet
    return datasets.Dataset(pyarrow.parquet.read_table(path, memory_map=True))


NUMBER = r"-?(0|[1-9]\d*)"
TYPES: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (NUMBER, int),
    (NUMBER + r"(\.\d+)?([eE][-+]?\d+)?", float),
    ("True|true|TRUE|False|false|FALSE", lambda field: field.lower() == "true"),
)
"""The types of a column of CSV, and how each of its fields is written."""

READERS: dict[str, Callable[[Path], Any]] = {".json": _json, ".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
"""How a file of rows is read, by the ending of its name."""
