"""The rows that a command plays: from a file, from Python, or drawn by the environment itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..terminal.exits import CommandError, explained
from .references import load_object

if TYPE_CHECKING:
    from ...envs.registry import EnvironmentLike

Rows = list[dict[str, Any]]


def rows_to_play(environment: EnvironmentLike, reference: str | None, *, count: int | None, seed: int) -> Rows:
    """Return the first `count` rows (None: all) of the referenced ones; without a reference, `count` that are drawn."""
    if reference is None:
        return draw_rows(environment, 1 if count is None else count, seed)
    rows = load_rows(reference)
    if count is not None and len(rows) < count:
        raise CommandError(f"{reference} has {len(rows)} rows, and {count} are needed")
    return rows[:count]


def load_data_sets(reference: str | Mapping[str, str]) -> Rows | dict[str, Rows]:
    """Return the rows that a reference names, or those of several named references."""
    if isinstance(reference, str):
        return load_rows(reference)
    return {name: load_rows(rows) for name, rows in reference.items()}


def load_rows(reference: str) -> Rows:
    """Return the rows of a `.jsonl` or `.json` file, or of a list or function that `file.py:name` names."""
    path = Path(reference)
    if path.suffix in (".json", ".jsonl"):
        rows = _rows_of_file(path)
    else:
        rows = load_object(reference, "rows (a .jsonl or .json file, or a list in Python)")
        rows = rows() if callable(rows) else rows
    if isinstance(rows, str | Mapping) or not hasattr(rows, "__iter__"):
        raise CommandError(f"{reference} must be a list of rows, got {type(rows).__name__}")
    rows = list(cast(Iterable[Any], rows))
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise CommandError(f"row {number} of {reference} must map columns to values, got {row!r}")
    if not rows:
        raise CommandError(f"{reference} has no rows")
    return [dict(row) for row in rows]


def _rows_of_file(path: Path) -> Any:
    with explained():
        text = path.read_text()
    if path.suffix == ".json":
        return _parsed(text, str(path))
    return [_parsed(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{place} is not JSON: {error}") from error


def draw_rows(environment: EnvironmentLike, count: int, seed: int) -> Rows:
    """Return rows that the environment draws; the same for the same seed."""
    from gymnasium.utils import seeding

    from ...envs.core import Environment
    from ...envs.engine.rollout_engine import group_specs
    from ...envs.registry import EnvironmentSource

    [spec] = group_specs("draw", {}, group_size=1, seed=seed)
    with closing(EnvironmentSource.of(environment).create(spec)) as made:
        core = made.unwrapped
        if not isinstance(core, Environment):  # its `reset` makes the task from the seed
            return [{} for _ in range(count)]
        core.np_random, _ = seeding.np_random(seed)
        try:
            return [dict(core.sample_task()) for _ in range(count)]
        except ValueError as error:
            remedy = "--tasks (in a run file: tasks) takes rows.jsonl, or file.py:name"
            raise CommandError(f"{error}; {remedy}") from error
