"""OpenAIPolicy against a server of the protocol that gives the answers of a list, errors among them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gymnast.envs import (
    Calculator,
    ConfigurationError,
    Episode,
    EpisodeLimits,
    EpisodeModel,
    Message,
    RolloutEngine,
    StopReason,
    ToolEnv,
)
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.policies.openai_policy import OpenAIPolicy

from ..vision.test_images import CAT, Gallery
from .openai_server import Refused, Server, said, serving

ROW = {"question": "What is 3 plus 4?", "answer": 7}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def play(server: Server) -> AsyncIterator[Callable[..., Any]]:
    policies = []

    async def play(
        *answers: Any, count: int = 1, environment: Any = Calculator, row: Any = ROW, **options: Any
    ) -> list[Episode]:
        server.answers = list(answers)
        policy = OpenAIPolicy("m", base_url=server.url, **options)
        policies.append(policy)
        engine = RolloutEngine(environment, policy, limits=EpisodeLimits(max_turns=4), max_concurrency=1)
        return await engine.run(episode_specs([row], group_size=count, seed=0))

    yield play
    for policy in policies:
        await policy.aclose()


ADD, ANSWER = said("", ("add", '{"a": 3, "b": 4}')), said("", ("final_answer", '{"answer": 7}'))


async def test_pictures_of_results_follow_in_a_message_of_the_user(server: Server, play: Callable[..., Any]) -> None:
    answers = [said("", ("bare", "{}"), ("mixed", "{}")), said("", ("done", "{}"))]
    [episode] = await play(*answers, environment=Gallery, row={"image": CAT})
    assert episode.failure is None
    picture = {"type": "image_url", "image_url": {"url": CAT.data_uri}}
    question, _, bare, mixed, shown = server.requests[1]["messages"]
    assert question == {"role": "user", "content": [{"type": "text", "text": "Look: "}, picture]}
    assert bare == {"role": "tool", "content": "[image 6x4]", "tool_call_id": "c0"}
    assert mixed == {"role": "tool", "content": "a cat[image 6x4][image 6x4]", "tool_call_id": "c1"}
    names = [{"type": "text", "text": f"image of the result of call c{number}"} for number in range(2)]
    assert shown == {"role": "user", "content": [names[0], picture, names[1], picture, picture]}


async def test_an_episode_with_tools(server: Server, play: Callable[..., Any]) -> None:
    [episode] = await play(said("let me see", ("add", '{"a": 3, "b": 4}'), reasoning_content="3 + 4"), ANSWER)
    assert (episode.reward, episode.stop) == (1.0, StopReason.FINAL_ANSWER)
    assert episode.turns[0].message["reasoning_content"] == "3 + 4"
    first, second = server.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add", "subtract", "multiply", "final_answer"]
    assert second["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 3, "b": 4}'}
    assert second["messages"][2] == {"role": "tool", "content": "7", "tool_call_id": "c0"}
    assert "reasoning_content" not in second["messages"][1]
    counts = [(turn.num_prompt_tokens, turn.num_cached_tokens, turn.num_tokens) for turn in episode.turns]
    assert counts == [(20, 8, 5)] * 2


async def test_requests_are_repeated(server: Server, play: Callable[..., Any]) -> None:
    [episode] = await play(Refused(503), Refused(429), ADD, Refused(500), ANSWER)
    assert episode.reward == 1.0
    assert len(server.requests) == 5


async def test_an_episode_fails_when_the_retries_are_used_up(play: Callable[..., Any]) -> None:
    [failed, whole] = await play(ADD, *[Refused(500, "out of memory")] * 3, ANSWER, count=2, max_retries=2)
    assert failed.failure is not None
    assert "out of memory" in str(failed.failure)
    assert whole.reward == 1.0


@pytest.mark.parametrize("refusal", [(401, "wrong key"), (404, "no such model"), (400, "tools need --a-flag")])
async def test_a_server_that_refuses_the_first_request_ends_the_run(
    play: Callable[..., Any], refusal: tuple[int, str]
) -> None:
    with pytest.raises(ConfigurationError, match=rf"/v1 refused the first request for the model 'm': .*{refusal[1]}"):
        await play(Refused(*refusal))


async def test_rate_limits_at_the_start_do_not_end_the_run(server: Server) -> None:
    policy = OpenAIPolicy("m", base_url=server.url, max_retries=5)
    server.answers = [*[Refused(429)] * 5, *[ANSWER] * 8]
    rows = [{"question": f"Question {number}", "answer": 7} for number in range(8)]
    episodes = await RolloutEngine(Calculator, policy, max_concurrency=8).run(episode_specs(rows, group_size=1, seed=0))
    await policy.aclose()
    assert [episode.reward for episode in episodes] == [1.0] * 8
    questions = [request["messages"][0]["content"] for request in server.requests]
    assert len(set(questions[:6])) == 1  # all others wait until the first one is answered


async def test_a_server_that_is_not_there_ends_the_run() -> None:
    policy = OpenAIPolicy("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigurationError, match="does not answer for the model 'm': Connection error"):
        await RolloutEngine(Calculator, policy).run(episode_specs([ROW], group_size=1, seed=0))
    await policy.aclose()


async def test_a_context_that_is_full(play: Callable[..., Any]) -> None:
    [dropped] = await play(Refused(400, "This model's maximum context length is 512 tokens"))
    assert (dropped.stop, dropped.reward, dropped.is_overlong) == (StopReason.CONTEXT_OVERFLOW, None, True)
    [graded] = await play(ADD, Refused(400, "This model's maximum context length is 512 tokens"))
    assert (graded.stop, graded.reward) == (StopReason.CONTEXT_OVERFLOW, 0.0)


@pytest.mark.parametrize(
    ("options", "stop"), [({"max_tokens": 5}, StopReason.TURN_TRUNCATED), ({}, StopReason.CONTEXT_OVERFLOW)]
)
async def test_an_answer_that_is_cut(play: Callable[..., Any], options: dict[str, Any], stop: StopReason) -> None:
    [episode] = await play(said("and so", reason="length"), **options)
    assert episode.stop is stop


@pytest.mark.parametrize("options", [{}, {"max_completion_tokens": 9, "stop": "!"}])
async def test_a_callers_own_limits_reach_the_server(server: Server, options: dict[str, Any]) -> None:
    server.answers = [said("and so", reason="length"), said("on")]
    policy = OpenAIPolicy("m", base_url=server.url, **options)
    [spec] = episode_specs([ROW], group_size=1, seed=0)
    model = EpisodeModel(Episode(spec=spec), policy)
    question: list[Message] = [{"role": "user", "content": "go"}]
    answer = await model.ask(question, max_tokens=5, stop=["?"])
    await model.ask([*question, answer, *question])
    await policy.aclose()
    name = next(iter(options), "max_tokens")
    first, second = server.requests
    assert (first[name], first["stop"]) == (5, [*options.get("stop", ""), "?"])
    assert (second.get(name), second.get("stop")) == (options.get(name), options.get("stop"))
    assert model.episode.turns[0].stop is StopReason.TURN_TRUNCATED
    assert [turn.sample for turn in model.episode.turns] == [0, 0]


async def test_arguments_that_are_not_json_are_the_models_mistake(server: Server, play: Callable[..., Any]) -> None:
    [episode] = await play(said("", ("add", '{"a": 3')), ANSWER)
    assert episode.tool_calls[0].outcome == "bad_arguments"
    assert "must be a JSON object" in server.requests[1]["messages"][2]["content"]
    for levels in (300, 100_000):  # deeper than a log holds, and than JSON is read
        [episode] = await play(said("", ("add", f'{{"a": {"[" * levels}{"]" * levels}}}')), ANSWER)
        assert episode.tool_calls[0].outcome == "bad_arguments"
        assert Episode.from_json(episode.to_json()).reward == 1.0


async def test_parameters_reach_the_server(server: Server, play: Callable[..., Any]) -> None:
    await play(ANSWER, temperature=0.3, extra_body={"top_k": 5})
    assert (server.requests[0]["temperature"], server.requests[0]["top_k"]) == (0.3, 5)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"temprature": 0.3}, "no parameter temprature; pass what only your server knows as extra_"),
        ({"extra_body": {"continue_final_message": True}}, "pass it as continue_final_message=True"),
    ],
)
def test_parameters_that_cannot_go_with_every_request_are_refused(request_: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        OpenAIPolicy("m", base_url="http://127.0.0.1:9/v1", **request_)


async def test_requests_keep_a_rate(play: Callable[..., Any]) -> None:
    started = time.perf_counter()
    await play(*[ANSWER] * 4, count=4, requests_per_minute=3000)
    assert time.perf_counter() - started >= 0.06  # three intervals of 20 ms


# --- first words of the answer, given by the environment ------------------------------------------------------------


class Talk(ToolEnv):
    def reply(self, message: Message) -> list[Message] | None:
        return None if message.get("content") == "Bye." else [{"role": "user", "content": "Go on."}]


def begun(content: str, **more: Any) -> dict[str, Any]:
    """A row whose prompt ends with the first words of the answer."""
    return {"prompt": [{"role": "user", "content": "Speak."}, {"role": "assistant", "content": content, **more}]}


async def test_a_server_that_can_goes_on_with_first_words(server: Server, play: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"continue_final_message": True, "extra_body": {"top_k": 5}}
    [episode] = await play(said(" fine."), said("Bye."), environment=Talk, row=begun("I am"), **options)
    assert [message.get("content") for message in episode.messages] == ["Speak.", "I am fine.", "Go on.", "Bye."]
    first, second = server.requests
    assert (first["continue_final_message"], first["add_generation_prompt"], first["top_k"]) == (True, False, 5)
    assert first["messages"][-1] == {"role": "assistant", "content": "I am"}
    assert [message["content"] for message in second["messages"]] == ["Speak.", "I am fine.", "Go on."]
    assert "continue_final_message" not in second


@pytest.mark.parametrize(
    ("row", "options", "error"),
    [
        (
            begun("I am"),
            {},
            "the model's answer, 'I am': pass continue_final_message=True if the server has this option",
        ),
        (begun("", reasoning_content="Hm"), {"continue_final_message": True}, "goes on with content only, not with a"),
        (begun("<call>"), {"continue_final_message": True}, "the server looks for calls only in the text that the"),
    ],
)
async def test_first_words_that_a_server_would_misread_are_refused(
    play: Callable[..., Any], row: Any, options: dict[str, Any], error: str
) -> None:
    def look() -> str:
        """Look."""
        return "one is lit"

    with pytest.raises(ConfigurationError, match=error):
        await play(environment=Talk([look]), row=row, **options)


async def test_a_rest_that_the_server_takes_for_a_thought_is_refused(play: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="took the rest for a thought: start the server without a reasoning"):
        await play(
            said("", reasoning_content=" fine."), environment=Talk, row=begun("I am"), continue_final_message=True
        )
