"""Recorded episodes as tables in the back ends of `report_to`: W&B, Trackio and TensorBoard (as text)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any

from transformers import Trainer

from ...envs.episode import Episode
from ...envs.runtime.message_text import as_transcript

NAME = "episodes"  # of the table
LONGEST = 4000  # characters of a cell


def report_episodes(trainer: Trainer, episodes: Sequence[Episode]) -> None:
    """Send the episodes of a round as a table to each back end of the trainer that has tables."""
    if not episodes or not trainer.is_world_process_zero():
        return
    rows = [_row(trainer.state.global_step, episode) for episode in episodes]
    for callback in trainer.callback_handler.callbacks:
        send = _BACK_ENDS.get(type(callback).__name__)
        if send is not None:
            send(callback, rows, trainer.state.global_step)


def _row(step: int, episode: Episode) -> dict[str, Any]:
    return {
        "step": step,
        "group": episode.spec.group,
        "member": episode.spec.member,
        "reward": episode.reward,
        "stop": episode.stop.value,
        "turns": len(episode.turns),
        "tokens": episode.num_sampled,
        "tool_calls": len(episode.tool_calls),
        "failure": None if episode.failure is None else str(episode.failure),
        "prompt": as_transcript(episode.prompt)[:LONGEST],
        "completion": as_transcript(episode.completion)[:LONGEST],
        "task": json.dumps(dict(episode.spec.task.row), default=repr)[:LONGEST],
    }


def _to_wandb(callback: Any, rows: Sequence[dict[str, Any]], step: int) -> None:
    wandb = importlib.import_module("wandb")
    table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
    wandb.log({NAME: table}, commit=False)  # with the metrics of the step


def _to_trackio(callback: Any, rows: Sequence[dict[str, Any]], step: int) -> None:
    trackio, pandas = importlib.import_module("trackio"), importlib.import_module("pandas")
    trackio.log({NAME: trackio.Table(dataframe=pandas.DataFrame(list(rows)))})


def _to_tensorboard(callback: Any, rows: Sequence[dict[str, Any]], step: int) -> None:
    """Send a table in Markdown, which TensorBoard shows under Text."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
    callback.tb_writer.add_text(NAME, text, step)


def _cell(value: Any) -> str:
    """Return a cell of a table in Markdown, without characters that would end it or be taken for HTML."""
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    for character, replacement in {"&": "&amp;", "<": "&lt;", "|": "&#124;", "\n": "<br>"}.items():
        text = text.replace(character, replacement)
    return text


_BACK_ENDS = {"WandbCallback": _to_wandb, "TrackioCallback": _to_trackio, "TensorBoardCallback": _to_tensorboard}
