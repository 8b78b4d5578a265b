"""Checks of a training whose rows are a stream, and its first rows."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ..options.config import AgentConfig
from ..rollout.stream import is_stream


def first_rows(args: AgentConfig, rows: Any, number: int) -> Any:
    """Return training rows to look at before training: of a stream the first ones, or else all; see `check_stream`."""
    check_stream(args, rows)
    return list(islice(rows, number)) if is_stream(rows) else rows


def check_stream(args: AgentConfig, rows: Any) -> None:
    """Raise a ValueError if an option needs the length of a stream, or another order."""
    if not is_stream(rows):
        return
    stream = f"train_dataset is a stream of rows ({type(rows).__name__})"
    if args.max_steps <= 0:
        raise ValueError(
            f"{stream}, which has no length: set max_steps, the number of optimiser steps, in place of "
            f"num_train_epochs; or pass some rows as a list, list(data.take(10_000))"
        )
    if args.shuffle_dataset:
        raise ValueError(
            f"{stream}, which shuffle_dataset=True cannot shuffle: leave it out, and pass "
            f"data.shuffle(seed={args.seed}, buffer_size=1000)"
        )
    for name in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(args, name) == "epoch":
            raise ValueError(f"{stream}, which has no epochs: set {name}='steps', got 'epoch'")
