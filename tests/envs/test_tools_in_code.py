"""Tools that the model's code calls: what the code and the model see, and that such a call is a call like any other."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from gymnast.envs import (
    BrokenEnvironmentError,
    CodeEnv,
    ConfigurationError,
    DefaultEnv,
    Episode,
    RolloutEngine,
    ScriptedPolicy,
    episode_specs,
    tool,
    tool_call,
)
from gymnast.envs.tools.tool import Tool
from gymnast.sandbox import BwrapExecutor, DockerExecutor, Executor, LocalExecutor, ScriptedExecutor

HELP = "import subprocess\nprint(subprocess.getoutput('tools --help'))"
ROW = {"prompt": "go", "answer": "cat0"}


def search(query: str, limit: int = 2, mode: Literal["all", "new"] | None = None) -> list[str]:
    """Search the "corpus".

    Args:
        query: The words; \\ and \""" are kept.
        limit: How many.
        mode: Which.
    """
    if query == "bad":
        raise ValueError("a bad query")
    return [f"{query}{place}" for place in range(limit)]


class Shelf(CodeEnv):
    """Its tools touch the episode."""

    @tool
    def save(self, text: str) -> dict[str, Any]:
        """Save a text.

        Args:
            text: The text.
        """
        self.reward += 0.25
        self.metrics["saved"] = self.metrics.get("saved", 0.0) + 1.0
        return {"saved": text, "at": None}

    @tool(timeout=0.2)
    async def wait(self) -> None:
        """Wait for too long."""
        await asyncio.Event().wait()

    @tool
    def break_down(self) -> None:
        """Break."""
        raise BrokenEnvironmentError("the shelf fell down")

    @tool
    async def look(self) -> str:
        """Use the box in which the code runs."""
        return (await self.box.bash("ls")).stdout


def shelf(**options: Any) -> Shelf:
    return Shelf(LocalExecutor(), [search], **options)


async def play(environment: CodeEnv, *script: Any) -> Episode:
    try:
        engine = RolloutEngine(environment, ScriptedPolicy(list(script)))
        [episode] = await engine.run(episode_specs([ROW], group_size=1, seed=0))
        return episode
    finally:
        await environment._pool.close()


def python(code: str) -> Any:
    return tool_call("python", code=code)


def said(episode: Episode) -> list[str]:
    return [str(message.get("content")) for turn in episode.turns for message in turn.observation]


@pytest.mark.parametrize("make", [LocalExecutor, DockerExecutor, BwrapExecutor])
@pytest.mark.usefixtures("image", "bubblewrap")
async def test_code_imports_the_tools_and_ends_the_episode(make: Any) -> None:
    code = "from tools import final_answer, save, search\nprint(save('x'))\nfinal_answer(search('cat', limit='1')[0])"
    episode = await play(
        Shelf(make(), [search]),
        python("import subprocess, tools\nhelp(tools.search)"),
        python("print(subprocess.getoutput('tools search --query=7; tools search --limit 0; tools save --text 5'))"),
        python(f"{code}\nprint('never')"),
    )
    shown, shell, last = said(episode)
    assert "search(query: str, limit: int = 2, mode: Optional[Literal['all', 'new']] = None) -> list[str]" in shown
    assert 'Search the "corpus".' in shown
    assert 'query: The words; \\ and """ are kept.' in shown
    missing = "tools: search() missing 1 required positional argument: 'query'"
    assert shell.splitlines() == ['["70", "71"]', missing, '{"saved": "5", "at": null}']
    assert last == "{'saved': 'x', 'at': None}"
    assert (episode.reward, episode.stop, episode.given) == (1.5, "final_answer", "cat0")
    assert (episode.metrics["code_calls"], episode.metrics["saved"]) == (5.0, 2.0)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.25, 1.25]
    names = ["python", "python", "search", "save", "python", "save", "search", "final_answer"]
    assert [record.name for record in episode.tool_calls] == names
    assert episode.turns[2].tool_calls[0].inside[1].arguments == {"query": "cat", "limit": "1"}
    assert Episode.from_json(episode.to_json()).tool_calls == episode.tool_calls


async def test_tools_with_unusual_names_defaults_and_texts_are_functions() -> None:
    @tool(name="json")
    def show(limit: float = math.inf, year: int | None = 5) -> str:
        '''Quote with """", and even \\""".

        Args:
            limit: A number.
            year: A year, or `"""`
        '''
        return f"{limit} {year}"

    @tool(name="list")
    def listed() -> list[int]:
        """List nothing."""
        return []

    code = "import tools\nprint(tools.json_(), tools.json_(2, None), tools.list_())\nprint(tools.json_.__doc__)"
    bare = dataclasses.replace(Tool.of(listed), description="")
    environment = CodeEnv(LocalExecutor(), [show, bare])
    assert "`from tools import json_`" in environment.tool_schemas()[0]["function"]["description"]
    episode = await play(environment, python(code), python(HELP), "bye")
    assert "\nlist_() -> list[int]: \n" in said(episode)[1]
    assert said(episode)[0].startswith('inf 5 2.0 None []\nQuote with """", and even \\""".')


async def test_failures_reach_the_code_as_for_any_call() -> None:
    code = """
import tools
for call in (lambda: tools.search('bad'), lambda: tools.search('x', []), tools.wait, tools.look):
    try:
        call()
    except tools.ToolError as error:
        print(error)
tools.search('x', limit={1})"""
    episode = await play(shelf(), python(code), python("1"), "bye")
    errors = said(episode)[0].splitlines()
    assert errors[0] == "ValueError: a bad query"
    assert "search: argument 'limit': Input should be a valid integer" in errors[1]
    assert errors[2] == "wait did not finish within 0.2 s."
    assert "so the tool cannot use the box" in errors[3]
    assert errors[-1] == "TypeError: an argument is a set: pass text, numbers, lists and dicts"
    outcomes = [record.outcome for record in episode.turns[0].tool_calls[0].inside]
    assert outcomes == ["refused", "bad_arguments", "timeout", "exception"]
    assert said(episode)[1] == "1"


@pytest.mark.parametrize("levels", [100, 300, 900])
async def test_arguments_that_a_log_could_not_hold_are_refused(levels: int) -> None:
    code = f"import tools\nnested = []\nfor _ in range({levels}): nested = [nested]\ntools.search(nested)"
    episode = await play(shelf(), python(code), python("tools.search('x')[0]"), "bye")
    assert "nested too deeply" in said(episode)[0] or "RecursionError" in said(episode)[0]
    assert said(episode)[1] == "'x0'"
    assert Episode.from_json(episode.to_json()).tool_calls == episode.tool_calls


async def test_a_broken_environment_stops_the_code() -> None:
    started = time.perf_counter()
    code = "import time, tools\ntry: tools.break_down()\nexcept BaseException: time.sleep(60)"
    episode = await play(shelf(), python(code))
    assert episode.failure is not None
    assert (episode.failure.type, episode.reward) == ("BrokenEnvironmentError", None)
    assert time.perf_counter() - started < 20


async def test_a_call_that_the_end_of_its_code_cuts_off_is_recorded() -> None:
    class Slow(Shelf):
        @tool
        async def hang(self) -> None:
            """Wait for ever."""
            await asyncio.Event().wait()

    episode = await play(Slow(LocalExecutor(), code_timeout=1.0), python("import tools\ntools.hang()"), "bye")
    assert "[stopped after 1" in said(episode)[0]
    [record] = episode.turns[0].tool_calls[0].inside
    assert (record.name, record.outcome, record.arguments) == ("hang", "timeout", {})
    assert record.error == "the code that made this call ended before it did"


@pytest.mark.parametrize("ending", ["try: final_answer('cat0')\nexcept SystemExit: pass\nsearch('x')", "'cat1'"])
async def test_calls_over_the_budget_and_after_the_end_are_refused(ending: str) -> None:
    search_often = "for n in range(9):\n    try: search('x')\n    except Exception as error: print(error)"
    code = f"from tools import *\n{ending}\n{search_often}"
    episode = await play(shelf(max_code_calls=3), python(code), "bye")
    if "final_answer" in ending:
        assert "not run, the episode is over" in said(episode)[0]
        assert (episode.reward, len(episode.tool_calls), episode.metrics["code_calls"]) == (1.0, 2, 2.0)
    else:
        assert "the code was stopped: it made 7 calls of tools, 3 are allowed" in said(episode)[0]
        assert episode.metrics["code_calls"] == 7.0
        assert [record.name for record in episode.tool_calls] == ["python", "search", "search", "search"]


async def test_a_replay_needs_neither_box_nor_tools(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    script = [python("import tools\ntools.save('a')"), python("tools.save('b'); tools.final_answer('cat0')")]
    recorded = await play(shelf(record=path), *script)
    again = await play(Shelf(ScriptedExecutor([]), [search], replay=path), *script)
    for field in ("reward", "stop", "given"):
        assert getattr(again, field) == getattr(recorded, field)
    assert again.reward == 1.5
    assert said(again) == said(recorded)
    assert [record.name for record in again.tool_calls] == [record.name for record in recorded.tool_calls]


async def test_a_replay_names_a_tool_that_changed_since_code_called_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Changed(Shelf):
        @tool
        def save(self, text: str) -> dict[str, Any]:
            """Save a text.

            Args:
                text: The text.
            """
            return {"saved": text.upper()}

    Changed.__name__ = "Shelf"  # the class is a part of a call's key
    path, save = tmp_path / "calls.jsonl", python("import tools\ntools.save('a')")
    await play(shelf(record=path), save, save, "bye")
    assert (await play(Shelf(ScriptedExecutor([]), [search], replay=path), save, save, "bye")).failure is None
    assert caplog.messages == []
    assert (await play(Changed(ScriptedExecutor([]), [search], replay=path), save, save, "bye")).reward == 0.5
    [message] = caplog.messages
    assert message.startswith(f"{path} has results of save from before its description, signature or source changed")


async def test_the_model_sees_one_tool_which_lists_the_functions() -> None:
    [schema] = shelf().tool_schemas()
    assert schema["function"]["name"] == "python"
    text = schema["function"]["description"]
    assert "def search(query: str, limit: int = 2, mode: Literal['all', 'new'] | None = None) -> list[str]:" in text
    assert "def final_answer(answer: str)" in text
    [schema] = shelf(tools_in="bash").tool_schemas()
    assert schema["function"]["name"] == "bash"
    shown = [schema["function"]["name"] for schema in shelf(tools_in="calls").tool_schemas()]
    assert shown[:4] == ["python", "bash", "final_answer", "save"]
    plain = DefaultEnv(code_executor=LocalExecutor())
    assert [schema["function"]["name"] for schema in plain.tool_schemas()] == ["python", "bash", "final_answer"]
    waits = tool_call("bash", command="tools wait")
    episode = await play(shelf(tools_in="bash"), tool_call("search", query="x"), waits, "bye")
    assert said(episode)[0].endswith("The tools are: bash.")
    assert "tools: wait did not finish within 0.2 s" in said(episode)[1]


async def test_code_in_the_text_of_an_answer() -> None:
    script = [
        "A `<code>`.\n```python\nfound = search('cat')  # </code>\n```\nthen\n```py\nfound\n```\n```json\n{}\n```",
        "```bash\ntools save --text t\n```",
        "<code>import os; os._exit(3)</code>",
        "<code>\nfinal_answer(search('cat')[0])\n",
    ]
    episode = await play(shelf(code_actions=True), *script)
    assert [turn.observation[0]["role"] for turn in episode.turns] == ["user"] * 4
    assert said(episode)[0] == "Observation:\n['cat0', 'cat1']"
    assert said(episode)[1] == 'Observation:\n{"saved": "t", "at": null}'
    assert (episode.reward, episode.stop, episode.given, episode.tools) == (1.25, "final_answer", "cat0", [])
    assert "def search(query: str" in str(episode.first_messages[0])
    assert (await play(shelf(code_actions=True), "No code.")).stop == "model_stopped"


async def test_blocks_find_the_functions_whatever_happened_before() -> None:
    class Late(Shelf):
        async def reset_task(self, task: Any) -> Any:
            assert (await self.box.python("import tools\ntools.save")).ok
            self.tools = {name: found for name, found in self.tools.items() if name != "save"}
            return super().reset_task(task)

    script = [
        "```python\nimport os\nopen('pid', 'w').write(str(os.getpid()))\nsearch('a')[0], 'save' in globals()\n```",
        "```bash\nkill -9 $(cat pid)\n```",
        "```python\nsearch('b')[0]\n```",
    ]
    episode = await play(Late(LocalExecutor(), [search], code_actions=True), *script, "bye")
    assert "('a0', False)" in said(episode)[0]
    assert "'b0'" in said(episode)[2]
    hidden = {**ROW, "files": {"./tools.py": "x"}}
    with pytest.raises(ConfigurationError, match=r"'tools.py' hides the module"):
        shelf().reset(options={"task": hidden})


def test_options_that_cannot_be_are_refused() -> None:
    def web(text: str) -> str:
        """Search.

        Args:
            text: What.
        """
        return text

    with pytest.raises(ValueError, match="tools_in must be one of"):
        shelf(tools_in="java")
    with pytest.raises(ValueError, match="max_code_calls must be positive"):
        shelf(max_code_calls=0)
    with pytest.raises(ValueError, match="code_actions needs tools in the code"):
        shelf(code_actions=True, tools_in="calls")
    twice = CodeEnv(LocalExecutor(), [tool(name="web-x")(web), tool(name="web_x")(web)])
    with pytest.raises(ConfigurationError, match="'web_x' in Python"):
        twice.reset(options={"task": ROW})
    for names, message in ((["a-b", "a_b"], "two parameters of 'web'"), (["__debug__"], "cannot be a function")):
        parameters = {"type": "object", "properties": {name: {} for name in names}}
        unusable = dataclasses.replace(Tool.of(web), parameters=parameters)
        with pytest.raises(ConfigurationError, match=message):
            CodeEnv(LocalExecutor(), [unusable]).reset(options={"task": ROW})


class _Silent(ScriptedExecutor):
    offer = Executor.offer


def test_a_box_that_offers_no_tools_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="code in a _Silent cannot call functions outside"):
        CodeEnv(_Silent([]), [search]).reset(options={"task": ROW})
