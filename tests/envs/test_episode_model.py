"""EpisodeModel: requests become lines, and each line has the exact tokens that the model saw and sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from gymnast.envs import (
    Calculator,
    ConfigurationError,
    Episode,
    EpisodeModel,
    Message,
    OverlongPromptError,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    tool_call,
)
from gymnast.envs.core import LimitReachedError
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.trainer import ChatFormat, Generation, GenerationRequest, Generator, Sampling, TokenBudgets, TokenPolicy
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}
QUESTION: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 4?"}]


def said(text: str) -> Message:
    return {"role": "user", "content": text}


@cache
def chat() -> ChatFormat:
    return ChatFormat(make_tiny_tokenizer([CALL, "one", "Be brief."] * 3))


def spelled(text: str) -> list[int]:
    """One token for each character, as no tokenizer would write it, and one for the end."""
    encode = chat().tokenizer.encode
    ids = [token for character in text.removesuffix(END) for token in encode(character, add_special_tokens=False)]
    return [*ids, *[chat().end_id] * text.endswith(END)]


class Spells(Generator):
    """Answers with a text, letter by letter; several requests that come together are answered together."""

    def __init__(self, text: str = f"one{END}", together: int = 1) -> None:
        self.text = text
        self.together = asyncio.Barrier(together)
        self.requests: list[GenerationRequest] = []
        self.sampled: list[list[int]] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        await self.together.wait()
        self.requests.append(request)
        ids = spelled(self.text)[: request.max_tokens]
        self.sampled.append(ids)
        finish = "stop" if ids[-1] in request.stop_ids else "length"
        return Generation(token_ids=ids, logprobs=[-1.0] * len(ids), finish=finish, prompt_ids=request.prompt.ids)

    def load_weights(self, model: Any, version: int) -> None:
        """It has no weights."""

    def close(self) -> None:
        """It holds nothing."""


def model_of(policy: Any, **options: Any) -> EpisodeModel:
    [spec] = episode_specs([{}], group_size=1, seed=0)
    return EpisodeModel(Episode(spec=spec), policy, **options)


def with_tokens(generator: Generator, **budgets: Any) -> EpisodeModel:
    limits = TokenBudgets(**{"max_completion_length": 4000, "max_model_len": 8000, **budgets})
    return model_of(TokenPolicy(chat(), generator, sampling=Sampling(), budgets=limits))


def check_exact(model: EpisodeModel, generator: Spells) -> None:
    """Every answer stands in the trace of its turn, behind the tokens that the model saw."""
    episode = model.episode
    assert len(episode.turns) == len(generator.requests)
    places = [0] * len(episode.traces)
    for turn, request, ids in zip(episode.turns, generator.requests, generator.sampled, strict=True):
        trace = episode.traces[turn.sample]
        start = trace.mask.index(1, places[turn.sample])
        assert request.prompt.ids == trace.prompt_ids + trace.completion_ids[:start]
        assert trace.completion_ids[start : start + turn.num_tokens] == ids[: turn.num_tokens]
        places[turn.sample] = start + turn.num_tokens
    assert [sum(trace.mask[place:]) for trace, place in zip(episode.traces, places, strict=True)] == [0] * len(places)
    assert [trace.drift for trace in episode.traces] == [0] * len(places)


async def test_a_request_that_goes_on_is_an_observation() -> None:
    generator = Spells()
    model = with_tokens(generator)
    first = await model.ask(QUESTION)
    assert first == {"role": "assistant", "content": "one"}
    second = await model.ask([*QUESTION, first, said("more")])
    await model.ask([*QUESTION, first, said("more"), second])  # nothing is new
    assert [turn.sample for turn in model.episode.turns] == [0, 0, 0]
    assert len(model.episode.traces) == 1
    check_exact(model, generator)


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer,
        lambda answer: {**answer, "content": None, "reasoning_content": "", "refusal": None},
        lambda answer: {
            **answer,
            "tool_calls": [{**answer["tool_calls"][0], "function": {"name": "add", "arguments": '{ "a":3 }'}}],
        },
    ],
)
async def test_an_answer_comes_back_in_another_spelling(change: Callable[[Any], Any]) -> None:
    generator = Spells(CALL + END)
    model = with_tokens(generator)
    answer = await model.ask(QUESTION, [TOOL])
    result: Message = {"role": "tool", "name": "add", "tool_call_id": "call_0", "content": "7"}
    await model.ask([*QUESTION, change(answer), result], [TOOL])
    assert len(model.episode.traces) == 1
    check_exact(model, generator)


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda answer: (QUESTION, []), id="the beginning again"),
        pytest.param(lambda answer: ([QUESTION[1], answer, said("more")], []), id="a message less"),
        pytest.param(lambda answer: ([*QUESTION, {**answer, "content": "two"}, said("more")], []), id="edited answer"),
        pytest.param(lambda answer: ([*QUESTION, answer, said("more")], [TOOL]), id="other tools"),
        pytest.param(lambda answer: ([*QUESTION, answer, said("x"), {**answer, "content": "o"}], []), id="first words"),
    ],
)
async def test_any_other_request_begins_a_line(request_of: Callable[[Message], Any]) -> None:
    generator = Spells()
    model = with_tokens(generator)
    answer = await model.ask(QUESTION)
    messages, tools = request_of(answer)
    other = await model.ask(messages, tools)
    await model.ask([*QUESTION, answer, said("on")])  # the first line can still be extended
    assert [turn.sample for turn in model.episode.turns] == [0, 1, 0]
    prompt, begun = chat().begin(messages, tools)
    assert model.episode.traces[1].prompt_ids == prompt.ids + begun
    assert other.get("content") == ("oone" if begun else "one")
    check_exact(model, generator)


async def test_equal_requests_at_the_same_time_have_a_line_each() -> None:
    generator = Spells()
    model = with_tokens(generator)
    answer = await model.ask(QUESTION)
    generator.together = asyncio.Barrier(2)
    history = [*QUESTION, answer, said("more")]
    both = await asyncio.gather(model.ask(history), model.ask(history))
    generator.together = asyncio.Barrier(1)
    await model.ask([*history, both[0], said("on")])
    assert sorted(turn.sample for turn in model.episode.turns[:3]) == [0, 0, 1]
    assert len(model.episode.traces) == 2
    assert len({request.seed for request in generator.requests}) == 4
    check_exact(model, generator)


async def test_messages_that_are_changed_afterwards_do_not_change_the_line() -> None:
    model = with_tokens(Spells())
    messages: Any = [said("first")]
    answer = await model.ask(messages)
    messages[0]["content"] = "edited"
    await model.ask([*messages, answer, said("more")])
    assert len(model.episode.traces) == 2


async def test_the_budget_of_tokens_counts_over_all_lines() -> None:
    generator = Spells("one" * 3)
    model = with_tokens(generator, max_completion_length=15)
    await model.ask([said("a")])
    await model.ask([said("b")])
    assert [request.max_tokens for request in generator.requests] == [15, 6]
    with pytest.raises(LimitReachedError, match="max_completion_length=15 is spent") as caught:
        await model.ask([said("c")])
    assert caught.value.stop is StopReason.MAX_TOKENS
    assert [turn.stop for turn in model.episode.turns] == [StopReason.MAX_TOKENS] * 2
    assert len(model.episode.traces) == 2


async def test_a_line_whose_context_is_full_can_go_on_otherwise() -> None:
    generator = Spells()
    model = with_tokens(generator, max_model_len=80)
    answer = await model.ask(QUESTION)
    with pytest.raises(OverlongPromptError, match="tokens leave no room for an answer in max_model_len=80") as caught:
        await model.ask([*QUESTION, answer, said("x" * 80)])
    assert (caught.value.length or 0) > 80
    with pytest.raises(OverlongPromptError):
        await model.ask([said("x" * 80)])
    await model.ask([*QUESTION, answer, said("x")])
    assert len(model.episode.traces) == 1
    check_exact(model, generator)


async def test_the_limit_of_turns_counts_over_all_lines() -> None:
    model = model_of(ScriptedPolicy(lambda messages: "yes", delay=0.001), max_turns=2)
    asked = [model.ask([said(text)]) for text in "abc"]
    *answers, late = await asyncio.gather(*asked, return_exceptions=True)
    assert answers == [{"role": "assistant", "content": "yes"}] * 2
    assert isinstance(late, LimitReachedError)
    assert late.stop is StopReason.MAX_TURNS


async def test_a_stop_text_ends_the_answer() -> None:
    """The trace ends with the token that completes the text, and the caller gets the text before it."""
    generator = Spells("Do: x\nResult: 7" + END)
    model = with_tokens(generator)
    answer = await model.ask(QUESTION, stop=["none", "Result"])
    assert answer == {"role": "assistant", "content": "Do: x\n"}
    [trace] = model.episode.traces
    assert trace.completion_ids == spelled("Do: x\nResult")
    assert model.episode.turns[0].stop is None
    await model.ask([*QUESTION, answer, said("8")])
    assert len(model.episode.traces) == 1
    assert trace.completion_ids[len(spelled("Do: x\nResult"))] == chat().end_id
    check_exact(model, generator)


async def test_first_words_are_not_searched_for_stop_texts() -> None:
    model = with_tokens(Spells("b-c" + END))
    answer = await model.ask([*QUESTION, {"role": "assistant", "content": "a-"}], stop=["-"])
    assert answer.get("content") == "a-b"


async def test_a_callers_own_limit_of_tokens() -> None:
    generator = Spells()
    model = with_tokens(generator, max_turn_tokens=3)
    assert (await model.ask(QUESTION, max_tokens=2)).get("content") == "on"
    assert (await model.ask(QUESTION, max_tokens=9)).get("content") == "one"
    assert [turn.stop for turn in model.episode.turns] == [StopReason.TURN_TRUNCATED] * 2


async def test_a_script_has_lines_without_tokens() -> None:
    model = model_of(ScriptedPolicy(["one. two", tool_call("add", a=3), "last"]))
    answer = await model.ask(QUESTION, stop=["."])
    assert answer.get("content") == "one"
    assert "tool_calls" in await model.ask([said("other")])
    await model.ask([*QUESTION, answer, said("more")])
    assert [turn.sample for turn in model.episode.turns] == [0, 1, 0]
    assert model.episode.traces == []


@pytest.mark.parametrize(
    ("messages", "options", "error"),
    [
        ("hello", {}, "a request must give a list of messages, got str"),
        (QUESTION, {"max_tokens": 0}, "max_tokens must be at least 1 or None, got 0"),
        (QUESTION, {"stop": "x"}, "stop must be a list of texts that are not empty, got 'x'"),
        (QUESTION, {"stop": [""]}, "stop must be a list of texts that are not empty"),
    ],
)
async def test_wrong_requests_are_refused(messages: Any, options: dict[str, Any], error: str) -> None:
    model = model_of(ScriptedPolicy(["never"]))
    with pytest.raises(ValueError, match=error):
        await model.ask(messages, **options)
    assert model.episode.turns == []


def test_a_script_cannot_tell_when_its_context_is_full() -> None:
    engine = RolloutEngine(
        Calculator, ScriptedPolicy([tool_call("add", a=1, b=2)] * 2), compact=lambda messages: messages
    )
    with pytest.raises(ConfigurationError, match=r"neither a script nor a server tells: give compact=EveryTurn\(f\)"):
        engine.play([{"question": "What is 1 plus 2?", "answer": 3}])


def test_a_limit_before_the_first_answer_is_a_failure() -> None:
    class Spent(ScriptedPolicy):
        def begin(self, spec: Any, messages: Any, tools: Any) -> Any:
            raise LimitReachedError("no tokens are left", stop=StopReason.MAX_TOKENS)

    [episode] = RolloutEngine(Calculator, Spent(["x"])).play([{"question": "What is 1 plus 2?", "answer": 3}])
    assert (episode.stop, episode.reward) == (StopReason.FAILED, None)
    assert "no tokens are left" in str(episode.failure)
