"""Trainings whose rows are a stream: a `datasets.IterableDataset`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from gymnast.envs import Episode
from gymnast.trainer import GRPOTrainer

from .buttons import ROWS, make_trainer


class Notes(GRPOTrainer):
    """Notes the tasks that were played."""

    played: set[tuple[str, int | None, str]]

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        specs = [episode.spec for episode in episodes]
        self.played = getattr(self, "played", set()) | {(spec.group, spec.seed, str(spec.task.row)) for spec in specs}
        super().on_episodes(episodes)


@pytest.mark.parametrize("options", [{}, {"max_refills": 2}, {"max_staleness": 1}], ids=str)
def test_a_stream_trains_as_a_list_that_is_not_shuffled(options: dict[str, Any], tmp_path: Path) -> None:
    reads: list[int] = []

    def read() -> Iterator[Any]:
        reads.append(1)
        yield from ROWS

    stream = datasets.IterableDataset.from_generator(read)
    listed: Any = make_trainer(tmp_path / "list", Notes, max_steps=4, shuffle_dataset=False, **options)
    streamed: Any = make_trainer(tmp_path / "stream", Notes, max_steps=4, rows=stream, **options)
    reads.clear()
    for trainer in (listed, streamed):
        trainer.train()
    assert streamed.played == listed.played
    assert len(reads) <= 2 + 2 * (4 + 2) // len(ROWS)  # the stream goes on: it does not begin anew for each round
    assert streamed.state.epoch == 1
    assert streamed.train_dataset is stream


def test_a_stream_that_can_be_read_once_is_told(tmp_path: Path) -> None:
    rows = iter([row for row in ROWS for _ in range(2)])
    trainer = make_trainer(tmp_path, max_steps=9, rows=datasets.IterableDataset.from_generator(lambda: rows))
    with pytest.raises(ValueError, match="the stream of rows is empty when it is read again"):
        trainer.train()
