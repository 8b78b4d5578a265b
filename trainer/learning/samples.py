"""From episodes to tensors: the only place that pads.

Axes: B, rows of one micro-batch; L, tokens of the longest row; T, the last tokens of the rows, enough for every
completion. Rows are padded on the right, so tokens have the same positions as in the rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ...envs.episode import Episode


@dataclass(kw_only=True, slots=True)
class Sample:
    """One episode as the loss needs it; the lists of the completion end with its last sampled token."""

    prompt_ids: list[int]
    completion_ids: list[int]  # (T,)
    mask: list[int]  # (T,) 1 on loss tokens
    sampling_logprobs: list[float]  # (T,) as the generator reported them
    advantage: float = 0.0
    old_logprobs: Tensor | None = None  # (T,) under the weights that sampled, from the training forward pass
    ref_logprobs: Tensor | None = None  # (T,) under the reference model

    @classmethod
    def of(cls, episode: Episode) -> Sample:
        """The sample of an episode that was played."""
        trace = episode.trace
        assert trace is not None
        assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs)
        # Drop everything after the last sampled token: no loss token depends on it.
        length = max((index + 1 for index, each in enumerate(trace.mask) if each), default=0)
        return cls(
            prompt_ids=trace.prompt_ids,
            completion_ids=trace.completion_ids[:length],
            mask=trace.mask[:length],
            sampling_logprobs=trace.logprobs[:length],
        )


def make_batch(samples: Sequence[Sample], *, pad_id: int) -> dict[str, Tensor]:
    """One micro-batch.

    Returns:
        `input_ids`, `attention_mask` (B, L); `mask`, `sampling_logprobs`, and where the samples have them
        `old_logprobs` and `ref_logprobs` (B, T); `advantages` (B,).
    """
    length = max(len(each.prompt_ids) + len(each.completion_ids) for each in samples)
    keep = length - min(len(each.prompt_ids) for each in samples)
    batch = {
        "input_ids": torch.full((len(samples), length), pad_id),
        "attention_mask": torch.zeros(len(samples), length, dtype=torch.long),
        "mask": torch.zeros(len(samples), keep),
        "sampling_logprobs": torch.zeros(len(samples), keep),
        "advantages": torch.tensor([each.advantage for each in samples]),
    }
    for name in ("old_logprobs", "ref_logprobs"):
        if getattr(samples[0], name) is not None:
            batch[name] = torch.zeros(len(samples), keep)
    for row, sample in enumerate(samples):
        ids = sample.prompt_ids + sample.completion_ids
        batch["input_ids"][row, : len(ids)] = torch.tensor(ids)
        batch["attention_mask"][row, : len(ids)] = 1
        place = completion_slice(sample, length, keep)
        batch["mask"][row, place] = torch.tensor(sample.mask, dtype=torch.float32)
        batch["sampling_logprobs"][row, place] = torch.tensor(sample.sampling_logprobs)
        for name in ("old_logprobs", "ref_logprobs"):
            if name in batch:
                batch[name][row, place] = getattr(sample, name)
    return batch


def completion_slice(sample: Sample, length: int, keep: int) -> slice:
    """The place of a completion among the last `keep` of `length` positions."""
    start = len(sample.prompt_ids) - (length - keep)
    return slice(start, start + len(sample.completion_ids))


def split_evenly(samples: Sequence[Sample], parts: int, *, pad_id: int) -> list[list[Sample]]:
    """The samples in `parts` lists whose lengths differ by at most one.

    Every process must do the same number of forward passes, so no list is empty: where there are fewer samples than
    parts, a list gets a sample of two tokens without loss tokens. It counts as no sequence.
    """
    bounds = [len(samples) * part // parts for part in range(parts + 1)]
    lists = [list(samples[start:end]) for start, end in pairwise(bounds)]
    filler = Sample(prompt_ids=[pad_id], completion_ids=[pad_id], mask=[0], sampling_logprobs=[0.0])
    return [each or [filler] for each in lists]


def count_loss_tokens_and_sequences(batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """How many loss tokens, and how many sequences with a loss token, these micro-batches hold: (2,)."""
    counts = torch.zeros(2)
    for batch in batches:
        counts += torch.stack([batch["mask"].sum(), batch["mask"].any(dim=1).sum()]).cpu()
    return counts
