"""Round: the samples of episodes that were played at once, as training batches."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..learning.samples import Batch, EpisodeSamples, Sample, split_evenly
from ..learning.settings import LearningSettings


@dataclass
class Round:
    """A round as training batches.

    A checkpoint in the middle of a round stores its samples: the weights that sampled them no longer exist.
    """

    index: int  # the number of the round since the beginning of training
    episodes: list[EpisodeSamples]  # in the order in which they are cut into batches; empty: no group teaches
    _: KW_ONLY
    parts: int  # the number of batches
    settings: LearningSettings  # say how a batch is cut into micro-batches
    pad_id: int

    @cached_property
    def batches(self) -> list[Batch]:
        parts = split_evenly(self.episodes, self.parts)
        return [Batch.of(part, self.settings, pad_id=self.pad_id) for part in parts]

    def save(self, path: Path) -> None:
        episodes = [[asdict(sample) for sample in samples] for samples in self.episodes]
        torch.save({"index": self.index, "episodes": episodes}, path)

    @staticmethod
    def read(path: Path) -> tuple[int, list[EpisodeSamples]]:
        """Return the number and the samples of the round that `save` wrote."""
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        # Their numbers belong to the records of the training that was stopped.
        return saved["index"], [[Sample.restored(sample) for sample in samples] for samples in saved["episodes"]]
