"""OpenEnv in both directions: its servers as our environments, and our environments as its servers."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

from gymnast.envs import (
    Calculator,
    Environment,
    Episode,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolEnv,
    final_answer,
    tool_call,
)
from gymnast.envs.adapters import OpenEnvEnvironment, openenv_app

from .openenv_servers import Containers, button_app, serving, shop_app

openenv: Any = importlib.import_module("openenv.core")
mcp_client: Any = importlib.import_module("openenv.core.mcp_client")
ROW = {"question": "What is 3 times 4?", "answer": 12}


def play(environment: Environment, *script: Any, rows: list[dict[str, Any]]) -> list[Episode]:
    return RolloutEngine(environment, ScriptedPolicy(script)).play(rows, seed=0)


def results(episode: Episode) -> list[Any]:
    return [message.get("content") for message in episode.completion if message["role"] == "tool"]


def press(times: Any) -> Any:
    return tool_call("act", times=times)


def test_a_server_with_an_action_of_its_own_is_played_by_its_schema() -> None:
    with serving(button_app()) as url:
        rows = [{"prompt": "Reach ten.", "seed": 3, "options": {"start": 4}}] * 3  # the server has one session
        episodes = play(OpenEnvEnvironment(url), press(2), press("many"), press(3), press(1), rows=rows)
    for episode in episodes:
        assert episode.prompt == [{"role": "user", "content": 'Reach ten.\n\n{"total": 5}'}]
        [schema] = episode.tools
        assert schema["function"]["name"] == "act"
        assert schema["function"]["description"] == "Press the button some times."
        assert list(schema["function"]["parameters"]["properties"]) == ["times"]
        first, wrong, last = results(episode)
        assert (first, last) == ('{"total": 7}', '{"total": 10}')
        assert wrong.startswith("Error: act: argument 'times': 'many' is not of type 'integer'")
        assert [turn.reward for turn in episode.turns] == pytest.approx([0.2, 0.0, 0.3])
        assert episode.stop is StopReason.ENV_TERMINATED


def test_a_crash_of_the_servers_environment_fails_the_episode() -> None:
    with serving(button_app()) as url:
        [episode] = play(OpenEnvEnvironment(url), press(13), rows=[{"seed": 2}])
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("step", "OpenEnvServerError")
    assert "out of luck (code: EXECUTION_ERROR)" in episode.failure.message
    assert episode.reward is None


def test_a_server_that_is_not_there_fails_the_reset() -> None:
    with serving(button_app()) as url:
        pass
    [episode] = play(OpenEnvEnvironment(url), press(1), rows=[{}])
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("reset", "OpenEnvServerError")


async def test_a_server_that_dies_in_an_episode_fails_it() -> None:
    server = serving(button_app())
    url = server.__enter__()
    answered = 0

    async def answer(conversation: Any) -> Any:
        nonlocal answered
        answered += 1
        if answered == 2:
            await asyncio.to_thread(server.__exit__, None, None, None)
        return press(1)

    engine = RolloutEngine(OpenEnvEnvironment(url), ScriptedPolicy(answer))
    [episode] = await asyncio.to_thread(engine.play, [{"seed": 2}])
    assert len(results(episode)) == 1
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("step", "OpenEnvServerError")


def test_a_full_server_is_waited_for_only_for_a_while() -> None:
    with serving(button_app()) as url:
        held = OpenEnvEnvironment(url)
        held.reset(seed=0)
        [episode] = play(OpenEnvEnvironment(url, wait_timeout=0.3), press(1), rows=[{}])
        held.close()
        [later] = play(OpenEnvEnvironment(url), press(10), rows=[{}])
    assert episode.failure is not None
    assert "CAPACITY_REACHED" in episode.failure.message
    assert later.reward == 1.0


def test_each_episode_has_a_container_that_is_started_and_stopped_beside_the_event_loop() -> None:
    made: list[Containers] = []

    def start() -> Any:
        made.append(Containers())
        return openenv.GenericEnvClient.from_docker_image("button-env:latest", provider=made[-1])

    episodes = play(OpenEnvEnvironment(start), press(4), press(6), rows=[{"seed": 2}] * 3)
    assert [episode.reward for episode in episodes] == pytest.approx([1.0] * 3)
    assert [(episode.started, episode.running) for episode in made] == [(1, 0)] * 3


def test_a_server_with_tools_offers_these() -> None:
    with serving(shop_app()) as url:
        script = [tool_call("price", fruit="pear"), tool_call("price", fruit="plum"), tool_call("price")]
        rows = [{"prompt": "Buy."}]
        made = OpenEnvEnvironment(lambda: openenv.GenericEnvClient(base_url=url), tools=[final_answer])
        [episode] = play(made, *script, tool_call("final_answer", answer="4"), rows=rows)
    assert [schema["function"]["name"] for schema in episode.tools] == ["final_answer", "price"]
    right, wrong, missing, _ = results(episode)
    assert right == "4"
    assert wrong.startswith("Error: ")
    assert missing == "Error: price: missing argument 'fruit'"
    assert episode.failure is None


def test_our_environment_is_played_through_a_server_as_it_is_here() -> None:
    script = [tool_call("multiply", a=3, b=4), tool_call("multiply", a=3), tool_call("final_answer", answer=12)]
    with serving(openenv_app(Calculator())) as url:
        rows = [{"options": {"task": ROW}}] * 4
        far = play(OpenEnvEnvironment(url, describe=lambda seen: seen["messages"][0]["content"]), *script, rows=rows)
    [near] = play(Calculator(), *script, rows=[ROW])
    for episode in far:
        assert episode.prompt == near.prompt
        assert [schema["function"] for schema in episode.tools] == [schema["function"] for schema in near.tools]
        assert results(episode) == results(near)
        assert episode.reward == near.reward == 1.0
        assert episode.stop is StopReason.ENV_TERMINATED  # the final tool is the server's secret


async def test_openenvs_own_client_plays_our_environment() -> None:
    with serving(openenv_app(Graded())) as url:
        async with mcp_client.MCPToolClient(base_url=url) as client:
            first = await client.reset(seed=1, task={"prompt": "go"})
            assert first.observation.messages == [{"role": "user", "content": "go"}]
            assert [item.name for item in await client.list_tools()] == ["final_answer"]
            observation = await client.call_tool("final_answer", answer="x")  # the client unpacks only FastMCP's
            assert observation["result"] == "x"
            await client.reset(task={"prompt": "go"})
            last = await client.step(mcp_client.CallToolAction(tool_name="final_answer", arguments={"answer": "x"}))
            assert (last.done, last.reward) == (True, 0.5)
            assert last.metadata == {"stop_reason": "final_answer"}
            with pytest.raises(RuntimeError, match="no episode is going on: call reset first"):
                await client.step(mcp_client.CallToolAction(tool_name="final_answer", arguments={"answer": "x"}))


class Graded(ToolEnv):
    def __init__(self) -> None:
        super().__init__([final_answer])

    def grade(self, stop: StopReason) -> float:
        return 0.5


def test_only_environments_with_tools_are_served() -> None:
    with pytest.raises(TypeError, match="openenv_app serves a ToolEnv"):
        openenv_app(object())  # type: ignore[arg-type]
