"""Decoding copies no keys and values: layers of a cache grow in place, and query heads share them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from gymnast.trainer import TransformersGenerator
from gymnast.trainer.models.decode_attention import NAME, grouped_heads
from gymnast.trainer.models.growing_cache import SPARE, GrowingLayer, growing
from gymnast.trainer.models.internals import append_rows, drop_columns, keep_rows

from .generating import PROMPTS, ask, check


@cache
def model() -> Any:
    """A model whose four query heads share two heads of keys and values."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 256,
    }
    config = LlamaConfig(vocab_size=280, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return LlamaForCausalLM(config).eval()


class AttentionSeen(TorchFunctionMode):
    """Notes the heads of queries and of keys, and the number of queries, of each attention."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, int, int]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key = args[:2]
            self.shapes.add((query.shape[1], key.shape[1], query.shape[2]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("padding", [0, 2])
def test_query_heads_share_keys_and_values_with_the_same_result(padding: int) -> None:
    ids_BL = torch.arange(12).view(2, 6) + 20
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[1, :padding] = 0

    def decoded() -> tuple[Tensor, set[tuple[int, int, int]]]:
        cache: Any = DynamicCache(config=model().config)
        options: Any = {"past_key_values": cache, "use_cache": True}
        positions_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad(), AttentionSeen() as seen:
            model()(ids_BL[:, :-1], attention_mask=mask_BL[:, :-1], position_ids=positions_BL[:, :-1], **options)
            seen.shapes.clear()
            last = model()(ids_BL[:, -1:], attention_mask=mask_BL, position_ids=positions_BL[:, -1:], **options)
        return last.logits, seen.shapes

    expected_BNV, _ = decoded()
    with grouped_heads(model()):
        got_BNV, shapes = decoded()
    assert shapes == {(2, 2, 2)}
    assert (got_BNV - expected_BNV).abs().max() < 1e-5
    assert model().config._attn_implementation == "sdpa"


def test_a_generator_decodes_so_with_exact_log_probabilities() -> None:
    async def play(generator: TransformersGenerator) -> list[Any]:
        requests = [ask(prompt, seed=seed, max_tokens=SPARE + 10) for seed, prompt in enumerate(PROMPTS)]
        return await asyncio.gather(*map(generator.generate, requests))

    ways: set[tuple[Any, type]] = set()

    def note(module: Any, _: Any, options: Any) -> None:
        ways.add((module.config._attn_implementation, type(options["past_key_values"].layers[0])))

    generator, hook = TransformersGenerator(model()), model().register_forward_pre_hook(note, with_kwargs=True)
    try:
        found = asyncio.run(play(generator))
    finally:
        hook.remove()
        generator.close()
    assert ways == {(NAME, GrowingLayer)}
    check(model(), found)
    assert model().config._attn_implementation == "sdpa"


def one_layer(cache: DynamicCache) -> DynamicCache:
    cache.layers = cache.layers[:1]
    return cache


def states(rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    return torch.rand(rows, 2, tokens, 4), torch.rand(rows, 2, tokens, 4)


def test_a_growing_cache_has_the_values_of_a_plain_one() -> None:
    plain, other = (one_layer(DynamicCache(config=model().config)) for _ in range(2))
    grown = growing(one_layer(DynamicCache(config=model().config)))

    def both(change: Any) -> None:
        for cached in (grown, plain):
            change(cached)
        for name in ("keys", "values"):
            assert torch.equal(getattr(grown.layers[0], name), getattr(plain.layers[0], name))

    def add(rows: int, tokens: int) -> None:
        new = states(rows, tokens)
        both(lambda cache: cache.update(*new, 0))

    add(3, 5)
    add(3, 1)
    for _ in range(SPARE + 3):
        add(3, 1)
    both(lambda cache: keep_rows(cache, torch.tensor([2, 0])))
    add(2, 1)
    both(lambda cache: drop_columns(cache, 4))
    add(2, 1)
    new = states(3, 7)

    def more(cache: DynamicCache) -> None:
        other.layers[0].reset()
        other.update(*new, 0)
        append_rows(cache, other)

    both(more)
    add(5, 1)


def test_a_growing_cache_stays_where_it_is() -> None:
    cache = growing(DynamicCache(config=model().config))
    layer: Any = cache.layers[0]
    layer.update(*states(2, 5))
    layer.update(*states(2, 1))
    places = set()
    for _ in range(SPARE - 1):
        layer.update(*states(2, 1))
        places.add(layer.keys.data_ptr())
    assert len(places) == 1


def test_keys_are_kept_in_the_precision_of_values() -> None:
    layer: Any = growing(DynamicCache(config=model().config)).layers[0]
    keys, values = states(1, 2)
    for _ in range(2):
        layer.update(keys, values.bfloat16())
        assert layer.keys.dtype == layer.values.dtype == torch.bfloat16
