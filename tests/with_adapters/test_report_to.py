"""Episodes as tables, and alarms as metrics, in the real back ends of `report_to`; all of them write to a folder."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.records import read_episodes

from ..training.buttons import make_trainer


def train(folder: Path, back_end: str) -> list[Any]:
    """Train two steps; returns the episodes that were recorded."""
    options: dict[str, Any] = {
        "report_to": [back_end],
        "log_episodes_steps": 1,
        "max_steps": 2,
        "project": "gymnast-test",
    }
    make_trainer(folder, **options).train()
    return [episode for _, episode in read_episodes(folder / "episodes.jsonl")]


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    episodes = train(tmp_path, "tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [point.value for point in board.Scalars("train/alarms/failures")] == [0.0, 0.0]
    tables = [event.tensor_proto.string_val[0].decode() for event in board.Tensors("episodes/text_summary")]
    rows = [line for table in tables for line in table.splitlines()[2:]]
    assert [row.split(" | ")[1] for row in rows] == [episode.spec.group for episode in episodes]
    assert all(row.count("|") == 13 for row in rows)
    assert "<tool" not in tables[0]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    episodes = train(tmp_path, "wandb")
    wandb: Any = importlib.import_module("wandb")
    wandb.finish()
    tables = [
        json.loads(path.read_text())
        for path in sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/episodes_*"))
    ]
    assert len(tables) == 2
    reward, group = (tables[0]["columns"].index(name) for name in ("reward", "group"))
    found = sorted((row[group], row[reward]) for table in tables for row in table["data"])
    assert found == sorted((episode.spec.group, episode.reward) for episode in episodes)


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    episodes = train(tmp_path, "trackio")
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    [run] = storage.get_runs("gymnast-test")
    logs = storage.get_logs("gymnast-test", run)
    tables = [log["episodes"] for log in logs if "episodes" in log]
    assert [log["train/alarms/failures"] for log in logs if "train/alarms/failures" in log] == [0.0, 0.0]
    assert len(tables) == 2
    assert {table["_type"] for table in tables} == {"trackio.table"}
    rows = [row for table in tables for row in table["_value"]]
    assert sorted((row["group"], row["reward"]) for row in rows) == sorted(
        (episode.spec.group, episode.reward) for episode in episodes
    )
