"""TransformersGenerator computes a token once, pads little, and goes on with less memory; no answer changes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gymnast.trainer import Generation, TransformersGenerator
from gymnast.trainer.generation.contract import GenerationError
from gymnast.trainer.generation.prefill import MAX_TOKENS
from gymnast.trainer.testing.tiny import make_tiny_model

from .generating import Steps, answers, ask, check, model, tokenizer
from .test_joining import OTHER_CACHES

TURNS = 4
KEPT_BYTES_A_TOKEN = 2 * 2 * 32 * 4  # two layers, keys and values, 32 numbers in float32


class Session:
    """A conversation."""


async def converse(generator: TransformersGenerator, sessions: list[Any], between: Any = None) -> list[Generation]:
    """Play conversations in step, with prompts, answers and observations of different lengths."""
    found: list[Generation] = []
    prompts = [[20 + row] * (3 + 7 * row) for row in range(len(sessions))]
    for turn in range(TURNS):
        requests = [
            ask(prompts[row], seed=10 * turn + row, max_tokens=2 + (row + turn) % 3, session=session)
            for row, session in enumerate(sessions)
        ]
        found += await answers(generator, requests)
        of_turn = zip(prompts, found[-len(sessions) :], strict=True)
        prompts = [ids + answer.token_ids + [50 + turn] * (1 + 5 * row) for row, (ids, answer) in enumerate(of_turn)]
        if between is not None:
            between()
    return found


async def test_a_turn_computes_only_its_new_tokens() -> None:
    generator = TransformersGenerator(model())
    with Steps(model()) as steps:
        found = await converse(generator, [Session() for _ in range(4)])
    whole = await converse(generator, [None] * 4)
    generator.close()
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in whole]
    check(model(), found)
    before = [0] * 4 + [len(answer.prompt_ids) + len(answer.token_ids) - 1 for answer in found[:-4]]
    assert [answer.num_cached for answer in found] == before
    assert {answer.num_cached for answer in whole} == {0}
    assert max(steps.tokens[1:]) < 4 * 24  # later turns have prompts of up to 70 tokens


@pytest.mark.parametrize("what", ["new weights", "the end of the round", "no budget", "no session", *OTHER_CACHES])
async def test_turns_that_are_computed_from_their_first_token(what: str) -> None:
    torch.manual_seed(0)
    other: Any = AutoModelForCausalLM.from_config(OTHER_CACHES[what]).eval() if what in OTHER_CACHES else model()
    generator = TransformersGenerator(other, kept_bytes=10 if what == "no budget" else None)
    between = {"new weights": lambda: generator.load_weights(other, 1), "the end of the round": generator.sleep}
    sessions = [None if what == "no session" else Session() for _ in range(3)]
    found = await converse(generator, sessions, between.get(what))
    generator.close()
    check(other, found)
    assert {answer.num_cached for answer in found} == {0}


async def test_a_cache_serves_only_prompts_that_begin_with_its_tokens() -> None:
    generator, session = TransformersGenerator(model()), Session()
    first = await generator.generate(ask([7] * 20, session=session))
    other = await generator.generate(ask([8] * 40, session=session))
    again = await generator.generate(ask([8] * 40 + other.token_ids[:-1], session=session))
    generator.close()
    check(model(), [first, other, again])
    assert [answer.num_cached for answer in (first, other, again)] == [0, 0, 0]


async def test_the_least_recently_used_caches_are_dropped_and_those_of_ended_sessions() -> None:
    generator = TransformersGenerator(model(), kept_bytes=50 * KEPT_BYTES_A_TOKEN)
    first, second, third = [Session() for _ in range(3)]

    async def turn(prompt: list[int], session: Session) -> Generation:
        return await generator.generate(ask(prompt, max_tokens=1, session=session))

    for session in (first, second):
        await turn([9] * 20, session)
    assert (await turn([9] * 22, first)).num_cached == 20
    await turn([9] * 20, third)  # the second one has to go
    assert [(await turn([9] * 23, session)).num_cached for session in (first, third, second)] == [22, 20, 0]
    del second, session  # the first one has gone, the third one is the next
    await turn([9] * 25, first)
    assert (await turn([9] * 24, third)).num_cached == 23
    generator.close()


async def test_a_long_row_is_decoded_apart_from_short_ones_and_prompts_are_prefilled_by_length() -> None:
    generator = TransformersGenerator(model())
    lengths = [20, 400, 22, 21, 420, 23]
    requests = [ask([30 + row] * length, seed=row, max_tokens=4) for row, length in enumerate(lengths)]
    with Steps(model()) as steps:
        found = await answers(generator, requests)
    check(model(), found)
    assert steps.rows == [4, 2] * 4
    assert steps.columns[:2] == [23, 420]
    with Steps(model()) as steps:
        late = [ask([20] * (MAX_TOKENS // 5), seed=row, max_tokens=2) for row in range(6)]
        late += [ask([20 + row] * (MAX_TOKENS // 5), seed=row, max_tokens=2) for row in range(1, 7)]
        await answers(generator, late)
    generator.close()
    assert steps.rows == [5, 2, 12]  # seven prompts, of which five are computed at once


@pytest.mark.parametrize("what", ["tokens computed at once", "tokens in the cache"])
async def test_out_of_memory_halves_the_rows_and_no_answer_changes(what: str, caplog: Any) -> None:
    small, most = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1), 130
    requests = [ask(seed=row, prompt=[20 + row] * 30, max_tokens=12) for row in range(8)]

    def fail(module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"]
        size = ids.numel() if what == "tokens computed at once" else len(ids) * kwargs["attention_mask"].shape[1]
        if size > most:
            raise torch.OutOfMemoryError("no more")

    generator = TransformersGenerator(small)
    generator.load_weights(small, 0)
    whole = await answers(generator, requests)
    handle = small.register_forward_pre_hook(fail, with_kwargs=True)
    with Steps(small) as steps, caplog.at_level(logging.WARNING):
        found = await answers(generator, requests)
        assert len(steps.rows) > 12
        assert [answer.token_ids for answer in found] == [answer.token_ids for answer in whole]
        assert "out of memory" in caplog.text
        for until in (generator.wake, lambda: generator.load_weights(small, 1)):
            count = len(caplog.records)
            await answers(generator, requests)
            assert len(caplog.records) == count  # it is remembered ...
            until()
            await answers(generator, requests)
            assert len(caplog.records) > count  # ... until the next round
    most = 20
    with pytest.raises(GenerationError, match="OutOfMemoryError: no more"):
        await generator.generate(requests[0])
    handle.remove()
    generator.close()
    check(small, found)


@pytest.mark.parametrize("name", ["searchsorted", "index_select"])
async def test_memory_that_runs_out_behind_a_forward_pass_changes_no_answer(name: str, monkeypatch: Any) -> None:
    """It runs out once, at each place where a token is sampled, a cache is kept, or rows are dropped or repeated."""
    owner: Any = torch if name == "searchsorted" else torch.Tensor
    plain, calls, fails_at = getattr(owner, name), 0, 0

    def once(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise torch.OutOfMemoryError("no more")
        return plain(*args, **options)

    monkeypatch.setattr(owner, name, once)
    options: dict[str, Any] = {"stop_ids": frozenset(range(0, 280, 5)), "max_tokens": 6}

    async def play() -> list[Generation]:
        nonlocal calls
        calls, sessions = 0, [Session() for _ in range(6)]
        generator = TransformersGenerator(model())
        prompts = [[20 + seed // 2] * 9 for seed in range(6)]
        requests = [ask(prompts[seed], seed, session=sessions[seed], **options) for seed in range(6)]
        try:
            return await answers(generator, requests)
        finally:
            generator.close()

    whole = await play()
    assert {answer.finish for answer in whole} == {"stop", "length"}
    for fails_at in range(1, calls + 1):  # noqa: B007
        found = await play()
        assert [answer.token_ids for answer in found] == [answer.token_ids for answer in whole]
        check(model(), found)


@pytest.mark.parametrize("fails_at", [1, 3])
async def test_a_single_row_goes_on_once_the_kept_caches_are_dropped(fails_at: int) -> None:
    small, session, steps = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1), Session(), 0
    generator = TransformersGenerator(small)
    whole = await generator.generate(ask())
    await generator.generate(ask([7] * 20, session=session))

    def fail(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == fails_at:
            raise torch.OutOfMemoryError("no more")

    handle = small.register_forward_pre_hook(fail)
    found = await generator.generate(ask())
    handle.remove()
    generator.close()
    assert found.token_ids == whole.token_ids
    assert steps > fails_at
