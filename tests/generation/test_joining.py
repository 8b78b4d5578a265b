"""TransformersGenerator: later requests join the running batch, and no answer changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Lfm2Config, LlamaConfig

from gymnast.trainer import TransformersGenerator
from gymnast.trainer.generation.contract import GenerationError
from gymnast.trainer.generation.transformers_generator import JOIN_STEPS
from gymnast.trainer.testing.tiny import make_tiny_model

from .generating import PROMPTS, Steps, ask, at_once, begun, check, decoding_threads, model, tokenizer
from .generating import wait_until_closing as until_closing

PREFILL = JOIN_STEPS + 2  # the forward pass that prefills joining requests: one prefill and some steps come before it


@pytest.fixture
async def generator() -> AsyncIterator[TransformersGenerator]:
    made = TransformersGenerator(model())
    yield made
    made.close()


async def test_requests_join_a_batch_that_is_being_decoded(generator: Any) -> None:
    early = [ask(PROMPTS[n % 4], seed=n, max_tokens=20) for n in range(3)]
    late = [ask(PROMPTS[n % 4], seed=n, max_tokens=4) for n in range(3, 8)]
    with Steps(model(), hold_at=2) as steps:
        first = await begun(generator, *early)
        await steps.pause(2)
        second = await begun(generator, *late)
        steps.go_on.set()
        found = [*await first, *await second]
    assert steps.rows == [3] * (PREFILL - 1) + [4] + [8] * 3 + [3] * (17 - JOIN_STEPS - 1)
    alone = [await generator.generate(request) for request in (*early, *late)]
    assert [generation.token_ids for generation in found] == [generation.token_ids for generation in alone]
    check(model(), found)


async def test_several_join_one_after_the_other_and_leave_in_any_order(generator: Any) -> None:
    """Measured: log-probabilities within 4e-6 of a plain forward pass."""
    waves = [
        [ask(PROMPTS[(n + wave) % 4] * (1 + wave % 2), seed=10 * wave + n, max_tokens=1 + 9 * n) for n in range(5)]
        for wave in range(5)
    ]
    asked = []
    with Steps(model(), hold_at=2) as steps:
        for wave, requests in enumerate(waves):
            asked.append(await begun(generator, *requests))
            await steps.pause(2 + wave * PREFILL)
        steps.go_on.set()
        found = [request for wave in asked for request in await wave]
    assert len(steps.rows) < sum(
        max(request.max_tokens for request in wave) for wave in waves
    )  # they were decoded together, not in turn
    alone = [await generator.generate(request) for wave in waves for request in wave]
    assert [generation.token_ids for generation in found] == [generation.token_ids for generation in alone]
    check(model(), found)


async def test_columns_that_no_row_uses_are_dropped(generator: Any) -> None:
    with Steps(model()) as steps:
        await (await begun(generator, ask([20] * 30, max_tokens=2), ask([7, 8, 9], max_tokens=6)))
    assert steps.columns == [30, 31, 5, 6, 7, 8]


async def test_requests_with_other_sampling_are_not_overtaken(generator: Any) -> None:
    with Steps(model(), hold_at=2) as steps:
        first = await begun(generator, ask(max_tokens=20))
        await steps.pause(2)
        others = await begun(generator, *[ask(seed=n, max_tokens=3, temperature=0.5) for n in range(2)])
        same = await begun(generator, *[ask(seed=n, max_tokens=2) for n in range(3)])
        steps.go_on.set()
        found = [*await first, *await others, *await same]
    assert steps.rows == [1] * 20 + [2] * 3 + [3] * 2
    assert [len(generation.token_ids) for generation in found] == [20, 3, 3, 2, 2, 2]


async def test_no_more_join_than_there_is_room_for() -> None:
    generator = TransformersGenerator(model(), max_batch_size=3)
    with Steps(model(), hold_at=2) as steps:
        first = await begun(generator, *[ask(seed=n, max_tokens=30) for n in range(2)])
        await steps.pause(2)
        late = await begun(generator, *[ask(seed=n, max_tokens=5) for n in range(2, 4)])
        steps.go_on.set()
        found = [*await first, *await late]
    generator.close()
    assert max(steps.rows) == 3
    assert steps.rows.count(1) == 2  # the two prefills of one row
    assert [len(generation.token_ids) for generation in found] == [30, 30, 5, 5]
    check(model(), found)


@pytest.mark.parametrize("who", ["all that were decoded", "all that join", "one of each"])
async def test_rows_that_are_cancelled_while_others_join(generator: Any, who: str) -> None:
    with Steps(model(), hold_at=2) as steps:
        async with at_once(generator):
            early = [asyncio.ensure_future(generator.generate(ask([20] * 30, seed=n, max_tokens=30))) for n in range(2)]
        await steps.pause(2)
        async with at_once(generator):
            late = [asyncio.ensure_future(generator.generate(ask(seed=n, max_tokens=20))) for n in range(2, 4)]
        await steps.pause(PREFILL)
        cancelled = {"all that were decoded": early, "all that join": late, "one of each": [early[0], late[1]]}[who]
        for task in cancelled:
            task.cancel()
        await asyncio.wait(cancelled)
        steps.go_on.set()
        going_on = [task for task in (*early, *late) if task not in cancelled]
        found = await asyncio.gather(*going_on)
    assert steps.rows[PREFILL] == len(going_on)
    if who == "all that were decoded":
        assert steps.columns[PREFILL] == 3 + 1  # their columns went with them
    check(model(), found)


async def test_answers_of_one_token_never_join(generator: Any) -> None:
    with Steps(model(), hold_at=2) as steps:
        first = await begun(generator, ask(max_tokens=20))
        await steps.pause(2)
        late = await begun(generator, *[ask(seed=n, max_tokens=1) for n in range(4)])
        steps.go_on.set()
        found = [*await first, *await late]
    assert steps.rows == [1] * (PREFILL - 1) + [4] + [1] * (20 - PREFILL + 1)
    check(model(), found)


async def test_close_while_others_join() -> None:
    others = decoding_threads()
    generator = TransformersGenerator(model())
    with Steps(model(), hold_at=2) as steps:
        asked = [await begun(generator, *[ask(seed=n, max_tokens=1000) for n in range(2)])]
        await steps.pause(2)
        asked.append(await begun(generator, *[ask(seed=n, max_tokens=1000) for n in range(3)]))
        await steps.pause(PREFILL)
        asked.append(await begun(generator, ask(max_tokens=1000)))
        closing = asyncio.ensure_future(asyncio.to_thread(generator.close))
        await asyncio.to_thread(until_closing, generator)
        steps.go_on.set()
        await closing
    for future in asked:
        with pytest.raises(GenerationError, match="closed"):
            await future
    assert len(steps.rows) <= PREFILL + 1
    assert decoding_threads() <= others


@pytest.mark.parametrize("rows", [3, 5], ids=["in their prefill", "once they have joined"])
async def test_an_error_fails_only_the_requests_that_it_affects(rows: int) -> None:
    broken = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1)

    def fail(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["input_ids"].shape[0] == rows:
            raise MemoryError("no more")

    generator = TransformersGenerator(broken)
    with Steps(broken, hold_at=2) as steps:
        handle = broken.register_forward_pre_hook(fail, with_kwargs=True)
        first = await begun(generator, *[ask(seed=n, max_tokens=20) for n in range(2)])
        await steps.pause(2)
        second = await begun(generator, *[ask(seed=n) for n in range(3)])
        steps.go_on.set()
        with pytest.raises(GenerationError, match="MemoryError: no more"):
            await second
        if rows == 5:
            with pytest.raises(GenerationError, match="MemoryError: no more"):
                await first
        else:
            assert [len(generation.token_ids) for generation in await first] == [20, 20]
        handle.remove()
    assert len((await generator.generate(ask())).token_ids) == 12  # and the generator goes on
    generator.close()


async def test_requests_of_two_versions_of_the_weights_do_not_share_a_batch(generator: Any) -> None:
    """The trainer does not change weights while requests are in flight. Still, every answer names its weights."""
    generator.load_weights(model(), 0)  # which checks the cache, with steps of its own
    with Steps(model(), hold_at=2) as steps:
        first = await begun(generator, ask(max_tokens=20))
        await steps.pause(2)
        generator.load_weights(model(), 1)
        second = await begun(generator, ask(seed=1, max_tokens=20))
        steps.go_on.set()
        assert [(await generation)[0].weight_version for generation in (first, second)] == [0, 1]
    assert steps.rows == [1] * 40


SHARED: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SHARED |= {"num_attention_heads": 2, "num_key_value_heads": 2}
LONG: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
LONG |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 256}
OTHER_CACHES: dict[str, Any] = {
    "sliding window": Gemma3TextConfig(
        **SHARED, head_dim=16, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    ),
    "recurrent": Lfm2Config(**SHARED, layer_types=["conv", "full_attention"]),
    "longrope": LlamaConfig(**SHARED, max_position_embeddings=512, rope_parameters=LONG),
}


@pytest.mark.parametrize("name", OTHER_CACHES)
async def test_with_other_caches_later_requests_make_the_next_batch(name: str) -> None:
    torch.manual_seed(0)
    other = AutoModelForCausalLM.from_config(OTHER_CACHES[name]).eval()
    generator = TransformersGenerator(other)
    with Steps(other, hold_at=2) as steps:
        first = await begun(generator, *[ask(seed=n, max_tokens=20) for n in range(2)])
        await steps.pause(2)
        second = await begun(generator, *[ask([20 + n] * 30, seed=n, max_tokens=5) for n in range(3)])
        steps.go_on.set()
        found = [*await first, *await second]
    generator.close()
    assert steps.rows == [2] * 20 + [3] * 5
    check(other, found)
