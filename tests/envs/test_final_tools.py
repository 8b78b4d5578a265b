"""Tools that end the episode: by their mark, by the environment's `final_tools`, or by its `is_final`."""

from __future__ import annotations

from typing import Any

import pytest

from gymnast.envs import (
    ConfigurationError,
    EpisodeLimits,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    ToolCall,
    ToolEnv,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.adapters import MCPTools

from .episodes import play_one
from .mcp_servers import make_server
from .tool_env_steps import begin, contents


def search(text: str) -> str:
    """Search.

    Args:
        text: The words to look for.
    """
    return f"found {text}"


def submit(text: str) -> str:
    """Submit a text.

    Args:
        text: The text.
    """
    if not text:
        raise ValueError("it is empty")
    return "thank you"


async def test_a_tool_that_the_environment_names_is_final() -> None:
    environment = ToolEnv([tool(parallel=True)(search), tool(parallel=True)(submit)], final_tools=["submit"])
    begin(environment)
    result = environment.step(tool_calls(("submit", {"text": ""}), ("search", {"text": "a"})))
    assert (contents(result), result.terminated) == (["Error: ValueError: it is empty", "found a"], False)
    calls = [("search", {"text": "a"}), ("submit", {"text": "b"}), ("search", {"text": "c"})]
    result = environment.step(tool_calls(*calls))
    assert contents(result) == ["found a", "thank you", "Error: not run, the episode ended before this call."]
    assert result.info["stop_reason"] is StopReason.FINAL_ANSWER
    assert not ToolEnv([search, submit]).tools["submit"].final  # another environment leaves it open


def test_a_named_final_tool_goes_before_every_cap() -> None:
    environment = ToolEnv([search, submit], final_tools=("submit",))
    script = ScriptedPolicy([tool_calls(("search", {"text": "a"}), ("submit", {"text": "b"}))])
    [episode] = RolloutEngine(environment, script, limits=EpisodeLimits(max_tool_calls=1)).play([{"prompt": "go"}])
    assert episode.stop is StopReason.FINAL_ANSWER
    assert [record.outcome for record in episode.tool_calls] == ["ok", "ok"]


async def test_a_tool_of_a_server_may_be_final() -> None:
    environment = ToolEnv([MCPTools(make_server, prefix="shop-")], final_tools=["shop-add"])
    episode = await play_one(environment, [tool_call("shop-refuse", city="Rome"), tool_call("shop-add", by=2)])
    assert episode.stop is StopReason.FINAL_ANSWER
    with pytest.raises(ConfigurationError, match=r"final_tools of ToolEnv: there is no tool 'ad'"):
        await play_one(ToolEnv([MCPTools(make_server)], final_tools=["ad"]), [])


def test_final_tools_may_be_a_class_attribute_and_have_the_name_of_trls_proposal() -> None:
    class Submits(ToolEnv):
        final_tools = ("submit",)

        def reset_task(self, task: Any) -> Any:
            self.tools = [submit, search]
            return super().reset_task(task)

    environment = Submits([submit])
    begin(environment)
    assert [entry.name for entry in environment.tools.values() if entry.final] == ["submit"]
    assert ToolEnv([submit], stop_tool_names=["submit"]).clone().tools["submit"].final
    with pytest.raises(ValueError, match="final_tools and stop_tool_names are two names of one option"):
        ToolEnv([submit], stop_tool_names=["submit"], final_tools=["submit"])


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["submitt"], ConfigurationError, r"there is no tool 'submitt'\. Did you mean 'submit'\?"),
        ("submit", TypeError, "final_tools must be a list of names of tools, got str: 'submit'"),
        ([submit], TypeError, "final_tools must be a list of names of tools, got list"),
        (None, TypeError, "final_tools must be a list of names of tools, got NoneType"),
    ],
)
def test_wrong_names_of_final_tools_are_refused(names: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ToolEnv([search, submit], final_tools=names)


def test_is_final_decides_about_the_end_and_about_the_caps() -> None:
    class Judges(ToolEnv):
        """A call is final if it submits a long text."""

        def is_final(self, call: ToolCall) -> bool:
            arguments: Any = call["function"]["arguments"]
            return call["function"]["name"] == "submit" and len(arguments.get("text", "")) > 3

    marked = Judges([tool(final=True)(submit)])
    begin(marked)
    assert not marked.step(tool_call("submit", text="abc")).terminated  # against the mark
    environment = Judges([tool(parallel=True)(submit), tool(parallel=True)(search)])
    begin(environment)
    result = environment.step(tool_calls(("submit", {"text": "abc"}), ("submit", {})))
    assert (result.terminated, contents(result)[0]) == (False, "thank you")
    result = environment.step(tool_calls(("submit", {"text": "abcd"}), ("search", {"text": "a"})))
    assert result.info["stop_reason"] is StopReason.FINAL_ANSWER
    assert contents(result)[1] == "Error: not run, the episode ended before this call."


@pytest.mark.parametrize("arguments", [{"sure": True}, {"sure": "true"}, '{"sure": true}'])
async def test_is_final_gets_the_arguments_that_the_tool_gets(arguments: Any) -> None:
    class Asks(ToolEnv):
        def is_final(self, call: ToolCall) -> bool:
            arguments: Any = call["function"]["arguments"]
            return arguments["sure"] is True

        @tool
        def submit(self, sure: bool) -> str:
            """Submit.

            Args:
                sure: Whether this is final.
            """
            return str(sure)

    environment = Asks()
    begin(environment)
    assert (await environment.astep(tool_calls(("submit", arguments)))).terminated
