"""TokenPolicy: the trace has exactly the sampled tokens, and the budgets hold."""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from gymnast.envs import RolloutEngine
from gymnast.envs.core import Environment, Message, StepResult, StopReason, text_of
from gymnast.envs.engine.play_episode import EpisodeLimits
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode
from gymnast.envs.examples.calculator import Calculator
from gymnast.envs.runtime.seeds import stable_seed
from gymnast.envs.tokens import ImageSpan, Tokens, TokenTrace
from gymnast.envs.tool_env.tool_env import ToolEnv
from gymnast.envs.tools.mark import tool
from gymnast.trainer import (
    ChatFormat,
    Generation,
    GenerationRequest,
    Generator,
    Sampling,
    TokenBudgets,
    TokenPolicy,
    TransformersGenerator,
)
from gymnast.trainer.learning.samples import Sample
from gymnast.trainer.run_log.metrics import episode_metrics
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

from ..envs.pictures import picture

END = "<|im_end|>"
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
ODD = '<tool_call>\n\n {"name" :"add",  "arguments":{ "a":3,"b" : 4 } }\n</tool_call>'
FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": 7}}\n</tool_call>'
ROW = {"question": "What is 3 plus 4?", "answer": 7}
LARGE = TokenBudgets(max_completion_length=4000, max_model_len=8000)


@cache
def tokenizer() -> Any:
    return make_tiny_tokenizer([ADD, FINAL, "<tool_response>\n7\n</tool_response>"] * 3, vocab_size=400)


@cache
def chat() -> ChatFormat:
    return ChatFormat(tokenizer())


def spelled(text: str) -> list[int]:
    """One token for each character (ASCII), and for the end token."""
    body = text.removesuffix(END)
    ids = [token for character in body for token in tokenizer().encode(character, add_special_tokens=False)]
    assert len(ids) == len(body)
    return ids + [tokenizer().eos_token_id] * text.endswith(END)


class ScriptedGenerator(Generator):
    """Answers with given tokens, in the order of an episode's turns, cut to the requested length as an engine does.

    Args:
        answers: The texts of an episode's answers.
        lies: Tokens that the engine falsely reports in front of the prompt.
    """

    def __init__(self, *answers: str, lies: Sequence[int] = ()) -> None:
        self.answers = answers
        self.lies = list(lies)
        self.requests: list[GenerationRequest] = []
        self.sampled: list[tuple[list[int], list[float]]] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        turn = len(self.requests)
        self.requests.append(request)
        ids = spelled(self.answers[turn])
        stop = next((index for index, token in enumerate(ids) if token in request.stop_ids), len(ids)) + 1
        ids = ids[: min(request.max_tokens, stop)]
        logprobs = [-(turn + 1) - index / 1000 for index in range(len(ids))]
        self.sampled.append((ids, logprobs))
        finish = "stop" if ids[-1] in request.stop_ids else "length"
        seen = [*self.lies, *request.prompt.ids]
        return Generation(token_ids=ids, logprobs=logprobs, finish=finish, prompt_ids=seen)

    def load_weights(self, model: Any, version: int) -> None:
        """There are no weights."""

    def close(self) -> None:
        pass


def policy(generator: Any, budgets: TokenBudgets = LARGE, **options: Any) -> TokenPolicy:
    return TokenPolicy(chat(), generator, sampling=Sampling(), budgets=budgets, **options)


async def play(
    generator: Any, budgets: TokenBudgets = LARGE, environment: Any = Calculator, **limits: Any
) -> tuple[Episode, TokenTrace]:
    engine = RolloutEngine(environment, policy(generator, budgets), limits=EpisodeLimits(**limits), on_failure="raise")
    [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
    [trace] = episode.traces
    check(trace, generator, budgets)
    return episode, trace


def check(trace: TokenTrace, generator: ScriptedGenerator, budgets: TokenBudgets) -> None:
    """Properties of every trace: equal lengths, and sampled tokens exactly as they were sampled."""
    assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs) <= budgets.max_completion_length
    assert len(trace) <= budgets.max_model_len
    assert set(trace.mask) <= {0, 1}
    ids = [token for token, mask in zip(trace.completion_ids, trace.mask, strict=True) if mask]
    logprobs = [item for item, mask in zip(trace.logprobs, trace.mask, strict=True) if mask]
    assert ids == [token for sampled, _ in generator.sampled for token in sampled]
    assert logprobs == [item for _, sampled in generator.sampled for item in sampled]
    assert all(item == 0.0 for item, mask in zip(trace.logprobs, trace.mask, strict=True) if not mask)
    for request in generator.requests:
        start = len(request.prompt)
        assert request.prompt.ids == trace.ids[:start]
        room = budgets.max_completion_length - (start - len(trace.prompt_ids))
        assert 1 <= request.max_tokens <= min(room, budgets.max_model_len - start)
        assert request.max_tokens <= (budgets.max_turn_tokens or request.max_tokens)


def masked_text(trace: TokenTrace) -> str:
    ids = [token for token, mask in zip(trace.completion_ids, trace.mask, strict=True) if not mask]
    return tokenizer().decode(ids)


async def test_model_tokens_are_never_retokenised() -> None:
    generator = ScriptedGenerator(ODD + END, FINAL + END)
    episode, trace = await play(generator)
    assert episode.stop is StopReason.FINAL_ANSWER
    assert episode.reward == 1.0
    assert trace.drift == 0
    sampled = spelled(ODD)
    assert trace.completion_ids[: len(sampled)] == sampled  # character by character
    again = tokenizer().encode(ODD, add_special_tokens=False)
    assert len(again) < len(sampled)  # this detects a policy that tokenises again


async def test_the_requests_of_a_line_have_one_session_that_can_be_referred_to_weakly() -> None:
    generator = ScriptedGenerator(ADD + END, FINAL + END)
    await play(generator)
    first, second = (request.session for request in generator.requests)
    assert first is second
    assert weakref.ref(first)() is first


async def test_results_are_appended_and_masked() -> None:
    _, trace = await play(ScriptedGenerator(ADD + END, FINAL + END))
    assert masked_text(trace) == (
        "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        "\n<|im_start|>user\n<tool_response>\nright\n</tool_response><|im_end|>\n"
    )


async def test_an_engine_that_saw_another_prompt_fails_the_episode_and_is_counted() -> None:
    engine = RolloutEngine(Calculator, policy(ScriptedGenerator(ADD + END, FINAL + END, lies=[5])))
    [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
    assert episode.failure is not None
    assert episode.failure.type == "TokenDriftError"
    assert "saw another prompt than it was sent" in episode.failure.message
    [trace] = episode.traces
    assert episode_metrics([episode])["tokens/drift"] == trace.drift > 0


async def test_final_answer_ends_one_episode_and_the_others_go_on() -> None:
    """The first episode ends in its first turn; the second one is still answered after that."""
    ended = asyncio.Event()
    counts: dict[int, int] = defaultdict(int)

    class Two(ScriptedGenerator):
        async def generate(self, request: GenerationRequest) -> Generation:
            first = request.seed in first_seeds
            counts[0 if first else 1] += 1
            if not first and counts[1] == 1:
                await ended.wait()
            text = FINAL if first or counts[1] == 3 else ADD
            ids = spelled(text + END)
            return Generation(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop", prompt_ids=request.prompt.ids)

    specs = episode_specs([ROW], group_size=2, seed=0)
    first_seeds = {stable_seed(specs[0].seed, turn) for turn in range(9)}
    engine = RolloutEngine(Calculator, policy(Two()))
    first, second = await engine.run(specs, on_episode=lambda episode: ended.set())
    assert (first.stop, second.stop) == (StopReason.FINAL_ANSWER, StopReason.FINAL_ANSWER)
    assert (len(first.turns), len(second.turns)) == (1, 3)
    assert counts == {0: 1, 1: 3}
    assert masked_text(first.traces[0]).endswith("right\n</tool_response><|im_end|>\n")


@pytest.mark.parametrize("room", [0, 1, 3, 8, 20, 60])
async def test_a_final_result_that_does_not_fit_is_cut(room: int) -> None:
    class Talkative(ToolEnv):
        def reset_task(self, task: Any) -> Any:
            return [{"role": "user", "content": task["question"]}]

        @tool(final=True)
        def final_answer(self, answer: int) -> str:
            """Answer.

            Args:
                answer: The answer.
            """
            self.reward = 1.0
            return "abc" * 500

    length = len(spelled(FINAL + END)) + room
    budgets = TokenBudgets(max_completion_length=length, max_model_len=8000)
    episode, trace = await play(ScriptedGenerator(FINAL + END), budgets, Talkative)
    assert episode.stop is StopReason.FINAL_ANSWER
    assert episode.reward == 1.0
    assert len(trace.completion_ids) <= length
    assert len(trace.completion_ids) >= length - min(room, 10)
    whole = chat().observation_tokens(episode.turns[0].observation, ended_by=chat().end_id, last=True).ids
    added = trace.completion_ids[length - room :]
    assert len(whole) > 60
    assert added[:8] == whole[: min(room, 8)]
    if room == 60:
        assert tokenizer().decode(added).endswith("</tool_response><|im_end|>\n")


@pytest.mark.parametrize("name", ["max_turn_tokens", "max_completion_length"])
async def test_final_answer_takes_precedence_over_a_cap_of_tokens(name: str) -> None:
    budgets = TokenBudgets(**{"max_completion_length": 4000, "max_model_len": 8000, name: len(FINAL) + 3})
    episode, trace = await play(ScriptedGenerator(FINAL + " and more"), budgets)
    assert (episode.stop, episode.reward) == (StopReason.FINAL_ANSWER, 1.0)
    if name == "max_turn_tokens":  # the answer was cut, so the template's end token is ours, not the model's
        assert masked_text(trace).startswith(END + "\n<|im_start|>user\n<tool_response>\nright")
    else:
        assert sum(trace.mask) == len(trace.mask) == len(FINAL) + 3


CAPS: dict[StopReason, dict[str, int]] = {
    StopReason.MAX_TOKENS: {"max_completion_length": 30},
    StopReason.TURN_TRUNCATED: {"max_turn_tokens": 30},
    StopReason.CONTEXT_OVERFLOW: {"max_model_len": 30},
}


@pytest.mark.parametrize("reason", CAPS)
async def test_an_answer_that_is_cut_says_which_budget_was_spent(reason: StopReason) -> None:
    prompt = len(chat().prompt_tokens([{"role": "user", "content": ROW["question"]}], Calculator().tool_schemas()))
    caps = {name: value + (prompt if name == "max_model_len" else 0) for name, value in CAPS[reason].items()}
    budgets = TokenBudgets(**{"max_completion_length": 4000, "max_model_len": 8000, **caps})
    generator = ScriptedGenerator(ADD + END)
    episode, trace = await play(generator, budgets)
    assert episode.stop is reason
    assert episode.stop.is_truncation
    assert trace.mask == [1] * 30
    assert [request.max_tokens for request in generator.requests] == [30]


@pytest.mark.parametrize("reason", [StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW])
async def test_an_observation_that_leaves_no_room_for_an_answer_ends_the_episode(reason: StopReason) -> None:
    prompt = len(chat().prompt_tokens([{"role": "user", "content": ROW["question"]}], Calculator().tool_schemas()))
    answer = spelled(ADD + END)
    results: Any = [{"role": "tool", "name": "add", "content": "7"}]
    observation = len(chat().observation_tokens(results, ended_by=chat().end_id, last=False))
    for more, turns in ((0, 1), (1, 2)):  # exactly the observation, and one token for an answer
        length = len(answer) + observation + more
        budgets = (
            TokenBudgets(max_completion_length=length, max_model_len=8000)
            if reason is StopReason.MAX_TOKENS
            else TokenBudgets(max_completion_length=4000, max_model_len=prompt + length)
        )
        generator = ScriptedGenerator(ADD + END, ADD + END)
        episode, trace = await play(generator, budgets)
        assert episode.stop is reason
        assert len(generator.requests) == len(episode.turns) == turns
        assert sum(trace.mask) == len(answer) + more
        assert len(trace.completion_ids) == (len(answer) if more == 0 else length)


@pytest.mark.parametrize("limit", [40, 100])
async def test_an_observation_is_cut_to_its_budget_with_a_marker(limit: int) -> None:
    class Loud(Calculator):
        @tool
        def add(self, a: int, b: int) -> str:  # type: ignore[override]
            """Add.

            Args:
                a: One.
                b: The other.
            """
            return "abc" * 300

    budgets = TokenBudgets(max_completion_length=4000, max_model_len=8000, max_observation_tokens=limit)
    episode, trace = await play(ScriptedGenerator(ADD + END, FINAL + END), budgets, Loud)
    assert episode.stop is StopReason.FINAL_ANSWER
    first = masked_text(trace).split("<|im_start|>assistant\n")[0]
    assert "characters cut ...]" in first
    assert trace.mask.index(1, len(spelled(ADD + END))) - len(spelled(ADD + END)) <= max(limit, 70)
    assert first.endswith("\n</tool_response><|im_end|>\n")


async def test_every_end_of_turn_token_counts() -> None:
    other = tokenizer().pad_token_id
    ended = ChatFormat(tokenizer(), end_token_ids=[other])

    class Other(ScriptedGenerator):
        async def generate(self, request: GenerationRequest) -> Generation:
            self.requests.append(request)
            ids = [*spelled(ADD if len(self.requests) == 1 else FINAL), other]
            assert other in request.stop_ids
            logprobs, prompt_ids = [-1.0] * len(ids), request.prompt.ids
            return Generation(token_ids=ids, logprobs=logprobs, finish="stop", prompt_ids=prompt_ids)

    engine = RolloutEngine(Calculator, TokenPolicy(ended, Other(), sampling=Sampling(), budgets=LARGE))
    [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
    assert episode.stop is StopReason.FINAL_ANSWER
    [trace] = episode.traces
    assert tokenizer().eos_token_id not in trace.completion_ids[: len(spelled(ADD)) + 3]  # no end token is supplied
    assert "<|endoftext|>" not in str(episode.turns[0].message)


async def test_a_turn_without_a_reply_is_followed_by_the_next_answer() -> None:
    class Patient(Environment):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.turns = 0
            return [{"role": "user", "content": "Speak."}], {}

        def step(self, action: Any) -> StepResult:
            self.turns += 1
            return StepResult([], 0.5, self.turns == 2, False, {})

    episode, trace = await play(ScriptedGenerator("One." + END, "Two." + END), environment=Patient)
    assert episode.stop is StopReason.ENV_TERMINATED
    assert masked_text(trace) == "\n<|im_start|>assistant\n"


def test_a_prompt_that_fills_the_context() -> None:
    [spec] = episode_specs([ROW], group_size=1, seed=0)
    messages: Any = [{"role": "user", "content": "x" * 200}]
    small = TokenBudgets(max_completion_length=10, max_model_len=50)
    errors = {"fail": "LongPromptError", "drop": "OverlongPromptError", "raise": "ConfigurationError"}
    for option, name in errors.items():
        with pytest.raises(ValueError, match=r"prompt of task 'task-0' has \d+ tokens.*max_model_len=50") as error:
            policy(ScriptedGenerator(), small, overlong_prompts=option).begin(spec, messages, [])
        assert error.type.__name__ == name


@pytest.mark.parametrize(
    "name", ["max_completion_length", "max_model_len", "max_turn_tokens", "max_observation_tokens"]
)
def test_budgets_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        TokenBudgets(**{"max_completion_length": 1, "max_model_len": 1, name: 0})


# Images.

PICTURE = picture()
PIXELS = 5  # ids that stand for an image


class PictureFormat(ChatFormat):
    """Shows the images of messages behind the first id, and leaves the text to the template, which takes no images."""

    def prompt_tokens(self, messages: Sequence[Message], tools: Any) -> Tokens:
        return with_pictures(super().prompt_tokens(texts_of(messages), tools), messages)

    def observation_tokens(self, messages: Sequence[Message], **options: Any) -> Tokens:
        return with_pictures(super().observation_tokens(texts_of(messages), **options), messages)


def with_pictures(tokens: Tokens, messages: Sequence[Message]) -> Tokens:
    parts: list[Any] = [part for message in messages for part in message.get("content") or []]
    for part in [part for part in parts if isinstance(part, dict) and part["type"] == "image"]:
        tokens = tokens[:1] + Tokens([0] * PIXELS, (ImageSpan(0, PIXELS, part["image"]),)) + tokens[1:]
    return tokens


def texts_of(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": text_of(message)} for message in messages]


class Looking(ToolEnv):
    """Shows a picture first, and in the result of each tool."""

    def reset_task(self, task: Any) -> list[Message]:
        return [{"role": "user", "content": self.picture()}]

    @staticmethod
    def picture() -> list[Any]:
        return [{"type": "text", "text": "Look."}, {"type": "image", "image": PICTURE}]

    @tool
    def add(self, a: int, b: int) -> Any:
        """Look again.

        Args:
            a: A number.
            b: Another.
        """
        return self.picture()

    @tool(final=True)
    def final_answer(self, answer: int) -> Any:
        """Answer.

        Args:
            answer: The answer.
        """
        return self.picture()


async def look(generator: ScriptedGenerator, length: int = 4000) -> Episode:
    budgets = TokenBudgets(max_completion_length=length, max_model_len=8000)
    policy = TokenPolicy(PictureFormat(tokenizer()), generator, sampling=Sampling(), budgets=budgets)
    engine = RolloutEngine(Looking, policy, on_failure="raise")
    [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
    check(episode.traces[0], generator, budgets)
    return episode


async def test_images_travel_from_messages_to_samples() -> None:
    generator = ScriptedGenerator(ADD + END, FINAL + END)
    episode = await look(generator)
    [trace] = episode.traces
    assert [len(request.prompt.images) for request in generator.requests] == [1, 2]
    assert generator.requests[-1].prompt == trace.tokens[: len(generator.requests[-1].prompt)]
    assert [span.image for span in trace.images] == [PICTURE] * 3
    sampled = {len(trace.prompt_ids) + place for place, is_sampled in enumerate(trace.mask) if is_sampled}
    for span in trace.images:
        assert trace.ids[span.start : span.end] == [0] * PIXELS
        assert sampled.isdisjoint(range(span.start, span.end))
    sample = Sample.of(trace)
    assert sample.images == trace.images[:2]  # the last result comes behind the last sampled token


async def test_no_budget_cuts_an_image() -> None:
    answer = len(spelled(FINAL + END))
    for room in range(1, PIXELS + 3):
        episode = await look(ScriptedGenerator(FINAL + END), answer + room)
        assert episode.stop is StopReason.FINAL_ANSWER
        [trace] = episode.traces
        assert len(trace.images) == (2 if room > PIXELS else 1)
        assert len(trace.completion_ids) == answer + (room if room > PIXELS else 1)


async def test_an_observation_with_an_image_that_leaves_no_room_ends_the_episode() -> None:
    for room in range(1, PIXELS + 2):
        episode = await look(ScriptedGenerator(ADD + END), len(spelled(ADD + END)) + room)
        assert episode.stop is StopReason.MAX_TOKENS
        assert len(episode.traces[0].images) == 1


async def test_a_generator_without_images_refuses_them() -> None:
    tokens = Tokens([1, 2], (ImageSpan(0, 1, PICTURE),))
    request = GenerationRequest(prompt=tokens, max_tokens=1, stop_ids=frozenset(), seed=0, sampling=Sampling())
    with pytest.raises(ValueError, match=r"shows pictures \(1\), but the generator was made without images="):
        await TransformersGenerator(make_tiny_model(tokenizer())).generate(request)
