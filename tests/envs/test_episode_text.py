"""`print(episode)`, and its table in a notebook."""

from __future__ import annotations

from gymnast.envs import BrokenEnvironmentError, Calculator, tool, tool_call

from .episodes import ADD, ANSWER, play_one


async def test_print_shows_messages_calls_and_results() -> None:
    episode = await play_one(Calculator(), [{**ADD, "content": "First\nadd."}, tool_call("add", a="x"), ANSWER])
    heading, *lines = str(episode).splitlines()
    assert heading.startswith(f"{episode.spec.group}[0]: reward 1, final_answer (3 turns, ")
    assert lines[0] == "      user  What is 1 plus 2?"
    assert lines[1:4] == [" assistant  First", "            add.", "      call  add(a=1, b=2) -> 3"]
    assert lines[4].startswith('      call  add(a="x") [bad_arguments, ')
    assert lines[-1] == "    reward  +1"


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
    assert str(episode).count("x") == 1000
    assert "... 4000 more characters" in str(episode)
