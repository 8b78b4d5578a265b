"""From episodes to micro-batches: the only place that pads.

A *batch* is the share of one step that transformers knows of, `per_device_train_batch_size` episodes. It is computed as
one or several *micro-batches*, each of one forward and one backward pass.

Axes: B, rows of one micro-batch; L, tokens of the longest row; T, the last tokens of the rows, enough for every
completion; N, loss tokens; R, all rows; P, possible sizes of a micro-batch. Rows are padded on the right, so tokens
have the same positions as in the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NotRequired, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...envs.episode import Episode
from ...envs.tokens import Image, ImageSpan, Tokens, TokenTrace
from .settings import LearningSettings

Item = TypeVar("Item")

PASS_TOKENS = 256
"""What a further forward and backward pass costs, in tokens of padding that it may save.

On a CPU it was 50 for a model of 4 million weights, and 360 for a smaller one.
"""


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
    images: list[ImageSpan] = field(default_factory=list)  # among the ids of prompt and completion

    @property
    def length(self) -> int:
        """Tokens with the prompt."""
        return len(self.prompt_ids) + len(self.completion_ids)

    def has_gradient(self, settings: LearningSettings) -> bool:
        """Return whether the sample can change the weights: it has an advantage, or the loss another term."""
        return settings.always_has_gradient or (self.advantages is not None and bool(self.advantages.any()))

    @classmethod
    def of(cls, trace: TokenTrace, *, share: float = 1.0, is_masked: bool = False) -> Sample:
        """Return the sample of a trace."""
        assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs)
        # Drop everything after the last sampled token: no loss token depends on it.
        length = max((index + 1 for index, is_sampled in enumerate(trace.mask) if is_sampled), default=0)
        return cls(
            prompt_ids=trace.prompt_ids,
            completion_ids=trace.completion_ids[:length],
            mask=trace.mask[:length],
            sampling_logprobs=trace.logprobs[:length],
            images=[span for span in trace.images if span.end <= len(trace.prompt_ids) + length],
            share=share,
            is_masked=is_masked,
        )

    @classmethod
    def restored(cls, fields: dict[str, Any], *, number: int = -1) -> Sample:
        """Return the sample of the fields that `dataclasses.asdict` gave, with another number."""
        spans = [ImageSpan(span["start"], span["length"], Image(span["image"]["data"])) for span in fields["images"]]
        return cls(**fields | {"images": spans, "number": number})


EpisodeSamples = list[Sample]
"""The samples of one episode, in the order of its turns. They stay in one batch, so that the episode counts once."""


def samples_of(episode: Episode, *, is_masked: bool = False) -> EpisodeSamples:
    """Return the samples of an episode that was played: its traces with a sampled token."""
    total, traces = episode.num_sampled, [trace for trace in episode.traces if trace.num_sampled]
    return [Sample.of(trace, share=trace.num_sampled / total, is_masked=is_masked) for trace in traces]


@dataclass(kw_only=True, slots=True, frozen=True)
class Batch:
    """The episodes of one batch, as the micro-batches that have a gradient."""

    micro_batches: list[MicroBatch]  # at least one: every process must do a forward and a backward pass
    loss_tokens: int  # number of loss tokens of all samples, those without a gradient included
    sequences: int  # number of episodes with at least one loss token

    @classmethod
    def of(cls, episodes: Sequence[EpisodeSamples], settings: LearningSettings, picture: Tokens | None = None) -> Batch:
        """Return the batch of these episodes; samples without a gradient count only in the divisors of the loss."""
        samples = [sample for samples in episodes for sample in samples]
        loss_tokens = sum(sum(sample.mask) for sample in samples)
        with_gradient = [sample for sample in samples if sample.has_gradient(settings)]
        rows = with_gradient or [filler()]
        parts = micro_batches(rows, max_tokens=settings.max_tokens_per_batch, picture=picture)
        return cls(
            micro_batches=[make_micro_batch(part, batch_loss_tokens=loss_tokens, picture=picture) for part in parts],
            loss_tokens=loss_tokens,
            sequences=sum(any(any(sample.mask) for sample in samples) for samples in episodes),
        )

    def filled(self, count: int, picture: Tokens | None = None) -> Batch:
        """Add empty micro-batches until there are `count`."""
        empty = make_micro_batch([filler()], picture=picture)
        return replace(self, micro_batches=self.micro_batches + [empty] * (count - len(self.micro_batches)))


def filler() -> Sample:
    """Make a dummy row of two tokens, for a forward pass of nothing. It has no loss token and counts as no sequence."""
    return Sample(prompt_ids=[0], completion_ids=[0], mask=[0], sampling_logprobs=[0.0], advantages=torch.zeros(1))


def micro_batches(
    samples: Sequence[Sample],
    *,
    max_tokens: int | None,
    max_rows: int | None = None,
    picture: Tokens | None = None,
) -> list[list[Sample]]:
    """Cut the samples into micro-batches of similar length, so that padding and passes together cost least.

    Each has at most `max_tokens` tokens, padding and the `picture` of `make_micro_batch` included, and `max_rows` rows;
    a row longer than `max_tokens` has a micro-batch of its own. The longest rows come first. Within a micro-batch the
    samples keep their order.
    """
    order = sorted(range(len(samples)), key=lambda place: samples[place].length, reverse=True)
    lengths_R = np.array([samples[place].length for place in order], dtype=np.int64)
    has_image_R = np.array([bool(samples[place].images) for place in order])
    behind = 0 if picture is None else len(picture)
    costs = np.zeros(len(order) + 1, dtype=np.int64)  # the least cost of the rows from a place on
    sizes = [0] * len(order)  # and the rows of their first part
    for start in reversed(range(len(order))):
        longest, limit = int(lengths_R[start]), min(max_rows or len(order), len(order) - start)
        if max_tokens is not None:
            limit = max(1, min(limit, max_tokens // longest))
        part = slice(start, start + limit)
        sizes_P = np.arange(1, limit + 1)
        behind_P = np.where(np.logical_or.accumulate(has_image_R[part]), 0, behind)  # one image in a part is enough
        tokens_P = sizes_P * np.maximum(longest, lengths_R[part] + behind_P)
        costs_P = PASS_TOKENS + tokens_P + costs[start + 1 : start + limit + 1]
        if max_tokens is not None:
            costs_P[1:][tokens_P[1:] > max_tokens] = np.iinfo(np.int64).max
        sizes[start] = int(costs_P.argmin()) + 1
        costs[start] = costs_P[sizes[start] - 1]
    parts: list[list[Sample]] = []
    start = 0
    while start < len(order):
        end = start + sizes[start]
        parts.append([samples[place] for place in sorted(order[start:end])])
        start = end
    return parts


class MicroBatch(TypedDict):
    """The tensors of one forward and backward pass; a dictionary, because transformers moves such to the device."""

    inputs: dict[str, Tensor]  # the model's arguments: `input_ids` and `attention_mask` (B, L)
    mask: Tensor  # (B, T) 1 on loss tokens
    places: Tensor  # (N,) The indices of the loss tokens in the flattened mask
    sampling_logprobs: Tensor  # (B, T)
    advantages: NotRequired[Tensor]  # (B, T)
    old_logprobs: NotRequired[Tensor]  # (B, T)
    ref_logprobs: NotRequired[Tensor]  # (B, T)
    shares: Tensor  # (B,)
    numbers: Tensor  # (B,)
    batch_loss_tokens: Tensor  # of the batch that it is a part of
    pictures: list[list[Image]]  # of each row; their features are made for the forward pass


def make_micro_batch(
    samples: Sequence[Sample], *, batch_loss_tokens: int = 0, picture: Tokens | None = None
) -> MicroBatch:
    """Return the tensors of these samples; of their advantages and the like, those that the samples have.

    `picture` stands behind the shortest row if no sample has an image, so that every forward pass has one. It is no
    loss token, and the loss tokens before it do not see it.
    """
    pictures = [[span.image for span in sample.images] for sample in samples]
    behind = Tokens([]) if picture is None or any(pictures) else picture
    shortest = min(range(len(samples)), key=lambda row: samples[row].length)
    pictures[shortest] += behind.pictures
    length = max(max(sample.length for sample in samples), samples[shortest].length + len(behind))
    keep = length - min(len(sample.prompt_ids) for sample in samples)
    ids_BL = torch.zeros(len(samples), length, dtype=torch.long)  # any token fills a row: no other token sees it
    attention_mask_BL = torch.zeros(len(samples), length, dtype=torch.long)
    names = ["mask", "sampling_logprobs", "advantages", "old_logprobs", "ref_logprobs"]
    of_tokens = {name: torch.zeros(len(samples), keep) for name in names if getattr(samples[0], name) is not None}
    for row, sample in enumerate(samples):
        ids = sample.prompt_ids + sample.completion_ids + (behind.ids if row == shortest else [])
        ids_BL[row, : len(ids)] = torch.tensor(ids)
        attention_mask_BL[row, : len(ids)] = 1
        place = completion_slice(sample, length, keep)
        for name, values_BT in of_tokens.items():
            values_BT[row, place] = torch.as_tensor(getattr(sample, name), dtype=torch.float32)
    return MicroBatch(
        inputs={"input_ids": ids_BL, "attention_mask": attention_mask_BL},
        # Found here, on the CPU: on a GPU the search would wait for all work before it.
        places=of_tokens["mask"].flatten().nonzero()[:, 0],
        shares=torch.tensor([sample.share for sample in samples]),
        numbers=torch.tensor([sample.number for sample in samples]),
        batch_loss_tokens=torch.tensor(float(batch_loss_tokens)),
        pictures=pictures,
        **of_tokens,  # type: ignore[typeddict-item]
    )


def completion_slice(sample: Sample, length: int, keep: int) -> slice:
    """Return the place of a completion among the last `keep` of `length` positions."""
    start = len(sample.prompt_ids) - (length - keep)
    return slice(start, start + len(sample.completion_ids))


def split_evenly(items: Sequence[Item], parts: int) -> list[list[Item]]:
    """Return the items in `parts` lists whose lengths differ by at most one."""
    bounds = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[start:end]) for start, end in pairwise(bounds)]
