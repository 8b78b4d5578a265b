"""`print(episode)`, and its table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnast.envs import (
    BrokenEnvironmentError,
    Calculator,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    ToolEnv,
    episode_specs,
    tool,
    tool_call,
)

from .episodes import ADD, ANSWER, play_one


async def test_print_shows_messages_calls_and_results() -> None:
    episode = await play_one(Calculator(), [{**ADD, "content": "First\nadd."}, tool_call("add", a="x"), ANSWER])
    heading, task, *lines = str(episode).splitlines()
    assert heading.startswith(f"{episode.spec.group}[0]: reward 1, final_answer (3 turns, ")
    assert task == '      task  prompt="go", index=0'
    assert lines[0] == "      user  What is 1 plus 2?"
    assert lines[1:4] == [" assistant  First", "            add.", "      call  add(a=1, b=2) -> 3"]
    assert lines[4].startswith('      call  add(a="x") [bad_arguments, ')
    assert lines[-3:] == ["    reward  +1", "     given  3", "  expected  3"]


async def test_print_shows_the_right_answer_beside_the_given_one() -> None:
    class Repair(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            return [{"role": "user", "content": f"Repair {task['query']}"}]

        @tool(final=True)
        def submit(self, query: str) -> str:
            """Submit a query.

            Args:
                query: The query.
            """
            return "handed in"

    row = {"query": "SELEC 1", "solution": "SELECT 1", "tables": ["a"]}

    async def text_of(answer: Message | str) -> str:
        engine = RolloutEngine(Repair(), ScriptedPolicy([answer]))
        [episode] = await engine.run(episode_specs([row], group_size=1, seed=0))
        return str(episode)

    text = await text_of(tool_call("submit", query="SELECT 2"))
    assert text.splitlines()[1:3] == ['      task  tables=["a"]', "      user  Repair SELEC 1"]
    assert text.splitlines()[-2:] == ["     given  SELECT 2", "  expected  SELECT 1"]
    assert (await text_of("I give up.")).splitlines()[-2] == "     given  I give up."


async def test_a_notebook_shows_escaped_text_and_the_failure() -> None:
    class Breaks(Calculator):
        @tool
        def look(self) -> str:
            """Look."""
            raise BrokenEnvironmentError("<script>")

    episode = await play_one(Breaks(), [tool_call("look")])
    html = episode._repr_html_()
    assert "no reward, failed" in html
    assert "at step: BrokenEnvironmentError: &lt;script&gt;" in html
    assert "<script>" not in html


async def test_a_long_message_is_cut() -> None:
    episode = await play_one(Calculator(), ["x" * 5000])
    assert "model_stopped (1 turn, " in str(episode)
    message, given = str(episode).split("     given  ")
    assert f"  {'x' * 1000} ... 4000 more characters" in message
    assert given.startswith("x" * 200 + " ... 4800 more characters")
