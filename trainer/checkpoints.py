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


def move_checkpoints_aside(folder: str | Path | None) -> None:
    """Move the checkpoints of an earlier training into `checkpoints.1` (or the next free number).

    The newest checkpoint of a folder is the one of most steps, so those of two trainings must not lie together.
    """
    folder = Path(folder or ".")
    earlier = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
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
    """The newest checkpoint in a folder that was saved to its end.

    Raises:
        ValueError: there is none.
    """
    found = [(int(match[1]), path) for path in Path(folder or ".").glob("*") if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text())  # transformers writes it last
        except (OSError, ValueError):
            logger.warning("%s is not whole: its training was killed while it was saved; it is not used", path)
        else:
            return str(path)
    raise ValueError(f"there is no whole checkpoint in {folder}; leave resume_from_checkpoint out to begin a new run")


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the schedule of the tasks into a checkpoint."""
    (folder / PLAN).write_text(json.dumps(plan, indent=2) + "\n")


def check_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Check that a training may go on from a checkpoint: another schedule would play other tasks.

    Raises:
        ValueError: the checkpoint is one of other tasks, or of rounds of another size.
    """
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
