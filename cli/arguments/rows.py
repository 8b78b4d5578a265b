"""The rows that a command plays: from a file, the Hub or Python, or drawn by the environment itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..terminal.exits import CommandError
from .hub_rows import PREFIX, load_from_hub
from .references import load_object
from .row_files import READERS, read_rows

if TYPE_CHECKING:
    from ...envs.registry import EnvironmentLike

Rows = list[dict[str, Any]]


def rows_to_play(environment: EnvironmentLike, reference: str | None, *, count: int | None, seed: int) -> Rows:
    """Return the first `count` rows (None: all) of the referenced ones; without a reference, `count` that are drawn."""
    if reference is None:
        return draw_rows(environment, 1 if count is None else count, seed)
    rows = load_rows(reference, count)
    if count is not None and len(rows) < count:
        raise CommandError(f"{reference} has {len(rows)} rows, and {count} are needed")
    return rows


def open_data_sets(reference: str | Mapping[str, str]) -> Any:
    """Return the data set that a reference names, or those of several named references."""
    if isinstance(reference, str):
        return open_rows(reference)
    return {name: open_rows(rows) for name, rows in reference.items()}


def load_rows(reference: str, count: int | None = None) -> Rows:
    """Return the first `count` rows (None: all) that a reference names."""
    rows = open_rows(reference)
    if count is None and not hasattr(rows, "__len__"):
        raise CommandError(
            f"{reference} is a stream of rows, which only gymnast train takes whole; take some: list(stream.take(1000))"
        )
    return [dict(row) for row in islice(rows, count)]


def open_rows(reference: str) -> Any:
    """Return the rows that a reference names: a list of dicts, or an object of `datasets`, which reads its rows later.

    A reference is a file, a data set of the Hub, or `file.py:name` of rows or of a function that returns them. Brackets
    at its end choose a split: `hub:owner/name[train]`.
    """
    place, split = parse_split(reference)
    path = Path(place)
    if place.startswith(PREFIX):
        rows = load_from_hub(reference, place, split)
    elif path.suffix in READERS:
        rows = read_rows(path)
    else:
        rows = load_object(place, f"rows (a {', '.join(READERS)} file, {PREFIX}owner/name, or a list in Python)")
        rows = rows() if callable(rows) else rows
    rows = _split_of(rows, reference, split)
    if hasattr(rows, "column_names"):
        return rows
    if isinstance(rows, str | Mapping) or not hasattr(rows, "__iter__"):
        raise CommandError(f"{reference} must be a list of rows, got {type(rows).__name__}")
    rows = list(cast(Iterable[Any], rows))
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise CommandError(f"row {number} of {reference} must map columns to values, got {row!r}")
    if not rows:
        raise CommandError(f"{reference} has no rows")
    return rows


def parse_split(reference: str) -> tuple[str, str | None]:
    """Return the place of rows, and the name of the split in the brackets behind it, if there are any."""
    match = re.fullmatch(r"(.+?)\[(.+)\]", reference)
    return (match[1], match[2]) if match else (reference, None)


def _split_of(rows: Any, reference: str, split: str | None) -> Any:
    """Return the split of this name, or the only one; rows that have no splits as they are."""
    if not isinstance(rows, Mapping) or not all(hasattr(row, "column_names") for row in rows.values()):
        if split is not None and not reference.startswith(PREFIX):  # those of the Hub were loaded by their split
            raise CommandError(f"{reference}: there are no splits in {parse_split(reference)[0]}; leave out [{split}]")
        return rows
    if split is None and len(rows) == 1:
        return next(iter(rows.values()))
    if split not in rows:
        choices = ", ".join(f"{parse_split(reference)[0]}[{name}]" for name in rows)
        raise CommandError(f"{reference} has {len(rows)} splits: choose one of {choices}")
    return rows[split]


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
            remedy = "--tasks (in a run file: tasks) takes rows.jsonl, hub:owner/name, or file.py:name"
            raise CommandError(f"{error}; {remedy}") from error
