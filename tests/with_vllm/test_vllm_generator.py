"""VLLMGenerator: samples and their log-probabilities, new weights, cancelled and failed requests, and its end."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gymnast.envs.core import ConfigurationError
from gymnast.trainer import Generation, Sampling
from gymnast.trainer.generation.contract import GenerationError, StopTexts
from gymnast.trainer.vllm.in_process import VLLMGenerator

from .serving import PROMPT, answers, ask, change, error

TOLERANCE = 1e-4  # nats, in float32; seen: 4e-6


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.0}], ids=str
)
async def test_logprobs_are_those_of_the_sampling_distribution(
    engine: VLLMGenerator, model: Any, options: dict[str, Any]
) -> None:
    engine.load_weights(model, 0)
    for generation in await answers(engine, [ask(seed=seed, **options) for seed in range(4)]):
        assert len(generation.token_ids) == len(generation.logprobs) == 16
        assert generation.prompt_ids == PROMPT
        assert error(model, generation, Sampling(**options)) < TOLERANCE


async def test_greedy_decoding_takes_the_most_probable_token(engine: VLLMGenerator, model: Any) -> None:
    engine.load_weights(model, 0)
    [generation] = await answers(engine, [ask(temperature=0.0)])
    ids = torch.tensor([PROMPT + generation.token_ids])
    with torch.no_grad():
        best_T = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].argmax(-1)
    assert generation.token_ids == best_T.tolist()


async def test_a_seed_gives_the_same_answer_whatever_else_is_decoded(engine: VLLMGenerator, model: Any) -> None:
    engine.load_weights(model, 0)
    [alone] = await answers(engine, [ask(seed=7)])
    among = await answers(engine, [ask(PROMPT[: 10 + seed], seed) for seed in range(7)] + [ask(seed=7)])
    assert among[-1].token_ids == alone.token_ids
    assert len({tuple(generation.token_ids) for generation in among}) == 8


async def test_an_answer_ends_with_a_stop_token_a_stop_text_or_its_budget(
    engine: VLLMGenerator, model: Any, tokenizer: Any
) -> None:
    engine.load_weights(model, 0)
    [whole] = await answers(engine, [ask(seed=3)])
    stop = whole.token_ids[5]
    [stopped] = await answers(engine, [ask(seed=3, stop_ids=frozenset({stop}))])
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert (whole.finish, stopped.finish) == ("length", "stop")
    assert len(whole.token_ids) == 16
    texts = StopTexts(("never", tokenizer.decode(whole.token_ids[5:7])), tokenizer.decode)
    [stopped] = await answers(engine, [replace(ask(seed=3), stop_texts=texts)])
    assert (stopped.token_ids, stopped.finish) == (texts.cut(whole.token_ids), "stop")
    assert len(stopped.logprobs) == len(stopped.token_ids)


async def test_new_weights_are_sampled_with_and_old_prefixes_forgotten(engine: VLLMGenerator, model: Any) -> None:
    """With old weights or old prefixes, the log-probabilities would be nats away."""
    engine.load_weights(model, 4)
    [first] = await answers(engine, [ask()])
    [again] = await answers(engine, [ask()])
    assert (first.num_cached, again.num_cached) == (0, 96)
    change(model)
    [stale] = await answers(engine, [ask()])
    assert error(model, stale) > 0.1
    engine.load_weights(model, 5)
    [fresh] = await answers(engine, [ask()])
    assert error(model, fresh) < TOLERANCE
    assert fresh.num_cached == 0
    assert [generation.weight_version for generation in (first, again, stale, fresh)] == [4, 4, 4, 5]


async def test_more_prompts_than_fit_into_one_step(engine: VLLMGenerator, model: Any) -> None:
    """On CPUs a prompt in chunks would crash the engine."""
    engine.load_weights(model, 0)
    prompts = [[5 + (index + number) % 200 for index in range(450)] for number in range(12)]
    found = await answers(engine, [ask(prompt, seed) for seed, prompt in enumerate(prompts)])
    assert max(error(model, answer) for answer in found) < TOLERANCE


async def test_a_cancelled_request_leaves_the_engine(engine: VLLMGenerator, model: Any) -> None:
    engine.load_weights(model, 0)
    task = asyncio.create_task(engine.generate(ask(max_tokens=400)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine._engine.call(lambda item: item.get_num_unfinished_requests()) == 0
    assert (await engine.generate(ask())).finish == "length"


async def test_a_wrong_request_fails_alone(engine: VLLMGenerator, model: Any) -> None:
    engine.load_weights(model, 0)
    with pytest.raises(ValueError, match="prompt has token 100000"):
        await engine.generate(ask([100000]))
    with pytest.raises(ValueError, match="max_tokens=0"):
        await engine.generate(ask(max_tokens=0))
    long, good = await asyncio.gather(engine.generate(ask([7] * 600)), engine.generate(ask()), return_exceptions=True)
    assert isinstance(long, GenerationError)
    assert "512" in str(long)
    assert isinstance(good, Generation)


async def test_a_broken_engine_fails_waiting_and_later_requests(tokenizer: Any, model: Any) -> None:
    generator = VLLMGenerator(model, max_model_len=512)
    generator.load_weights(model, 0)
    task = asyncio.create_task(generator.generate(ask(max_tokens=400)))
    await asyncio.sleep(0.05)

    def break_model(engine: Any) -> None:
        engine.apply_model(lambda item: item.model.layers.__delitem__(slice(0, 2)) or setattr(item.model, "norm", None))

    generator._engine.call(break_model)
    with pytest.raises(GenerationError, match="vLLM failed while generating"):
        await task
    with pytest.raises(GenerationError, match="vLLM failed while generating"):
        await generator.generate(ask())
    generator.close()


async def test_closing_fails_waiting_requests_and_ends_the_thread(model: Any) -> None:
    generator = VLLMGenerator(model, max_model_len=512)
    generator.load_weights(model, 0)
    task = asyncio.create_task(generator.generate(ask(max_tokens=400)))
    await asyncio.sleep(0.05)
    generator.close()
    with pytest.raises(GenerationError, match="closed"):
        await task
    with pytest.raises(GenerationError, match="closed"):
        await generator.generate(ask())
    assert sum(thread.name == "gymnast-vllm" for thread in threading.enumerate()) <= 1  # the module's own


async def test_an_engine_that_ends_leaves_the_others_alone(engine: VLLMGenerator, model: Any) -> None:
    engine.load_weights(model, 0)
    [before] = await answers(engine, [ask()])
    VLLMGenerator(model, max_model_len=512).close()
    engine.load_weights(model, 1)
    [after] = await answers(engine, [ask()])
    assert after.token_ids == before.token_ids


async def test_logits_that_are_not_numbers_are_an_error(engine: VLLMGenerator, model: Any) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    engine.load_weights(model, 0)
    with pytest.raises(GenerationError, match="logits are not finite"):
        await engine.generate(ask())


def test_a_model_that_lacks_weights_is_refused(engine: VLLMGenerator, model: Any) -> None:
    model.model.layers[1].mlp.down_proj = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"lacks weights of vLLM's: model.layers.1.mlp.down_proj.weight"):
        engine.load_weights(model, 0)


def test_a_forgotten_generator_ends_its_engine(model: Any) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "gymnast-vllm"}
    generator = VLLMGenerator(model, max_model_len=512)
    del generator
    gc.collect()
    assert {thread for thread in threading.enumerate() if thread.name == "gymnast-vllm"} == before


def test_making_an_engine_changes_neither_seeds_nor_threads(model: Any) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[union-attr]
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    VLLMGenerator(model, max_model_len=512, seed=5).close()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # type: ignore[union-attr]
    assert random.getstate() == states[2]
    assert (torch.set_num_threads, torch.get_num_threads()) == (set_num_threads, threads)


def test_gpu_options_warn_without_a_gpu(model: Any) -> None:
    if torch.cuda.is_available():
        return  # there they have an effect
    with pytest.warns(UserWarning, match="gpu_memory_utilization, enable_sleep_mode: no effect"):
        VLLMGenerator(model, max_model_len=512, gpu_memory_utilization=0.5, enable_sleep_mode=True).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine_kwargs": {"no_such_option": 1}}, "no_such_option"),
        ({"engine_kwargs": {"block_size": 7}}, "block"),
        ({"max_model_len": 1 << 20}, "max_model_len"),
        ({"engine_kwargs": {"logprobs_mode": "raw_logprobs"}}, "cannot set logprobs_mode: gymnast sets them itself"),
        ({"engine_kwargs": {"tensor_parallel_size": 2}}, "use generator='vllm-server' for a model that needs several"),
    ],
    ids=["unknown option", "block size", "context", "log-probabilities", "several GPUs"],
)
def test_an_option_that_vllm_refuses_is_a_configuration_error(
    model: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        VLLMGenerator(model, **{"max_model_len": 512, **options})
