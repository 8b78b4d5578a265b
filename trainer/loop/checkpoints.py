"""Checkpoints: which one is whole, and whether it belongs to this training."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PLAN = "schedule.json"
"""The schedule of the tasks in a checkpoint."""

STATE = "trainer_state.json"
"""The last file of a checkpoint; rank 0 writes it when every process has written its own files."""


def move_checkpoints_aside(folder: str | Path | None, *, after: int | None = None) -> None:
    """Move the checkpoints of an earlier training into `checkpoints.1` (or the next free number).

    The newest checkpoint of a folder is the one with the most steps, so two trainings must not share a folder. A
    training that is resumed from step `after` moves complete checkpoints of later steps. It overwrites incomplete
    ones when it reaches their steps.
    """
    folder = Path(folder or ".")
    earlier = [path for step, path in _checkpoints(folder) if after is None or (step > after and _is_whole(path))]
    if not earlier:
        return
    number = 1
    while (aside := folder / f"checkpoints.{number}").exists():
        number += 1
    aside.mkdir()
    for path in earlier:
        path.rename(aside / path.name)
    logger.warning("the checkpoints of an earlier training were moved to %s", aside)


def newest_whole_checkpoint(folder: str | Path | None) -> str:
    """Return the newest checkpoint in a folder that was saved to its end; raise a ValueError if there is none."""
    for _, path in _checkpoints(folder):
        if _is_whole(path):
            return str(path)
        logger.warning("%s is not whole: its training was killed while it was saved; it is not used", path)
    raise ValueError(f"there is no whole checkpoint in {folder} to resume from; begin a new run there instead")


def step_of(checkpoint: str | Path) -> int:
    """Return the number of optimiser steps before a checkpoint; raise a ValueError if training cannot go on from it."""
    path = Path(checkpoint)
    if not path.is_dir():
        there = ", ".join(other.name for _, other in _checkpoints(path.parent)) or "none"
        raise ValueError(f"there is no checkpoint {path}; in {path.parent} there is: {there}")
    if not _is_whole(path) or not (path / "scheduler.pt").is_file():
        raise ValueError(
            f"training cannot go on from {path}: it has no trainer_state.json (nothing was saved there to its end), or "
            f"no optimiser (save_only_model=True). Begin a new training from its weights: model={str(path)!r}"
        )
    return json.loads((path / STATE).read_text())["global_step"]


def _checkpoints(folder: str | Path | None) -> list[tuple[int, Path]]:
    """Return the step and the path of each checkpoint in a folder, the newest first."""
    paths = Path(folder or ".").glob("checkpoint-*")
    return sorted(((int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))), reverse=True)


def _is_whole(checkpoint: Path) -> bool:
    """Return whether a checkpoint was saved to its end: its last file is there, and is valid JSON."""
    try:
        return bool(json.loads((checkpoint / STATE).read_text()))
    except (OSError, ValueError):
        return False


def check_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Raise a ValueError if a checkpoint has another schedule, which would play other tasks or rounds."""
    path = folder / PLAN
    if not path.is_file():
        return
    saved = json.loads(path.read_text())
    different = [
        f"{name}: {saved.get(name)!r} there, {value!r} here" for name, value in plan.items() if saved.get(name) != value
    ]
    if different:
        raise ValueError(
            f"{folder} is a checkpoint of another training, so it cannot be resumed with these tasks and options "
            f"({'; '.join(different)}); give the same, or begin a new training from its weights: model={str(folder)!r}"
        )


_NAME = re.compile(r"checkpoint-(\d+)")
