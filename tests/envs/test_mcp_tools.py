"""`MCPTools`: the tools of MCP servers in this process, in other processes, and of servers that break."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

from gymnast.envs import (
    CodeEnv,
    ConfigurationError,
    Episode,
    Image,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolEnv,
    final_answer,
    tool_call,
    tool_calls,
)
from gymnast.envs.adapters import MCPTools
from gymnast.sandbox import LocalExecutor

from .episodes import play_one, specs, tool_contents
from .mcp_servers import DOT, PROCESS, make_server, make_strict_server, served_over_http

DONE = tool_call("final_answer", answer="done")
ROW = {"task": {"prompt": "go"}}


def environment(server: Any = make_server, include: Any = None, **options: Any) -> ToolEnv:
    return ToolEnv([MCPTools(server, include, **options), final_answer])


async def play(environment: ToolEnv, *script: Any, count: int) -> list[Episode]:
    return await RolloutEngine(environment, ScriptedPolicy(script)).run(specs(count))


def has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


# --- what the model sees ------------------------------------------------------------------------------------------


async def test_the_model_sees_the_servers_tools_and_their_results() -> None:
    steps = [tool_call("add", by=2), tool_call("add", by="3"), tool_call("draw_picture"), DONE]
    episode = await play_one(environment(), steps)
    assert episode.stop is StopReason.FINAL_ANSWER
    [_, schema, *_] = episode.tools
    assert schema["function"]["name"] == "add"
    assert schema["function"]["description"] == "Add to the counter, and return its value."
    assert schema["function"]["parameters"]["properties"]["by"]["type"] == "integer"
    assert schema["function"]["parameters"]["required"] == ["by"]
    dot = {"type": "image", "image": Image.of(f"data:image/png;base64,{DOT}")}
    assert tool_contents(episode) == ["2", "5", [{"type": "text", "text": "a dot"}, dot], "done"]


async def test_errors_of_a_tool_and_wrong_arguments_are_told_to_the_model() -> None:
    steps = [
        tool_call("refuse", city="Atlantis"),
        tool_call("add"),
        tool_call("add", by="many"),
        tool_call("wait"),
        DONE,
    ]
    environment = ToolEnv([MCPTools(make_server), final_answer], tool_timeout=0.2)
    episode = await play_one(environment, steps)
    assert tool_contents(episode) == [
        "Error: MCPToolError: Error executing tool refuse: there is no city Atlantis",
        "Error: add: missing argument 'by'",
        "Error: add: argument 'by': 'many' is not of type 'integer', got 'many'",
        "Error: wait did not finish within 0.2 s.",
        "done",
    ]
    outcomes = [record.outcome for turn in episode.turns for record in turn.tool_calls]
    assert outcomes == ["refused", "bad_arguments", "bad_arguments", "timeout", "ok"]
    assert episode.failure is None


async def test_arguments_against_the_whole_schema_are_named_to_the_model() -> None:
    steps = [tool_call("a_b", by=1, colour="red", **{"x-note": 2}), tool_call("a_b"), DONE]
    [unknown, none, _] = tool_contents(await play_one(environment(make_strict_server, ["a.b"]), steps))
    assert unknown == "Error: a_b: unknown argument 'colour'"
    assert none.startswith("Error: a_b: the arguments: {} ")


async def test_a_server_that_is_too_busy_to_answer_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.envs.adapters.mcp_connection.ALIVE_SECONDS", 0.05)
    episode = await play_one(environment(make_strict_server, ["a.b"]), [tool_call("a_b", by=1), DONE])
    assert tool_contents(episode) == ["Error: MCPToolError: there is no connection to the shop", "done"]


async def test_include_and_prefix_choose_tools_and_names() -> None:
    two = ToolEnv(
        [MCPTools(make_server, include=["add"]), MCPTools(make_server, include=["refuse", "add"], prefix="b-")]
    )
    await two.areset(options=ROW)
    assert [schema["function"]["name"] for schema in two.tool_schemas()] == ["add", "b-refuse", "b-add"]
    result = await two.astep(tool_calls(("add", {"by": 1}), ("b-add", {"by": 5}), ("add", {"by": 1})))
    assert [message.get("content") for message in result.messages] == ["1", "5", "2"]
    await two.areset(options={"task": {"prompt": "go", "tools": ["b-add"]}})
    assert list(two.tools) == ["b-add"]
    await two.aclose()


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([MCPTools(make_server, include=["ad"])], r"the MCP server has no tool 'ad'; its tools are \['add', 'die', "),
        (
            [MCPTools(make_server), MCPTools(make_server)],
            r"two tools named 'add': .* with MCPTools\(\.\.\., prefix=\.\.\.\)",
        ),
        (
            [MCPTools(make_strict_server, prefix="x-")],
            r"tools 'a.b' and 'a_b' would both be named 'x-a_b' for the model: offer only one of them, with include=",
        ),
        (
            [MCPTools(StdioServerParameters(command="no-such-program"))],
            "the MCP server cannot be started: FileNotFound",
        ),
    ],
)
async def test_mistakes_that_every_episode_would_meet_stop_the_run(tools: list[Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await play_one(ToolEnv(tools), [DONE])


def test_wrong_options_are_refused() -> None:
    with pytest.raises(TypeError, match="include must be a list of names of tools, got a str: 'add'"):
        MCPTools(make_server, "add")
    with pytest.raises(ValueError, match="start_timeout must be positive, got 0"):
        MCPTools(make_server, start_timeout=0)


# --- one server for an episode, or one for all ----------------------------------------------------------------------


async def test_each_episode_has_a_server_of_its_own_unless_it_is_shared() -> None:
    made: list[Any] = []

    async def make() -> Any:
        made.append(make_server())
        return made[-1]

    episodes = await play(environment(make), tool_call("add", by=1), DONE, count=3)
    assert [tool_contents(episode) for episode in episodes] == [["1", "done"]] * 3
    assert len(made) == 3
    episodes = await play(environment(make, share=True), tool_call("add", by=1), tool_call("add", by=1), DONE, count=3)
    assert sorted(content for episode in episodes for content in tool_contents(episode)[:2]) == list("123456")
    assert len(made) == 4


def test_an_environment_plays_synchronously_and_can_be_pickled() -> None:
    tools = pickle.loads(pickle.dumps(MCPTools(make_server, share=True)))
    played = ToolEnv([tools])
    for _ in range(2):
        played.reset(options=ROW)
        assert played.step(tool_call("add", by=4)).messages[0].get("content") == "4"
    played.close()
    assert played.tool_schemas() != []


async def test_it_may_be_closed_from_another_event_loop() -> None:
    played = environment()
    before = asyncio.all_tasks()
    await played.areset(options=ROW)
    assert asyncio.all_tasks() > before
    await asyncio.to_thread(played.close)
    assert asyncio.all_tasks() <= before


async def test_code_calls_the_tools_of_a_server() -> None:
    code = """
from tools import ToolError, add, draw_picture, final_answer, refuse
print(add(3), draw_picture())
try:
    refuse("Rome")
except ToolError as error:
    print(error)
final_answer("see above")
"""
    played = CodeEnv(LocalExecutor(), [MCPTools(make_server, include=["add", "refuse", "draw.picture"])])
    episode = await play_one_row(played, {"prompt": "go", "answer": "see above"}, tool_call("python", code=code))
    assert tool_contents(episode)[0].splitlines() == [
        "3 a dot",
        "[image]",
        "MCPToolError: Error executing tool refuse: there is no city Rome",
    ]
    assert (episode.reward, episode.given) == (1.0, "see above")


async def play_one_row(environment: ToolEnv, row: dict[str, Any], *script: Any) -> Episode:
    [episode] = await RolloutEngine(environment, ScriptedPolicy(script)).run(specs(1, **row))
    return episode


# --- servers in processes -------------------------------------------------------------------------------------------


async def test_a_process_lasts_as_long_as_its_episode() -> None:
    episode = await play_one(environment(PROCESS), [tool_call("process_id"), DONE])
    process = int(tool_contents(episode)[0])
    assert process != os.getpid()
    assert has_ended(process)


async def test_a_cancelled_episode_ends_its_process() -> None:
    processes: list[int] = []
    called = asyncio.Event()

    async def answer(conversation: Any) -> Any:
        contents = [message.get("content") for message in conversation if message["role"] == "tool"]
        if not contents:
            return tool_call("process_id")
        processes.append(int(str(contents[0])))
        called.set()
        return tool_call("wait")

    run = asyncio.create_task(play_one(environment(PROCESS), answer))
    await asyncio.wait_for(called.wait(), 30)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert has_ended(processes[0])


async def test_an_episode_that_is_cancelled_while_its_server_starts_ends_the_process(tmp_path: Path) -> None:
    note = tmp_path / "process"
    silent = StdioServerParameters(command="sh", args=["-c", f"echo $$ > {note}.new; mv {note}.new {note}; sleep 60"])
    run = asyncio.create_task(play_one(environment(silent), [DONE]))
    await asyncio.wait_for(asyncio.to_thread(wait_for_file, note), 30)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert has_ended(int(note.read_text()))


async def test_a_killed_server_fails_the_episode_and_is_no_text_for_the_model() -> None:
    [episode] = await play(environment(PROCESS), tool_call("die"), DONE, count=1)
    assert episode.stop is StopReason.FAILED
    assert episode.reward is None
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("step", "MCPServerError")
    assert "the MCP server died while 'die' was called: Connection closed" in episode.failure.message
    assert tool_contents(episode) == []


async def test_the_next_episodes_share_a_new_server_after_the_death_of_the_old_one() -> None:
    shared = environment(PROCESS, share=True)
    [dead] = await play(shared, tool_call("die"), DONE, count=1)
    [alive] = await play(shared, tool_call("add", by=1), DONE, count=1)
    assert dead.failure is not None
    assert tool_contents(alive) == ["1", "done"]


async def test_a_server_that_does_not_start_fails_the_reset() -> None:
    for server, timeout, message in [
        (StdioServerParameters(command="true"), 30.0, "the MCP server did not start: MCPError: Connection closed"),
        (StdioServerParameters(command="sleep", args=["60"]), 0.1, "did not list its tools within 0.1 s"),
        ("http://127.0.0.1:9/mcp", 30.0, "the MCP server at http://127.0.0.1:9/mcp did not start: "),
    ]:
        episode = await play_one(environment(server, start_timeout=timeout), [DONE])
        assert episode.failure is not None
        assert (episode.failure.stage, episode.failure.type) == ("reset", "MCPServerError")
        assert message in episode.failure.message


# --- servers at a URL -----------------------------------------------------------------------------------------------


def test_a_server_at_a_url_is_the_same_for_all_episodes() -> None:
    with served_over_http() as url:
        engine = RolloutEngine(environment(url), ScriptedPolicy([tool_call("add", by=1), DONE]))
        episodes = engine.play([{"prompt": "go"}] * 3)
    assert sorted(tool_contents(episode)[0] for episode in episodes) == list("123")


def test_a_server_at_a_url_that_ends_in_an_episode_fails_it() -> None:
    server = served_over_http()
    url = server.__enter__()

    async def answer(conversation: Any) -> Any:
        if conversation[-1]["role"] == "tool":
            await asyncio.to_thread(server.__exit__, None, None, None)
        return tool_call("add", by=1)

    [episode] = RolloutEngine(environment(url), ScriptedPolicy(answer)).play([{"prompt": "go"}])
    assert tool_contents(episode) == ["1"]
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("step", "MCPServerError")
