"""How a batch is cut into micro-batches, and the default of their size."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from gymnast.trainer.learning.samples import PASS_TOKENS, Sample, micro_batches
from gymnast.trainer.models.update_memory import HELD_BYTES, tokens_of_update

from .rows import VOCABULARY, make_model


def cut(lengths: list[int], **limits: Any) -> list[list[int]]:
    samples = [
        Sample(prompt_ids=[0], completion_ids=[0] * (length - 1), mask=[], sampling_logprobs=[]) for length in lengths
    ]
    return [[sample.length for sample in part] for part in micro_batches(samples, **{"max_tokens": None} | limits)]


def cost(parts: list[list[int]]) -> int:
    return sum(PASS_TOKENS + max(part) * len(part) for part in parts)


def test_rows_of_similar_length_share_a_micro_batch_and_keep_their_order() -> None:
    assert cut([100, 2900, 90, 3000, 120]) == [[2900, 3000], [100, 90, 120]]
    assert cut([100, 2900, 90, 3000, 120], max_tokens=3000) == [[3000], [2900], [100, 90, 120]]
    assert cut([100, 2900, 90, 3000, 120], max_rows=2) == [[2900, 3000], [120], [100, 90]]
    assert cut([30, 20, 40], max_tokens=1) == [[40], [30], [20]]


def test_a_batch_of_short_rows_stays_in_one_piece() -> None:
    assert cut([50, 20, 70, 40]) == [[50, 20, 70, 40]]


def test_no_other_cut_has_less_padding_and_fewer_passes() -> None:
    numbers = random.Random(0)
    for _ in range(20):
        lengths = sorted((round(numbers.lognormvariate(6, 1)) for _ in range(9)), reverse=True)
        chosen = cut(lengths, max_tokens=4000)
        cuts = [_parts(lengths, places) for places in range(2**8)]
        fitting = [parts for parts in cuts if all(len(part) == 1 or max(part) * len(part) <= 4000 for part in parts)]
        assert cost(chosen) == min(map(cost, fitting))


def _parts(lengths: list[int], places: int) -> list[list[int]]:
    """The rows in micro-batches; each bit says whether the next row begins one."""
    borders = [0, *(place + 1 for place in range(len(lengths) - 1) if places >> place & 1), len(lengths)]
    return [lengths[start:end] for start, end in pairwise(borders)]


def test_the_default_size_follows_what_the_backward_pass_needs() -> None:
    """The activations of so many tokens are half of weights, gradients, Adam's state and a chunk of logits."""
    model = make_model()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def saved_bytes(length: int) -> int:
        found: dict[int, int] = {}

        def keep(value: torch.Tensor) -> torch.Tensor:
            storage = value.untyped_storage()
            if storage.data_ptr() not in weights:
                found[storage.data_ptr()] = storage.nbytes()
            return value

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            output: Any = model.model(torch.arange(length)[None] % VOCABULARY, use_cache=False)
        assert output.last_hidden_state.requires_grad
        return sum(found.values())

    per_token = (saved_bytes(96) - saved_bytes(32)) / 64
    held = HELD_BYTES + 16 * sum(weight.numel() for weight in model.parameters())
    assert tokens_of_update(model) == pytest.approx(held / (2 * per_token), rel=0.25)


def test_the_default_is_larger_where_an_update_needs_less() -> None:
    model = make_model()
    plain = tokens_of_update(model)
    assert tokens_of_update(model, checkpointing=True) > plain
    assert plain < tokens_of_update(model, autocast=True) < 2.5 * plain
    assert all(not module._forward_hooks for module in model.modules())


def test_the_default_counts_the_part_of_the_weights_that_a_process_holds() -> None:
    model = make_model()
    whole = tokens_of_update(model)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        assert tokens_of_update(model) < whole
    finally:
        dist.destroy_process_group()
