"""smolagents: its agents play our episodes, its tools are tools of a `ToolEnv`, and its agents ask a model as we do."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from typing_extensions import TypedDict

from gymnast.envs import (
    BrokenEnvironmentError,
    Calculator,
    OpenAIPolicy,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolEnv,
    final_answer,
    tool,
    tool_call,
)
from gymnast.envs.adapters import SmolagentsEpisode, from_smolagents, smolagents_model
from gymnast.envs.engine.rollout_engine import episode_specs

from ..envs.openai_server import said, serving
from ..envs.pictures import picture

smolagents: Any = importlib.import_module("smolagents")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "serve.md"
ROW = {"question": "What is 3 times 4?", "answer": 12}


class Scripted(smolagents.Model):
    """Gives these answers: text, or calls."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(model_id="script")
        self.answers = list(answers)

    def generate(self, messages: Any, stop_sequences: Any = None, **_: Any) -> Any:
        if stop_sequences is None:  # the last words after `max_steps`
            return smolagents.ChatMessage(role="assistant", content="")
        answer = self.answers.pop(0)
        calls = [] if isinstance(answer, str) else answer["tool_calls"]
        return smolagents.ChatMessage(
            role="assistant", content=answer if isinstance(answer, str) else "", tool_calls=calls
        )


def code(text: str) -> str:
    return f"<code>\n{text}\n</code>"


def play(environment: ToolEnv, *answers: Any, row: Any = ROW, **options: Any) -> tuple[SmolagentsEpisode, list[str]]:
    """Play an episode with these answers; return it, and all that the model was told after the task."""
    kind = smolagents.CodeAgent if isinstance(answers[0], str) else smolagents.ToolCallingAgent
    with SmolagentsEpisode(environment, row) as episode:
        agent = kind(tools=episode.tools, model=Scripted(*answers), verbosity_level=0, max_steps=len(answers))
        agent.run(episode.prompt, **options)
    steps = agent.memory.steps[1:]
    return episode, [str(getattr(step, "error", None) or getattr(step, "observations", "")) for step in steps]


class Point(TypedDict):
    x: int


class Odd(ToolEnv):
    """Tools of many types, without a final one; each message that is not a call is answered, but "done"."""

    def reset_task(self, task: Any) -> Any:
        return task["messages"]

    def reply(self, message: Any) -> Any:
        return None if message["content"] == "done" else [{"role": "user", "content": "Say done."}]

    @tool(timeout=0.05)
    def odd(self, kind: Literal["a", "b"], point: Point, many: int | str | None, few: list[int] = []) -> dict[str, int]:  # noqa: B006
        """Be odd.

        Args:
            kind: A letter.
            point: A point.
            many: One or the other.
            few: Numbers.
        """
        if many == 0:
            raise BrokenEnvironmentError("no more")
        time.sleep(0.2 * (many == 1))
        self.reward += 0.25
        self.terminated = many == 2
        return {"x": point["x"], "few": len(few)}

    def grade(self, stop: StopReason) -> float:
        return {StopReason.MODEL_STOPPED: 10.0, StopReason.MAX_TURNS: 20.0, StopReason.ENV_TERMINATED: 30.0}[stop]


ODD = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]}


def odd(**arguments: Any) -> Any:
    return tool_call("odd", **{"kind": "a", "point": {"x": 7}, "many": None} | arguments)


def test_tools_are_described_in_the_terms_of_smolagents() -> None:
    with SmolagentsEpisode(Odd(), ODD) as episode:
        assert (episode.prompt, episode.instructions) == ("Go.", "Be brief.")
        described, answer = episode.tools
    assert (described.name, described.description, described.output_type) == ("odd", "Be odd.", "object")
    point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert described.inputs == {
        "kind": {"type": "string", "enum": ["a", "b"], "description": "A letter."},
        "point": {**point, "description": "A point."},
        "many": {"type": ["integer", "string"], "description": "One or the other.", "nullable": True},
        "few": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Numbers.",
            "default": [],
            "nullable": True,
        },
    }
    assert (answer.name, answer.output_type, list(answer.inputs)) == ("final_answer", "any", ["answer"])


def test_both_agents_play_an_episode_of_ours() -> None:
    calls = [tool_call("multiply", a=3, b=4), tool_call("final_answer", answer=12)]
    for answers in (calls, [code("final_answer(answer=multiply(3, b=2) + 6)")]):
        episode, _ = play(Calculator(), *answers)
        assert (episode.reward, episode.stop) == (1.0, StopReason.FINAL_ANSWER)
        assert [(record.name, record.outcome) for record in episode.tool_calls] == [
            ("multiply", "ok"),
            ("final_answer", "ok"),
        ]
        with pytest.raises(RuntimeError, match=r"the episode is over \(final_answer\)"):
            episode.tools[0](1, 2)


def test_a_final_tool_of_another_name_is_the_final_answer() -> None:
    @tool(final=True)
    def submit(text: str) -> str:
        """Hand in.

        Args:
            text: The text.
        """
        if not text:
            raise ValueError("it is empty")
        return "thanks"

    answers = [tool_call("final_answer", text=""), tool_call("final_answer", text="x")]
    episode, told = play(ToolEnv([submit]), *answers, row={"prompt": "Write."})
    assert "ToolError: Error: ValueError: it is empty" in told[0]  # and the run goes on
    assert [(record.name, record.outcome) for record in episode.tool_calls] == [("submit", "refused"), ("submit", "ok")]
    assert episode.stop == StopReason.FINAL_ANSWER


def test_errors_limits_replies_and_grades_are_the_environments_own() -> None:
    answers = [odd(many=1), odd(kind="c"), odd(few=[1]), tool_call("final_answer", answer="?")]
    episode, told = play(Odd(), *answers, tool_call("final_answer", answer="done"), row=ODD)
    assert told[:3] == [
        "Error: odd did not finish within 0.05 s.",
        "Error: odd: argument 'kind': Input should be 'a' or 'b', got 'c'",
        '{"x":7,"few":1}',
    ]
    assert "Say done." in told[3]
    assert [record.outcome for record in episode.tool_calls] == ["timeout", "bad_arguments", "ok"]
    assert (episode.reward, episode.stop) == (10.25, StopReason.MODEL_STOPPED)
    cut = 'print(odd("a", {"x": 5}, many="y")["x"])'
    episode, told = play(Odd(), code(cut), code('odd("c", {"x": 5}, 2)'), code("odd(1, 2, 3, 4, 5)"), row=ODD)
    assert "Execution logs:\n5\n" in told[0]
    assert "ToolError: Error: odd: argument 'kind'" in told[1]
    assert "takes the arguments ['kind', 'point', 'many', 'few'], got 5" in told[2]
    assert (episode.reward, episode.stop) == (20.25, StopReason.MAX_TURNS)
    episode, told = play(Odd(), odd(many=2), odd(), tool_call("final_answer", answer="?"), row=ODD)
    assert "RuntimeError: the episode is over (env_terminated)" in told[1]
    assert (told[2], episode.reward, episode.stop) == ("?", 30.25, StopReason.ENV_TERMINATED)
    with pytest.raises(BrokenEnvironmentError, match="has no reward"):
        play(Odd(), odd(many=0), tool_call("final_answer", answer="done"), row=ODD)


def test_a_result_that_was_cut_reaches_code_as_text() -> None:
    _, told = play(Odd(max_result_chars=4), code('print(odd("a", {"x": 5}, "y"))'), row=ODD)
    assert "[... 11 characters cut ...]" in told[0]


def _named(name: str, **options: Any) -> Any:
    @tool(name=name, **options)
    def function() -> str:
        """Do."""
        return ""

    return function


class Tree(TypedDict):
    children: list[Tree]


def grow(tree: Tree) -> str:
    """Grow.

    Args:
        tree: A tree.
    """
    return str(tree)


@pytest.mark.parametrize(
    ("tools", "prompt", "message"),
    [
        (
            [_named("a", final=True), _named("b", final=True)],
            "x",
            r"one final tool, and the environment has \['a', 'b'",
        ),
        ([_named("final_answer"), _named("b", final=True)], "x", "ends the run of an agent, but not the episode"),
        ([_named("a-b")], "x", "takes names of Python only, not 'a-b'"),
        ([grow], "x", "has the recursive type"),
        ([_named("a")], [{"role": "user", "content": "x"}] * 2, "give one user message"),
        ([_named("a")], [{"role": "user", "content": [{"type": "image", "url": "x"}]}], "gets text only"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(tools: Any, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message), SmolagentsEpisode(ToolEnv(tools), {"prompt": prompt}):
        pass
    with pytest.raises(TypeError, match="takes a ToolEnv"):
        SmolagentsEpisode(tools)


def theirs(kind: str = "string", output: str = "string") -> Any:
    class Shout(smolagents.Tool):
        name, description, output_type = "shout", "Shout.", output
        inputs = {  # noqa: RUF012
            "text": {"type": kind, "description": "What."},
            "times": {"type": "integer", "description": "How often.", "nullable": True},
        }

        def forward(self, text: Any, times: int | None = None) -> Any:
            if text == "":
                raise ValueError("nothing to shout")
            return text.upper() * (times or 1)

    return Shout()


def test_tools_of_smolagents_are_tools_of_ours() -> None:
    ending = from_smolagents(smolagents.FinalAnswerTool())
    environment = ToolEnv([from_smolagents(theirs()), ending], final_tools=["final_answer"])
    properties = environment.tools["shout"].schema["function"]["parameters"]["properties"]
    assert properties == {
        "text": {"type": "string", "description": "What."},
        "times": {"type": ["integer", "null"], "description": "How often."},
    }
    calls = [{"text": "hi", "times": 2}, {"text": "hi", "times": None}, {"text": ""}, {"text": "a", "time": 1}, {}]
    policy = ScriptedPolicy([*(tool_call("shout", **call) for call in calls), tool_call("final_answer", answer=[1])])
    [episode] = RolloutEngine(environment, policy).play([{"prompt": "x"}])
    results = [message.get("content") for message in episode.completion if message["role"] == "tool"]
    assert results[:3] == ["HIHI", "HI", "Error: ValueError: nothing to shout"]
    assert [str(result).partition(":")[0] for result in results[3:]] == ["Error", "Error", "[1]"]
    outcomes = [record.outcome for turn in episode.turns for record in turn.tool_calls]
    assert outcomes == ["ok", "ok", "refused", "bad_arguments", "bad_arguments", "ok"]
    assert episode.stop == StopReason.FINAL_ANSWER


class Paint(smolagents.Tool):
    name, description, output_type = "paint", "Paint.", "image"
    inputs = {"wrapped": {"type": "boolean", "description": "Whether in a class of smolagents."}}  # noqa: RUF012

    def forward(self, wrapped: bool) -> Any:
        seen = picture().open()
        return smolagents.AgentImage(seen) if wrapped else seen


def test_images_that_a_tool_of_smolagents_returns_are_shown() -> None:
    policy = ScriptedPolicy([*(tool_call("paint", wrapped=wrapped) for wrapped in (False, True)), "done"])
    [episode] = RolloutEngine(ToolEnv([from_smolagents(Paint())]), policy).play([{"prompt": "x"}])
    results: list[Any] = [message.get("content") for message in episode.completion if message["role"] == "tool"]
    assert results == [[{"type": "image", "image": picture()}]] * 2


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (theirs(kind="image"), ValueError, "the argument 'text' of the smolagents tool 'shout' has the type 'image'"),
        (theirs(output="audio"), ValueError, "the result of the smolagents tool 'shout' has the type 'audio'"),
        (grow, TypeError, r"is not a tool of smolagents; a function needs no adapter"),
    ],
)
def test_what_has_no_form_for_the_model_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_smolagents(given)


def test_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools named 'final_answer'"):
        ToolEnv([from_smolagents(smolagents.FinalAnswerTool()), final_answer])


def _cells(column: int) -> list[str]:
    """Return what the page says that a column's player sends, which stands in backticks."""
    table = PAGE.read_text().partition("<!-- messages -->")[2].partition("\n\n<!--")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| **")]
    assert len(rows) == 7
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row[column])]


ANSWERS: list[Any] = [
    said("", ("multiply", '{"a": 3, "b": "x"}')),
    said("I see.", ("multiply", '{"a": 3, "b": 4}')),
    said("", ("final_answer", '{"answer": 12}')),
]
CODE = [said(code('multiply(3, "x")')), said(code("print(multiply(3, 4))")), said(code("final_answer(12)"))]


async def _asked(answers: Sequence[Any], play: Any) -> list[dict[str, Any]]:
    """Return the requests of one episode."""
    async with serving() as server:
        server.answers = list(answers)
        result = await play(server.url)
    assert result.reward == 1.0
    return server.requests


async def _gymnast(url: str) -> Any:
    policy = OpenAIPolicy("m", base_url=url)
    [episode] = await RolloutEngine(Calculator(), policy).run(episode_specs([ROW], group_size=1, seed=0))
    await policy.aclose()
    return episode


def _agent(kind: str, make_model: Any) -> Any:
    def run(url: str) -> SmolagentsEpisode:
        with SmolagentsEpisode(Calculator(), ROW) as episode:
            agent = getattr(smolagents, kind)(tools=episode.tools, model=make_model(url), verbosity_level=0)
            agent.run(episode.prompt)
        return episode

    return lambda url: asyncio.to_thread(run, url)


async def test_the_requests_differ_as_the_page_says() -> None:
    def own(url: str) -> Any:
        return smolagents.OpenAIModel("m", url, api_key="none")

    gymnast = await _asked(ANSWERS, _gymnast)
    trained = await _asked(ANSWERS, _agent("ToolCallingAgent", lambda url: smolagents_model("m", url)))
    assert trained[0] == gymnast[0]
    first, second = trained[2]["messages"][2:], gymnast[2]["messages"][2:]
    assert first[0]["content"] == "Error: Argument b has type 'string' but should be 'integer'"  # smolagents' own check
    assert first[1:] == second[1:]
    calling = await _asked(ANSWERS, _agent("ToolCallingAgent", own))
    coding = await _asked(CODE, _agent("CodeAgent", own))
    for column, requests in enumerate((gymnast, calling, coding), start=1):
        text = json.dumps(requests, ensure_ascii=False)
        assert [cell for cell in _cells(column) if cell not in text] == []


async def test_a_model_of_ours_serves_one_agent_that_calls_tools() -> None:
    async with serving() as server:
        model = smolagents_model("m", server.url, system="Be brief.", temperature=0.0)
        server.answers = [said("no call"), *[said("", ("final_answer", '{"answer": "x"}'))] * 2]
        agent = smolagents.ToolCallingAgent(tools=[], model=model, verbosity_level=0)
        assert [await asyncio.to_thread(agent.run, "Go.") for _ in range(2)] == ["x", "x"]
        assert server.requests[1]["messages"][0] == {"role": "system", "content": "Be brief."}
        assert server.requests[1]["messages"][3]["role"] == "user"  # no call, so this is no result
        assert server.requests[2]["messages"] == server.requests[0]["messages"]
        for wrong in (
            smolagents.CodeAgent(tools=[], model=model, verbosity_level=0),
            smolagents.ToolCallingAgent(tools=[], model=model, planning_interval=1, verbosity_level=0),
        ):
            with pytest.raises(Exception, match="is for a ToolCallingAgent that does not plan"):
                await asyncio.to_thread(wrong.run, "Go.")
        other = smolagents.ToolCallingAgent(tools=[], model=smolagents_model("m", server.url), verbosity_level=0)
        other.memory = agent.memory
        with pytest.raises(Exception, match="needs a smolagents_model of its own"):
            await asyncio.to_thread(other.run, "Go.", reset=False)


async def test_an_answer_without_a_call_ends_an_episode_without_a_final_tool() -> None:
    async with serving() as server:
        server.answers = [said("?"), said("done")]
        with SmolagentsEpisode(Odd(), ODD) as episode:
            model = smolagents_model("m", server.url, system=episode.instructions)
            agent = smolagents.ToolCallingAgent(tools=episode.tools, model=model, verbosity_level=0)
            await asyncio.to_thread(agent.run, episode.prompt)
    assert (episode.reward, episode.stop) == (10.0, StopReason.MODEL_STOPPED)
    assert [call["function"]["name"] for call in server.requests[1]["tools"]] == ["odd"]
    assert [message["content"] for message in server.requests[1]["messages"]] == ["Be brief.", "Go.", "?", "Say done."]
