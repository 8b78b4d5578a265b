"""From episodes to micro-batches: the only place that pads.

A *batch* is the share of one step that transformers knows of, `per_device_train_batch_size` episodes. It is computed as
one or several *micro-batches*, each of one forward and one backward pass.

Axes: B, rows of one micro-batch; L, tokens of the longest row; T, the last tokens of the rows, enough for every
completion; N, loss tokens. Rows are padded on the right, so tokens have the same positions as in the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...envs.episode import Episode, TokenTrace
from .settings import LearningSettings

MicroBatch = dict[str, Tensor]
Item = TypeVar("Item")


@dataclass(kw_only=True, slots=True)
class Sample:
    """One trace of an episode as the loss needs it; the lists of the completion end with its last sampled token."""

    prompt_ids: list[int]
    completion_ids: list[int]  # (T,)
    mask: list[int]  # (T,) 1 on loss tokens
    sampling_logprobs: list[float]  # (T,) as the generator reported them
    share: float = 1.0  # of its episode's loss tokens
    is_masked: bool = False  # its episode counts in the baseline of its group, and has no loss tokens
    advantages: Tensor | None = None  # (T,) 0 where the mask is 0; None before the round is scored
    entropies: Tensor | None = None  # (T,) under the same weights, for `top_entropy_quantile`
    old_logprobs: Tensor | None = None  # (T,) under the weights that sampled, from the training forward pass
    ref_logprobs: Tensor | None = None  # (T,) under the reference model
    number: int = -1  # names it in its round, for the records of the run

    @property
    def length(self) -> int:
        """Tokens with the prompt."""
        return len(self.prompt_ids) + len(self.completion_ids)

    def has_gradient(self, settings: LearningSettings) -> bool:
        """Whether the sample can change the weights: some token's advantage is not 0, or the loss has another term."""
        return settings.always_has_gradient or (self.advantages is not None and bool(self.advantages.any()))

    @classmethod
    def of(cls, trace: TokenTrace, *, share: float = 1.0, is_masked: bool = False) -> Sample:
        """The sample of a trace."""
        assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs)
        # Drop everything after the last sampled token: no loss token depends on it.
        length = max((index + 1 for index, each in enumerate(trace.mask) if each), default=0)
        return cls(
            prompt_ids=trace.prompt_ids,
            completion_ids=trace.completion_ids[:length],
            mask=trace.mask[:length],
            sampling_logprobs=trace.logprobs[:length],
            share=share,
            is_masked=is_masked,
        )


EpisodeSamples = list[Sample]
"""The samples of one episode, in the order of its turns. They stay in one batch, so that the episode counts once."""


def samples_of(episode: Episode, *, is_masked: bool = False) -> EpisodeSamples:
    """The samples of an episode that was played: its traces with a sampled token."""
    total, traces = episode.num_sampled, [each for each in episode.traces if each.num_sampled]
    return [Sample.of(each, share=each.num_sampled / total, is_masked=is_masked) for each in traces]


@dataclass(kw_only=True, slots=True, frozen=True)
class Batch:
    """The episodes of one batch, as the micro-batches that have a gradient."""

    micro_batches: list[MicroBatch]
    """At least one: every process must do a forward and a backward pass."""
    loss_tokens: int
    """Number of loss tokens of all samples, those without a gradient included."""
    sequences: int
    """Number of episodes with at least one loss token."""

    @classmethod
    def of(cls, episodes: Sequence[EpisodeSamples], settings: LearningSettings, *, pad_id: int) -> Batch:
        """The batch of these episodes.

        A sample whose advantages are all 0 has a gradient of exactly 0, unless its loss has another term (for the KL or
        the entropy). Such samples skip the forward and the backward pass. They still count in every divisor of the
        loss.
        """
        samples = [each for samples in episodes for each in samples]
        loss_tokens = sum(sum(each.mask) for each in samples)
        with_gradient = [each for each in samples if each.has_gradient(settings)]
        parts = micro_batches(with_gradient or [filler(pad_id)], max_tokens=settings.max_tokens_per_batch)
        return cls(
            micro_batches=[
                make_micro_batch(part, pad_id=pad_id) | {"batch_loss_tokens": torch.tensor(float(loss_tokens))}
                for part in parts
            ],
            loss_tokens=loss_tokens,
            sequences=sum(any(any(each.mask) for each in samples) for samples in episodes),
        )

    def filled(self, count: int, pad_id: int) -> Batch:
        """The batch with so many micro-batches; the further ones have no loss tokens."""
        empty = make_micro_batch([filler(pad_id)], pad_id=pad_id) | {"batch_loss_tokens": torch.tensor(0.0)}
        return replace(self, micro_batches=self.micro_batches + [empty] * (count - len(self.micro_batches)))


def filler(pad_id: int) -> Sample:
    """A dummy row of two tokens, for a forward pass of nothing. It has no loss token and counts as no sequence."""
    return Sample(
        prompt_ids=[pad_id], completion_ids=[pad_id], mask=[0], sampling_logprobs=[0.0], advantages=torch.zeros(1)
    )


def micro_batches(
    samples: Sequence[Sample], *, max_tokens: int | None, max_rows: int | None = None
) -> list[list[Sample]]:
    """The samples, cut so that a micro-batch has at most `max_tokens` tokens, padding included, and `max_rows` rows.

    With `max_tokens`, rows of similar length are grouped. A row longer than `max_tokens` has a micro-batch of its own.
    """
    max_rows = max_rows or max(1, len(samples))
    if max_tokens is None:
        return [list(samples[start : start + max_rows]) for start in range(0, len(samples), max_rows)]
    parts: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda each: each.length, reverse=True):
        # The first row of a part is its longest.
        rows = len(parts[-1]) + 1 if parts else 0
        if parts and rows <= max_rows and parts[-1][0].length * rows <= max_tokens:
            parts[-1].append(sample)
        else:
            parts.append([sample])
    return parts


def make_micro_batch(samples: Sequence[Sample], *, pad_id: int) -> MicroBatch:
    """The tensors of one micro-batch.

    Returns:
        `input_ids`, `attention_mask` (B, L); `mask`, `sampling_logprobs`, and where the samples have them
        `advantages`, `old_logprobs` and `ref_logprobs` (B, T); `places` (N,), the indices of the loss tokens in the
        flattened mask; `shares` and `numbers` (B,).
    """
    length = max(each.length for each in samples)
    keep = length - min(len(each.prompt_ids) for each in samples)
    batch: dict[str, Any] = {
        "input_ids": torch.full((len(samples), length), pad_id),
        "attention_mask": torch.zeros(len(samples), length, dtype=torch.long),
        "mask": torch.zeros(len(samples), keep),
        "sampling_logprobs": torch.zeros(len(samples), keep),
        "shares": torch.tensor([each.share for each in samples]),
        "numbers": torch.tensor([each.number for each in samples]),
    }
    for name in ("advantages", "old_logprobs", "ref_logprobs"):
        if getattr(samples[0], name) is not None:
            batch[name] = torch.zeros(len(samples), keep)
    for row, sample in enumerate(samples):
        ids = sample.prompt_ids + sample.completion_ids
        batch["input_ids"][row, : len(ids)] = torch.tensor(ids)
        batch["attention_mask"][row, : len(ids)] = 1
        place = completion_slice(sample, length, keep)
        batch["mask"][row, place] = torch.tensor(sample.mask, dtype=torch.float32)
        batch["sampling_logprobs"][row, place] = torch.tensor(sample.sampling_logprobs)
        for name in ("advantages", "old_logprobs", "ref_logprobs"):
            if name in batch:
                batch[name][row, place] = getattr(sample, name)
    # Found here, on the CPU: on a GPU the search would wait for all work before it.
    batch["places"] = batch["mask"].flatten().nonzero()[:, 0]
    return batch


def completion_slice(sample: Sample, length: int, keep: int) -> slice:
    """The place of a completion among the last `keep` of `length` positions."""
    start = len(sample.prompt_ids) - (length - keep)
    return slice(start, start + len(sample.completion_ids))


def split_evenly(items: Sequence[Item], parts: int) -> list[list[Item]]:
    """The items in `parts` lists whose lengths differ by at most one."""
    bounds = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[start:end]) for start, end in pairwise(bounds)]
