"""From samples to batches: masks, padding, log-probabilities, micro-batches."""

from __future__ import annotations

import random

import pytest
import torch

from gymnast.envs.tokens import ImageSpan, Tokens, TokenTrace
from gymnast.trainer.learning.samples import Batch, Sample, make_micro_batch, micro_batches, split_evenly

from ..envs.pictures import picture
from ..learning.rows import SETTINGS
from .made_episodes import PAD, trace_of


def test_the_mask_selects_exactly_the_sampled_tokens() -> None:
    rng = random.Random(0)
    traces = [trace_of(rng) for _ in range(20)]
    batch = make_micro_batch([Sample.of(trace) for trace in traces])
    ids_BL, mask_BT = batch["inputs"]["input_ids"], batch["mask"]
    keep = mask_BT.shape[1]
    for row, trace in enumerate(traces):
        sampled = [token for token, mask in zip(trace.completion_ids, trace.mask, strict=True) if mask]
        logprobs = [value for value, mask in zip(trace.logprobs, trace.mask, strict=True) if mask]
        on = mask_BT[row] == 1
        assert ids_BL[row, -keep:][on].tolist() == sampled
        torch.testing.assert_close(batch["sampling_logprobs"][row][on], torch.tensor(logprobs))
        assert (batch["sampling_logprobs"][row][~on] == 0).all()
        assert (ids_BL[row][:-keep] < 1000).all()  # no sampled token is before the kept positions


def test_rows_are_padded_on_the_right_and_end_with_their_last_sampled_token() -> None:
    samples = [Sample.of(trace_of(random.Random(n))) for n in range(9)]
    batch = make_micro_batch(samples)
    length = batch["inputs"]["input_ids"].shape[1]
    for row, sample in enumerate(samples):
        ids = sample.prompt_ids + sample.completion_ids
        assert ids[-1] >= 1000
        assert batch["inputs"]["input_ids"][row].tolist() == ids + [PAD] * (length - len(ids))
        assert batch["inputs"]["attention_mask"][row].tolist() == [int(n < len(ids)) for n in range(length)]
    lengths = [len(sample.prompt_ids + sample.completion_ids) for sample in samples]
    assert length == max(lengths)
    assert batch["mask"].shape[1] == max(lengths) - min(len(sample.prompt_ids) for sample in samples)


def test_the_observation_after_the_last_answer_is_trimmed() -> None:
    trace = TokenTrace(prompt_ids=[1, 2])
    trace.append_sampled([1000, 1001], [-0.5, -0.25])
    trace.append_observation(Tokens([500]))
    trace.append_sampled([1002], [-1.0])
    trace.append_observation(Tokens([501, 502, 503]))
    sample = Sample.of(trace)
    assert sample.completion_ids == [1000, 1001, 500, 1002]
    assert sample.mask == [1, 1, 0, 1]
    assert sample.sampling_logprobs == [-0.5, -0.25, 0.0, -1.0]


def test_logprobs_of_the_training_model_stand_where_their_tokens_do() -> None:
    samples = [Sample.of(trace_of(random.Random(n))) for n in range(6)]
    for sample in samples:
        sample.old_logprobs = torch.tensor([float(token) for token in sample.completion_ids])
    batch = make_micro_batch(samples)
    keep = batch["mask"].shape[1]
    on = batch["mask"] == 1
    assert "old_logprobs" in batch
    assert torch.equal(batch["old_logprobs"][on], batch["inputs"]["input_ids"][:, -keep:][on].float())
    assert "ref_logprobs" not in batch


def numbered(count: int) -> list[Sample]:
    return [
        Sample(prompt_ids=[1], completion_ids=[n + 2], mask=[1], sampling_logprobs=[-1.0], advantages=torch.ones(1))
        for n in range(count)
    ]


@pytest.mark.parametrize(("count", "parts"), [(8, 2), (7, 2), (7, 4), (3, 3), (1, 1)])
def test_split_evenly(count: int, parts: int) -> None:
    samples = numbered(count)
    lists = split_evenly(samples, parts)
    assert [sample for part in lists for sample in part] == samples
    assert max(map(len, lists)) - min(map(len, lists)) <= 1


def test_split_evenly_may_leave_parts_empty() -> None:
    samples = numbered(2)
    lists = split_evenly(samples, 5)
    assert sorted(map(len, lists)) == [0, 0, 0, 1, 1]
    assert [sample for part in lists for sample in part] == samples


def of_lengths(*lengths: int) -> list[Sample]:
    return [
        Sample(prompt_ids=[1], completion_ids=[2] * (n - 1), mask=[1] * (n - 1), sampling_logprobs=[-1.0] * (n - 1))
        for n in lengths
    ]


def test_micro_batches_hold_their_tokens_with_padding() -> None:
    rng = random.Random(0)
    samples = of_lengths(*(rng.randrange(2, 60) for _ in range(50)))
    parts = micro_batches(samples, max_tokens=120)
    assert sorted(map(id, samples)) == sorted(id(sample) for part in parts for sample in part)
    sizes = [len(part) * max(sample.length for sample in part) for part in parts]
    assert max(sizes) <= 120
    padded = sum(sizes) / sum(sample.length for sample in samples)
    assert padded < 1.2  # rows of similar length share a micro-batch


def test_micro_batches_give_a_longer_row_a_pass_of_its_own() -> None:
    parts = micro_batches(of_lengths(5, 90, 4, 200), max_tokens=50)
    assert [[sample.length for sample in part] for part in parts] == [[200], [90], [5, 4]]


def test_micro_batches_have_a_limit_of_rows() -> None:
    samples = of_lengths(2, 3, 4, 5, 6)
    parts = micro_batches(samples, max_tokens=None, max_rows=2)
    assert [[sample.length for sample in part] for part in parts] == [[6], [4, 5], [2, 3]]
    assert [len(part) for part in micro_batches(samples, max_tokens=100, max_rows=3)] == [2, 3]
    assert micro_batches(samples, max_tokens=None) == [samples]


def test_micro_batches_hold_their_tokens_with_the_picture_behind_a_row() -> None:
    shown = Tokens([7] * 40, (ImageSpan(0, 40, picture()),))
    samples = of_lengths(4, 5, 6, 7, 51, 60)
    samples[1].images = [ImageSpan(0, 1, picture(1))]
    batch = Batch.of([samples], SETTINGS.changed(beta=0.1, max_tokens_per_batch=130), picture=shown)
    assert all(any(item["pictures"]) for item in batch.micro_batches)
    sizes = sorted(item["inputs"]["input_ids"].numel() for item in batch.micro_batches)
    assert sizes == [4 * 7, 51 + 40, 60 + 40]


def test_samples_without_a_gradient_are_counted_and_not_computed() -> None:
    samples, tiny = of_lengths(4, 6, 8), Tokens([7, 7], (ImageSpan(0, 2, picture()),))
    samples[0].images = [ImageSpan(0, 1, picture(1))]
    for sample, advantage in zip(samples, (0.0, 0.5, 0.0), strict=True):
        sample.advantages = advantage * torch.tensor(sample.mask)
    batch = Batch.of([[sample] for sample in samples], SETTINGS)
    assert [tuple(item["inputs"]["input_ids"].shape) for item in batch.micro_batches] == [(1, 6)]
    assert not any(batch.micro_batches[0]["pictures"])
    shown = Batch.of([[sample] for sample in samples], SETTINGS, picture=tiny).filled(2, tiny)
    assert [item["pictures"] for item in shown.micro_batches] == [[tiny.pictures]] * 2
    assert shown.micro_batches[0]["inputs"]["input_ids"][0].tolist()[6:] == [7, 7]  # behind all loss tokens
    assert (batch.loss_tokens, batch.sequences) == (3 + 5 + 7, 3)
    assert batch.micro_batches[0]["batch_loss_tokens"] == 15
    with_kl = Batch.of([[sample] for sample in samples], SETTINGS.changed(beta=0.1))
    assert [tuple(batch["inputs"]["input_ids"].shape) for batch in with_kl.micro_batches] == [(3, 8)]
