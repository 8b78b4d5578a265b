"""TransformersGenerator: the right distribution, its log-probabilities, and independent requests."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from gymnast.trainer import Generation, GenerationRequest, Sampling, TransformersGenerator
from gymnast.trainer.generation.contract import GenerationError, StopTexts
from gymnast.trainer.generation.sampling import log_distribution, sample
from gymnast.trainer.testing.tiny import make_tiny_model

from .generating import (
    PROMPTS,
    Steps,
    answers,
    ask,
    at_once,
    decoding_threads,
    model,
    plain_logprobs,
    tokenizer,
    wait_until_closing,
)


@pytest.fixture
async def generator() -> AsyncIterator[TransformersGenerator]:
    made = TransformersGenerator(model())
    yield made
    made.close()


SAMPLINGS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("options", SAMPLINGS, ids=str)
async def test_logprobs_are_those_of_a_plain_forward_pass(generator: Any, options: dict[str, Any]) -> None:
    """Measured: at most 5e-6 in float32, over batches with padding and with rows that end early."""
    requests = [
        ask(prompt, seed=seed, max_tokens=4 + 7 * (seed % 4), **options) for seed in range(4) for prompt in PROMPTS
    ]
    for found in await answers(generator, requests):
        expected = plain_logprobs(model(), found, Sampling(**options))
        assert torch.isfinite(expected).all()
        torch.testing.assert_close(torch.tensor(found.logprobs), expected, rtol=0, atol=1e-5)


async def test_the_same_seed_gives_the_same_answer_whatever_the_batch(generator: Any) -> None:
    requests = [ask(PROMPTS[seed % 4], seed=seed, max_tokens=5 + seed) for seed in range(10)]
    together = await answers(generator, requests)
    backwards = (await answers(generator, requests[::-1]))[::-1]
    alone = [await generator.generate(request) for request in requests]
    assert [generation.token_ids for generation in together] == [generation.token_ids for generation in alone]
    assert [backward.token_ids for backward in backwards] == [generation.token_ids for generation in alone]
    longer = await generator.generate(ask(PROMPTS[0], seed=0, max_tokens=20))
    assert longer.token_ids[:5] == alone[0].token_ids  # the limit changes no earlier token
    assert len({tuple((await generator.generate(ask(seed=seed))).token_ids) for seed in range(5)}) == 5


async def test_greedy_takes_the_most_likely_token(generator: Any) -> None:
    for found in await answers(generator, [ask(prompt, seed=3, temperature=0.0) for prompt in PROMPTS]):
        ids = torch.tensor([found.prompt_ids + found.token_ids])
        best = model()(input_ids=ids).logits[0].argmax(-1)[len(found.prompt_ids) - 1 : -1]
        assert found.token_ids == best.tolist()


@pytest.mark.parametrize("options", SAMPLINGS[:-1], ids=str)
def test_tokens_are_drawn_from_the_distribution(options: dict[str, Any]) -> None:
    """Chi-square of 20,000 draws with fixed seeds. Tokens without probability are never drawn."""
    count, size = 20_000, 12
    logits_1V = torch.randn(1, size, generator=torch.Generator().manual_seed(1)) * 2
    probs_V = log_distribution(logits_1V, Sampling(**options)).exp()[0]
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(2), dtype=torch.float64).tolist()
    tokens, logprobs = sample(logits_1V.expand(count, size), uniforms, Sampling(**options))
    torch.testing.assert_close(logprobs, probs_V.log()[tokens])
    seen_V = torch.bincount(tokens, minlength=size)
    assert (seen_V[probs_V == 0] == 0).all()
    possible = probs_V > 0
    expected = probs_V[possible] * count
    chi_square = ((seen_V[possible] - expected) ** 2 / expected).sum().item()
    assert chi_square < 32  # 11 degrees of freedom: exceeded once in 1,000 seeds


async def test_answers_follow_the_models_distribution(generator: Any) -> None:
    """Tests the whole generator: the first token of 1,500 seeds against a plain forward pass."""
    found = await answers(generator, [ask([7, 8, 9], seed, max_tokens=1, top_k=4) for seed in range(1500)])
    logits_1V = model()(input_ids=torch.tensor([[7, 8, 9]])).logits[:, -1].detach()
    probs = log_distribution(logits_1V, Sampling(top_k=4)).exp()[0]
    seen = Counter(generation.token_ids[0] for generation in found)
    assert set(seen) <= set(probs.nonzero()[:, 0].tolist())
    chi_square = sum(
        (seen[i] - 1500 * float(probs[i])) ** 2 / (1500 * float(probs[i])) for i in probs.nonzero()[:, 0].tolist()
    )
    assert chi_square < 16.3  # 3 degrees of freedom, 1 in 1,000


def test_the_largest_uniform_gives_a_possible_token() -> None:
    logits = torch.tensor([[0.3, 0.1, 0.7, -1.0, 5.0]])
    almost_one = [1 - 2**-53]
    token, logprob = sample(logits, almost_one, Sampling(top_k=3))  # token 3 and 1 have no probability
    assert token.tolist() == [4]
    token, logprob = sample(logits.flip(1), almost_one, Sampling(top_k=3))
    assert token.tolist() == [4]
    token, logprob = sample(torch.tensor([[0.3, 0.7, 0.1]]), almost_one, Sampling(top_k=2))
    assert token.tolist() == [1]
    assert torch.isfinite(logprob).all()
    token, _ = sample(torch.tensor([[-5.0, 0.7, 0.1]]), [0.0], Sampling(top_k=2))
    assert token.tolist() == [1]


async def test_stop_tokens_end_an_answer_and_belong_to_it(generator: Any) -> None:
    whole = await generator.generate(ask(seed=5, max_tokens=40))
    for stop in {whole.token_ids[3], whole.token_ids[20]}:
        found = await generator.generate(
            ask(seed=5, max_tokens=40, stop_ids=frozenset({stop, 3, *range(10**5, 10**5 + 999)}))
        )
        end = min(i for i, token in enumerate(whole.token_ids) if token in (stop, 3)) + 1
        assert (found.token_ids, found.finish) == (whole.token_ids[:end], "stop")
        assert len(found.logprobs) == end
    found = await generator.generate(ask(seed=5, max_tokens=4, stop_ids=frozenset({whole.token_ids[3]})))
    assert found.finish == "stop"  # the last token that was allowed


async def test_the_token_that_completes_a_stop_text_ends_an_answer(generator: Any) -> None:
    whole = await generator.generate(ask(seed=5, max_tokens=40))
    text = tokenizer().decode(whole.token_ids[10:13])
    texts = StopTexts(("never", text), tokenizer().decode)
    found = await generator.generate(replace(ask(seed=5, max_tokens=40), stop_texts=texts))
    assert (found.token_ids, found.finish) == (whole.token_ids[: len(found.token_ids)], "stop")
    assert text in tokenizer().decode(found.token_ids)
    assert text not in tokenizer().decode(found.token_ids[:-1])
    assert texts.cut(whole.token_ids) == found.token_ids  # for engines that go on
    assert texts.cut(found.token_ids[:-1]) is None


async def test_max_tokens_and_the_prompt_as_it_was_seen(generator: Any) -> None:
    requests = [ask(PROMPTS[n % 4], seed=n, max_tokens=n) for n in range(1, 9)]
    for request, found in zip(requests, await answers(generator, requests), strict=True):
        assert (len(found.token_ids), found.finish) == (request.max_tokens, "length")
        assert found.prompt_ids == request.prompt.ids


async def test_requests_share_a_batch_and_packed_rows_leave_it(generator: Any) -> None:
    with Steps(model()) as steps:
        await answers(generator, [ask(seed=n, max_tokens=3 if n < 6 else 10) for n in range(8)])
    assert steps.rows == [8] * 3 + [2] * 7


async def test_an_answer_is_returned_before_its_batch_ends(generator: Any) -> None:
    with Steps(model()) as steps:
        steps.hold_at = 3
        async with at_once(generator):
            long = asyncio.ensure_future(generator.generate(ask(max_tokens=20)))
            short = asyncio.ensure_future(generator.generate(ask(max_tokens=1)))
        assert len((await short).token_ids) == 1
        assert not long.done()
        steps.go_on.set()
        await long


async def test_requests_with_other_sampling_make_another_batch(generator: Any) -> None:
    requests = [ask(seed=n, max_tokens=3, temperature=float(n % 2)) for n in range(6)]
    with Steps(model()) as steps:
        found = await answers(generator, requests)
    assert steps.rows == [3] * 6
    alone = [await generator.generate(request) for request in requests]
    assert [generation.token_ids for generation in found] == [generation.token_ids for generation in alone]


async def test_no_batch_is_larger_than_allowed() -> None:
    generator = TransformersGenerator(model(), max_batch_size=4)
    with Steps(model()) as steps:
        await answers(generator, [ask(seed=n, max_tokens=1) for n in range(10)])
    generator.close()
    assert steps.rows == [4, 4, 2]


async def test_a_cancelled_request_leaves_and_the_others_go_on(generator: Any) -> None:
    with Steps(model()) as steps:
        steps.hold_at = 2
        async with at_once(generator):
            tasks = [asyncio.ensure_future(generator.generate(ask(seed=n, max_tokens=8))) for n in range(4)]
        await steps.begun.wait()
        for task in tasks[:2]:
            task.cancel()
        waiting = asyncio.ensure_future(generator.generate(ask(seed=9)))
        await asyncio.wait(tasks[:2])
        waiting.cancel()  # it has not begun
        await asyncio.wait([waiting])
        steps.go_on.set()
        found = await asyncio.gather(*tasks[2:])
    assert all(task.cancelled() for task in (*tasks[:2], waiting))
    assert [len(generation.token_ids) for generation in found] == [8, 8]
    assert found[0].token_ids == (await generator.generate(ask(seed=2, max_tokens=8))).token_ids
    assert steps.rows == [4, 4] + [2] * 6


async def test_close_fails_unanswered_requests_and_joins_the_thread() -> None:
    others = decoding_threads()
    generator = TransformersGenerator(model(), max_batch_size=2)
    with Steps(model()) as steps:
        steps.hold_at = 2
        async with at_once(generator):
            tasks = [asyncio.ensure_future(generator.generate(ask(seed=n, max_tokens=1000))) for n in range(3)]
        await steps.begun.wait()
        closing = asyncio.ensure_future(asyncio.to_thread(generator.close))
        await asyncio.to_thread(wait_until_closing, generator)
        steps.go_on.set()
        await closing
    for task in tasks:
        with pytest.raises(GenerationError, match="closed"):
            await task
    assert len(steps.rows) == 2
    assert decoding_threads() <= others
    with pytest.raises(GenerationError, match="closed"):
        await generator.generate(ask())
    generator.close()  # again: nothing happens


async def test_an_idle_thread_ends_and_the_next_request_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.trainer.generation.transformers_generator.IDLE_SECONDS", 0.01)
    others = decoding_threads()
    generator = TransformersGenerator(model())
    await generator.generate(ask(max_tokens=1))
    for thread in decoding_threads() - others:
        thread.join(30)
    assert decoding_threads() <= others
    assert len((await generator.generate(ask(max_tokens=2))).token_ids) == 2
    generator.close()
    assert decoding_threads() <= others


async def test_an_error_in_the_model_reaches_every_request_of_the_batch() -> None:
    broken = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1)
    generator = TransformersGenerator(broken)

    def fail(*args: Any) -> None:
        raise MemoryError("no more")

    handle = broken.register_forward_pre_hook(fail)
    found = await asyncio.gather(*[generator.generate(ask(seed=n)) for n in range(3)], return_exceptions=True)
    handle.remove()
    assert [str(answer) for answer in found] == ["the model failed while decoding: MemoryError: no more"] * 3
    assert len({id(answer) for answer in found}) == 3  # each has its own traceback
    assert isinstance(found[0], GenerationError)
    assert isinstance(found[0].__cause__, MemoryError)
    assert len((await generator.generate(ask())).token_ids) == 12  # and the generator goes on
    generator.close()


async def test_logits_that_are_not_finite_are_an_error() -> None:
    broken = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1)
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    generator = TransformersGenerator(broken)
    for temperature in (0.0, 1.0):
        with pytest.raises(GenerationError, match="logits are not finite"):
            await generator.generate(ask(temperature=temperature))
    generator.close()


async def test_dropout_is_off_and_every_modules_mode_is_restored() -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_dropout=0.9,
    )
    trained: Any = AutoModelForCausalLM.from_config(config).train()
    trained.model.layers[0].eval()  # a frozen part
    modes = [module.training for module in trained.modules()]
    generator = TransformersGenerator(trained)
    first = await generator.generate(ask(seed=1))
    assert first.token_ids == (await generator.generate(ask(seed=1))).token_ids
    generator.close()
    assert [module.training for module in trained.modules()] == modes
    assert len(set(modes)) == 2
    torch.testing.assert_close(
        torch.tensor(first.logprobs), plain_logprobs(trained.eval(), first, Sampling()), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(prompt=[]), "needs a prompt"),
        (ask(max_tokens=0), "max_tokens >= 1"),
        (ask(prompt=[1, 10**6]), "has token 1000000, but the model's vocabulary has"),
    ],
)
async def test_requests_that_cannot_be_answered(generator: Any, request_: GenerationRequest, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await generator.generate(request_)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2.0},
    ],
    ids=str,
)
def test_sampling_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Sampling(**options)


def test_batch_size_out_of_range() -> None:
    with pytest.raises(ValueError, match="max_batch_size must be at least 1, got 0"):
        TransformersGenerator(model(), max_batch_size=0)


def test_a_generation_has_one_log_probability_for_each_token() -> None:
    with pytest.raises(GenerationError, match="one log-probability for each of its 2 tokens, got 1"):
        Generation(token_ids=[3, 4], logprobs=[-0.5], finish="stop", prompt_ids=[1])


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf])
def test_a_generation_has_finite_log_probabilities(logprob: float) -> None:
    """Otherwise a metric would silently ignore the values."""
    with pytest.raises(GenerationError, match="logits are not finite"):
        Generation(token_ids=[3, 4], logprobs=[-0.5, logprob], finish="stop", prompt_ids=[1])


def test_a_generation_is_complete() -> None:
    with pytest.raises(GenerationError, match="ended an answer early: abort"):
        Generation(token_ids=[3], logprobs=[-0.5], finish="abort", prompt_ids=[1])  # type: ignore[arg-type]
