"""A history that does not fit the context is rewritten, and each rewritten history is a sample of exact tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import ConfigurationError, Episode, Message, RolloutEngine, StepResult
from gymnast.envs.core import Environment, StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.trainer import ChatFormat, EveryTurn, Sampling, TokenBudgets, TokenPolicy, strip_thoughts
from gymnast.trainer.run_log.metrics import episode_metrics

from .buttons import ScriptedGenerator, ids, make_trainer, tokenizer

ANSWER = "well<|im_end|>"
TURNS = 7


class Talk(Environment):
    """Says a number in each of `TURNS` turns."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return [said("number 0")], {}

    def step(self, action: Message) -> StepResult:
        self.turn += 1
        return StepResult([said(f"number {self.turn}")], 1.0, self.turn == TURNS, False, {})


def said(text: str) -> Message:
    return {"role": "user", "content": text}


def last_exchange(messages: list[Message]) -> list[Message]:
    return [said("(cut)"), *messages[-2:]]


async def play(
    compact: Any, *, answer: str = ANSWER, environment: Any = Talk, **budgets: Any
) -> tuple[Episode, ScriptedGenerator]:
    generator = ScriptedGenerator(lambda request: ids(answer))
    limits = TokenBudgets(**{"max_completion_length": 4000, "max_model_len": 80, "max_turn_tokens": 12, **budgets})
    policy = TokenPolicy(ChatFormat(tokenizer()), generator, sampling=Sampling(), budgets=limits)
    [episode] = await RolloutEngine(environment, policy, compact=compact).run(episode_specs([{}], group_size=1, seed=0))
    return episode, generator


def check_exact(episode: Episode, generator: ScriptedGenerator, answer: list[int]) -> None:
    """Every answer is in exactly one trace, directly after the tokens that the model saw."""
    shown = [request.prompt.ids for request in generator.requests]
    found = []
    for trace in episode.traces:
        assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs)
        starts = [at for at, mask in enumerate(trace.mask) if mask and not (at and trace.mask[at - 1])]
        for at in starts:
            found.append(trace.prompt_ids + trace.completion_ids[:at])
            assert trace.completion_ids[at : at + len(answer)] == answer
            assert sum(trace.mask[at : at + len(answer)]) == len(answer)
    assert found == shown
    assert episode.num_sampled == len(shown) * len(answer)


async def test_a_rewritten_history_begins_a_sample_with_exact_tokens() -> None:
    seen: list[list[Message]] = []

    def compact(messages: list[Message]) -> list[Message]:
        seen.append(list(messages))
        return last_exchange(messages)

    episode, generator = await play(compact)
    assert episode.stop is StopReason.ENV_TERMINATED
    assert episode.reward == TURNS
    check_exact(episode, generator, ids(ANSWER))
    first, second, *_ = episode.traces
    assert tokenizer().decode(second.prompt_ids) == (
        "<|im_start|>user\n(cut)<|im_end|>\n<|im_start|>assistant\nwell<|im_end|>\n"
        f"<|im_start|>user\nnumber {sum(first.mask) // len(ids(ANSWER))}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert max(len(request.prompt) for request in generator.requests) <= 80 - 12
    assert seen[0] == episode.messages[: len(seen[0])]
    assert seen[1][:3] == last_exchange(seen[0])  # later calls get the messages of the earlier one
    metrics = episode_metrics([episode])
    assert metrics["samples/mean"] == len(episode.traces) >= 2
    assert metrics["completions/mean_length"] == TURNS * len(ids(ANSWER))
    assert Episode.from_json(episode.to_json()) == episode


async def test_stripped_thoughts_begin_a_sample_after_every_turn() -> None:
    answer = "<think>\nhm\n</think>\n\nwell<|im_end|>"
    episode, generator = await play(EveryTurn(strip_thoughts), answer=answer, max_model_len=4000, max_turn_tokens=None)
    check_exact(episode, generator, ids(answer))
    assert len(episode.traces) == TURNS
    assert [tokenizer().decode(trace.prompt_ids).count("hm") for trace in episode.traces] == [0] * TURNS
    assert tokenizer().decode(episode.traces[-1].prompt_ids).count("well") == TURNS - 1


async def test_a_history_that_stays_goes_on_in_its_sample() -> None:
    """Thoughts are kept until the user speaks again."""
    thought: Message = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    result: Message = {"role": "tool", "name": "look", "content": "one is lit"}
    assert strip_thoughts([said("Look."), thought, result]) == [said("Look."), thought, result]
    episode, _ = await play(EveryTurn(lambda messages: messages), max_model_len=4000, max_turn_tokens=None)
    assert len(episode.traces) == 1
    episode, _ = await play(EveryTurn(lambda messages: [*messages[-3:-2], *messages[-1:]]), max_turn_tokens=None)
    assert len(episode.traces) == TURNS  # each rewriting is of all messages


async def test_without_a_need_nothing_is_rewritten() -> None:
    episode, _ = await play(lambda messages: pytest.fail("the history fits"), max_model_len=800)
    assert len(episode.traces) == 1


async def test_an_asynchronous_function_and_one_that_changes_its_messages() -> None:
    async def compact(messages: list[Message]) -> list[Message]:
        for message in messages:
            message["content"] = "x"
        return messages[-1:]

    episode, generator = await play(compact)
    check_exact(episode, generator, ids(ANSWER))
    assert [message.get("content") for message in episode.prompt] == ["number 0"]
    assert episode.turns[0].message.get("content") == "well"


@pytest.mark.parametrize(
    ("compact", "error"),
    [
        (lambda messages: messages, r"ValueError: compact\(\) gave a history of \d+ tokens in place of one of \d+"),
        (lambda messages: 1 / 0, "ZeroDivisionError"),
        (lambda messages: "short", r"ValueError: compact\(\) must give a list of messages, got str"),
        (lambda messages: [{"content": "short"}], r"ValueError: compact\(\) gave a wrong message at place 0: 'role'"),
        (
            lambda messages: messages[:2],
            r"ValueError: compact\(\) gave a history that ends with a message of the assist",
        ),
    ],
)
async def test_a_function_that_fails_is_named_by_its_stage(compact: Any, error: str) -> None:
    episode, _ = await play(compact)
    assert episode.failure is not None
    assert episode.reward is None
    with pytest.raises(AssertionError, match=f"^compact: {error}"):
        raise AssertionError(str(episode.failure))


async def test_a_history_that_stays_too_long_is_an_overflow_of_the_context() -> None:
    class Loud(Talk):
        def step(self, action: Message) -> StepResult:
            return StepResult([said("abc" * 100)], 1.0, False, False, {})

    episode, _ = await play(lambda messages: messages[-1:], environment=Loud)
    assert episode.stop is StopReason.CONTEXT_OVERFLOW
    assert (episode.reward, len(episode.traces)) == (1.0, 1)


async def test_the_budget_of_an_episode_counts_over_its_samples() -> None:
    episode, _ = await play(last_exchange, max_completion_length=60)
    assert episode.stop is StopReason.MAX_TOKENS
    assert 40 < sum(len(trace.completion_ids) for trace in episode.traces) <= 60
    assert len(episode.traces) >= 2


async def test_an_observation_that_was_cut_is_compacted_as_it_was_shown() -> None:
    class Verbose(Talk):
        def step(self, action: Message) -> StepResult:
            _, reward, terminated, truncated, info = super().step(action)
            return StepResult([said("abc" * 200)], reward, terminated, truncated, info)

    lengths: list[int] = []

    def compact(messages: list[Message]) -> list[Message]:
        lengths.append(len(str(messages[-1].get("content"))))
        return messages[-1:]

    budgets: dict[str, Any] = {"max_observation_tokens": 90, "max_model_len": 160}
    episode, generator = await play(compact, environment=Verbose, **budgets)
    assert episode.stop is StopReason.ENV_TERMINATED
    assert lengths
    assert max(lengths) < 200
    check_exact(episode, generator, ids(ANSWER))


@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
async def test_a_call_that_could_not_be_read_stays_as_it_was_written_without_its_thought(thought: str) -> None:
    call = '<tool_call>\n{"name": }\n</tool_call><|im_end|>'
    compact, budget = (EveryTurn(strip_thoughts), 4000) if thought else (lambda messages: messages[-2:], 150)
    options: dict[str, Any] = {"max_model_len": budget, "max_turn_tokens": None if thought else 40}
    episode, generator = await play(compact, answer=thought + call, environment=WithTool, **options)
    assert f"<|im_start|>assistant\n{call}" in tokenizer().decode(episode.traces[1].prompt_ids)
    check_exact(episode, generator, ids(thought + call))


class WithTool(Talk):
    def tool_schemas(self) -> Any:
        return [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}]


@pytest.mark.parametrize("longest", [None, 2048])
def test_the_length_of_an_answer_must_be_bounded(tmp_path: Path, longest: int | None) -> None:
    with pytest.raises(
        ConfigurationError, match=f"max_turn_tokens must be set, to less than the context of 2048.*{longest}"
    ):
        make_trainer(tmp_path, compact=last_exchange, max_turn_tokens=longest)


async def test_an_engine_of_ones_own_needs_the_bound_too() -> None:
    with pytest.raises(ConfigurationError, match=r"max_turn_tokens must be set, to less than the context of 80"):
        await play(last_exchange, max_turn_tokens=None)


def test_a_compact_that_is_no_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="compact must be a function from messages to messages, got 'last'"):
        make_trainer(tmp_path, compact="last", max_turn_tokens=8)
