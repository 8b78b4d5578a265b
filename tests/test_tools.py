"""Tools: schemas from signatures, arguments checked and converted, calls run side by side, results rendered."""

from __future__ import annotations

import asyncio
import gc
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from gymnast.envs import Message, StepResult, StopReason, Tool, ToolCallRecord, ToolEnv, final_answer, tool, tool_calls

WAIT = 30.0  # seconds after which an event that does not come is a failure


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Person(BaseModel):
    name: str
    age: int


class Options(TypedDict, total=False):
    deep: bool


def environment_of(*functions: Callable[..., Any] | Tool, **options: Any) -> ToolEnv:
    environment = ToolEnv(functions, **options)
    environment.reset(seed=0, options={"task": {"prompt": "go"}})
    return environment


async def step(environment: ToolEnv, *calls: tuple[str, Any]) -> tuple[StepResult, list[ToolCallRecord]]:
    result = await environment.astep(tool_calls(*calls))
    return result, result.info["tool_calls"]


async def call(function: Callable[..., Any] | Tool, arguments: Any, **options: Any) -> tuple[Any, ToolCallRecord]:
    """The content of the result message, and the record."""
    environment = environment_of(function, **options)
    [name] = environment.tools
    result, [record] = await step(environment, (name, arguments))
    return result.messages[0].get("content"), record


# --- schemas ----------------------------------------------------------------------------------------------------


def test_schema_from_signature_and_docstring() -> None:
    def search(
        query: str,
        limit: int = 10,
        ratio: float = 0.5,
        exact: bool = False,
        ids: list[int] | None = None,
        where: dict[str, int] | None = None,
        order: Literal["up", "down"] = "up",
    ) -> str:
        """Search the archive.

        Finds what the query describes,
        newest first.

        Args:
            query: What to look for,
                in plain words.
            limit (int, optional): How many. Defaults to 10.
            ratio: How near.
            exact: Whether words must match.
            ids: Where to look.
            where: Filters.
            order: Which first.

        Returns:
            The findings.
        """
        return query

    schema = Tool.of(search).schema
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "search"
    assert schema["function"]["description"] == "Search the archive.\n\nFinds what the query describes,\nnewest first."
    parameters = schema["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["query"]
    expected = {
        "query": {"type": "string", "description": "What to look for,\nin plain words."},
        "limit": {"type": "integer", "description": "How many. Defaults to 10.", "default": 10},
        "ratio": {"type": "number", "description": "How near.", "default": 0.5},
        "exact": {"type": "boolean", "description": "Whether words must match.", "default": False},
        "ids": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "where": {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}]},
        "order": {"enum": ["up", "down"], "type": "string", "description": "Which first.", "default": "up"},
    }
    expected["ids"]["description"] = "Where to look."
    expected["where"]["description"] = "Filters."
    assert parameters["properties"] == expected


def paint(colour: Colour, point: Point, person: Person, options: Options, title: str = "x") -> str:
    """Paint.

    Args:
        colour: With what.
        point: Where.
        person: For whom.
        options: How.
        title: A parameter of this name is no title of a schema.
    """
    return f"{colour!r} {point!r} {person!r} {options!r} {title}"


async def test_structured_parameters() -> None:
    schema = Tool.of(paint).parameters
    assert schema["required"] == ["colour", "point", "person", "options"]
    assert schema["$defs"]["Colour"] == {"enum": ["red", "blue"], "type": "string"}
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert schema["$defs"]["Person"]["properties"] == {"name": {"type": "string"}, "age": {"type": "integer"}}
    assert schema["$defs"]["Options"]["properties"] == {"deep": {"type": "boolean"}}
    assert schema["properties"]["title"]["type"] == "string"
    arguments = {"colour": "red", "point": {"x": "1"}, "person": {"name": "A", "age": 3}, "options": {"deep": True}}
    content, record = await call(paint, arguments)
    assert content == f"{Colour.RED!r} {Point(1)!r} {Person(name='A', age=3)!r} {{'deep': True}} x"
    assert record.outcome == "ok"


def test_no_parameters() -> None:
    def look() -> str:
        """Look."""
        return ""

    assert Tool.of(look).parameters == {"properties": {}, "type": "object"}


# --- what is wrong with a tool is an error when the environment is made --------------------------------------------


def no_hint(a) -> str:  # type: ignore[no-untyped-def]
    """Do.

    Args:
        a: It.
    """
    return a


def no_entry(a: int) -> int:
    """Do."""
    return a


def no_docstring(a: int) -> int:
    return a


def stars(*args: int) -> int:
    """Do.

    Args:
        args: All.
    """
    return 0


def keywords(**kwargs: int) -> int:
    """Do.

    Args:
        kwargs: All.
    """
    return 0


def positional(a: int, /) -> int:
    """Do.

    Args:
        a: It.
    """
    return a


def no_schema(a: threading.Lock) -> int:  # type: ignore[valid-type]
    """Do.

    Args:
        a: It.
    """
    return 0


def unresolved(a: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
    """Do.

    Args:
        a: It.
    """
    return 0


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (no_hint, TypeError, "tool 'no_hint': parameter 'a' has no type hint"),
        (no_entry, ValueError, "tool 'no_entry': parameter 'a' has no entry in the docstring"),
        (no_docstring, ValueError, "tool 'no_docstring' has no docstring"),
        (stars, TypeError, r"tool 'stars': parameter '\*args: .*int.*' must be an ordinary named parameter"),
        (keywords, TypeError, r"tool 'keywords': parameter '\*\*kwargs: .*int.*' must be an ordinary"),
        (positional, TypeError, "tool 'positional': parameter 'a: .*int.*' must be an ordinary"),
        (no_schema, TypeError, "tool 'no_schema': a parameter's type has no JSON schema"),
        (unresolved, TypeError, "tool 'unresolved': its type hints cannot be resolved: name 'Nowhere'"),
        (lambda: "", ValueError, "'<lambda>' is no name for a tool"),
        ("add", TypeError, "a tool is a function, got str: 'add'"),
    ],
)
def test_a_wrong_tool_is_refused(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ToolEnv([function])


def test_two_tools_of_one_name_are_refused() -> None:
    class Noted(ToolEnv):
        @tool
        def note(self) -> str:
            """Note."""
            return ""

    @tool(name="note")
    def other() -> str:
        """Note too."""
        return ""

    with pytest.raises(ValueError, match=r"Noted has two tools named 'note': rename one with @tool\(name="):
        Noted([other])


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be positive"):
        tool(timeout=timeout)


def test_a_name_must_suit_model_servers() -> None:
    @tool(name="my tool")
    def mine() -> str:
        """Mine."""
        return ""

    with pytest.raises(ValueError, match="'my tool' is no name for a tool"):
        ToolEnv([mine])


# --- methods ----------------------------------------------------------------------------------------------------


class Base(ToolEnv):
    @tool
    def first(self) -> str:
        """The first."""
        return f"first of {type(self).__name__}"

    @tool(name="renamed", final=True, timeout=5.0)
    def second(self) -> str:
        """The second."""
        return "second"

    @tool
    @staticmethod
    def third(a: int) -> int:
        """The third.

        Args:
            a: A number.
        """
        return a

    @classmethod
    @tool
    def fourth(cls) -> str:
        """The fourth."""
        return cls.__name__

    def helper(self) -> str:
        """No tool."""
        return ""


class Derived(Base):
    @tool
    def first(self) -> str:
        """The first, overridden."""
        return "derived " + super().first()

    second = None  # type: ignore[assignment]

    @tool
    async def fifth(self) -> str:
        """The fifth."""
        await asyncio.sleep(0)
        return "fifth"


async def test_methods_are_inherited_overridden_and_taken_away() -> None:
    base, derived = Base(), Derived()
    assert list(base.tools) == ["first", "renamed", "third", "fourth"]
    assert (base.tools["renamed"].final, base.tools["renamed"].timeout) == (True, 5.0)
    assert list(derived.tools) == ["first", "third", "fourth", "fifth"]
    assert derived.tools["first"].description == "The first, overridden."
    derived.reset(seed=0, options={"task": {"prompt": ""}})
    result, _ = await step(derived, ("first", {}), ("third", {"a": "7"}), ("fourth", {}), ("fifth", {}))
    contents = [message.get("content") for message in result.messages]
    assert contents == ["derived first of Derived", "7", "Derived", "fifth"]


def test_an_override_that_forgets_the_mark_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Forgetful\.first overrides a tool but is not marked with @tool"):

        class Forgetful(Base):
            def first(self) -> str:
                return ""


def test_tools_of_an_episode_go_with_it() -> None:
    class Sandbox:
        pass

    def make(sandbox: Sandbox) -> Callable[[], str]:
        def look() -> str:
            """Look."""
            return repr(sandbox)

        return look

    sandbox = Sandbox()
    gone = weakref.ref(sandbox)
    environment = ToolEnv([make(sandbox)])
    del sandbox, environment
    gc.collect()
    assert gone() is None


# --- arguments --------------------------------------------------------------------------------------------------


def take(a: int, b: float = 0.5, c: str = "", d: list[int] | None = None, e: dict[str, Any] | None = None) -> str:
    """Take.

    Args:
        a: An integer.
        b: A number.
        c: A text.
        d: A list.
        e: An object.
    """
    return repr((a, b, c, d, e))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": "3"}, (3, 0.5, "", None, None)),
        ({"a": 3.0, "b": "1e-1"}, (3, 0.1, "", None, None)),
        ('{"a": 3, "b": 1}', (3, 1.0, "", None, None)),
        ({"a": 3, "c": 12}, (3, 0.5, "12", None, None)),
        ({"a": 3, "c": "[1, 2]"}, (3, 0.5, "[1, 2]", None, None)),
        ({"a": 3, "d": "[1, 2]"}, (3, 0.5, "", [1, 2], None)),
        ('{"a": "3", "d": "[1, \\"2\\"]", "e": "{\\"x\\": 1}"}', (3, 0.5, "", [1, 2], {"x": 1})),
        ({"a": 3, "d": None}, (3, 0.5, "", None, None)),
    ],
)
async def test_arguments_are_converted(arguments: Any, expected: tuple[Any, ...]) -> None:
    content, record = await call(take, arguments)
    assert (content, record.outcome) == (repr(expected), "ok")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Error: take: missing argument 'a'"),
        ("", "Error: take: missing argument 'a'"),
        ({"a": 1, "z": 2}, "Error: take: unknown argument 'z'"),
        ({"z": 2}, "Error: take: missing argument 'a'; unknown argument 'z'"),
        ({"a": "three"}, "Error: take: argument 'a': Input should be a valid integer"),
        ({"a": 3.5}, "Error: take: argument 'a': Input should be a valid integer"),
        ({"a": 1, "d": "[1, oops"}, "Error: take: argument 'd': Input should be a valid list, got '[1, oops'"),
        ({"a": 1, "d": '["x"]'}, "Error: take: argument 'd': Input should be a valid list, got '[\"x\"]'"),
        ('{"a": 1', "Error: arguments must be a JSON object, got '{\"a\": 1'"),
        ("[1]", "Error: take: arguments must be a JSON object, got [1]"),
        ('{"a": ' + "[" * 100_000, "Error: take: the arguments are nested too deeply"),
        ({"a": "1" * 5000}, "Error: take: argument 'a': "),
    ],
)
async def test_wrong_arguments_become_an_error_message(arguments: Any, message: str) -> None:
    content, record = await call(take, arguments)
    assert content.startswith(message)
    assert len(content) < 400
    assert (record.outcome, record.failed, record.error) == ("bad_arguments", True, content)


async def test_a_tool_cannot_change_what_the_model_said() -> None:
    def clear(items: list[Any], box: Any) -> str:
        """Clear.

        Args:
            items: A list.
            box: Anything.
        """
        items[0].clear()
        box.clear()
        return "cleared"

    message = tool_calls(("clear", {"items": [{"a": 1}], "box": {"b": 2}}))
    await environment_of(clear).astep(message)
    assert message == tool_calls(("clear", {"items": [{"a": 1}], "box": {"b": 2}}))


async def test_an_unknown_tool_gets_the_near_names() -> None:
    environment = environment_of(take, paint)
    result, records = await step(environment, ("tak", {}), ("quite_different", {}))
    first, second = (str(message.get("content")) for message in result.messages)
    assert first == "Error: there is no tool 'tak'. Did you mean 'take'? The tools are: take, paint."
    assert second == "Error: there is no tool 'quite_different'. The tools are: take, paint."
    assert [record.outcome for record in records] == ["unknown", "unknown"]
    assert not result.terminated


# --- results ----------------------------------------------------------------------------------------------------


PARTS = [{"type": "text", "text": "see"}, {"type": "image", "url": "file:///a.png"}]
LISTING = [{"type": "file", "name": "a.txt"}]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ([1, 2.5, 3], "[1,2.5,3]"),
        ([], "[]"),
        ({"a": [1, None, True]}, '{"a":[1,null,true]}'),
        (None, "null"),
        (3, "3"),
        (math.nan, "NaN"),
        (np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
        (np.float32(0.5), "0.5"),
        ({"n": np.int64(3)}, '{"n":3}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Person(name="Zoë", age=3), '{"name":"Zoë","age":3}'),
        (Colour.RED, '"red"'),
        (PARTS, PARTS),
        (LISTING, '[{"type":"file","name":"a.txt"}]'),
        ([{"type": "text"}], '[{"type":"text"}]'),
        ([*PARTS, 1], '[{"type":"text","text":"see"},{"type":"image","url":"file:///a.png"},1]'),
        ("a lone \ud800 surrogate", "a lone ? surrogate"),
        ([{"type": "text", "text": "\udfff"}], [{"type": "text", "text": "?"}]),
    ],
)
async def test_results_are_rendered(value: Any, content: Any) -> None:
    def give() -> Any:
        """Give."""
        return value

    got, record = await call(give, {})
    assert got == content
    assert (record.outcome, record.failed, record.error) == ("ok", False, None)


async def test_a_result_that_json_cannot_hold_is_an_error_message() -> None:
    def circle() -> Any:
        """Give a circle."""
        ring: list[Any] = []
        ring.append(ring)
        return ring

    content, record = await call(circle, {})
    assert "Circular reference" in content
    assert record.outcome == "exception"


async def test_long_results_are_cut_with_a_marker() -> None:
    def give() -> str:
        """Give."""
        return "a" * 60 + "b" * 60

    content, _ = await call(give, {}, max_result_chars=21)
    assert content == "a" * 11 + "\n[... 99 characters cut ...]\n" + "b" * 10
    content, _ = await call(give, {}, max_result_chars=120)
    assert content == "a" * 60 + "b" * 60
    content, _ = await call(give, {}, max_result_chars=None)
    assert content == "a" * 60 + "b" * 60


async def test_long_parts_and_long_errors_are_cut() -> None:
    def parts() -> Any:
        """Give parts."""
        return [{"type": "text", "text": "a" * 30}, PARTS[1], {"type": "text", "text": "b" * 30}]

    def fail() -> str:
        """Fail."""
        raise ValueError("x" * 1000)

    content, _ = await call(parts, {}, max_result_chars=20)
    assert "10 characters cut" in content[0]["text"]
    assert content[1] == PARTS[1]
    assert "30 characters cut" in content[2]["text"]
    content, record = await call(fail, {}, max_result_chars=100)
    assert content.startswith("Error: ValueError: xxx")
    assert "characters cut" in content
    assert record.outcome == "exception"


# --- exceptions and time-outs -----------------------------------------------------------------------------------


ERRORS = [
    ValueError("no"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    StopIteration(),
    TimeoutError("own"),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_a_tool_raises_becomes_a_message(error: BaseException, asynchronous: bool) -> None:
    def fail() -> str:
        """Fail."""
        raise error

    async def afail() -> str:
        """Fail."""
        raise error

    content, record = await call(afail if asynchronous else fail, {})
    name = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__  # PEP 479
    assert content.startswith(f"Error: {name}")
    assert (record.outcome, record.failed) == ("exception", True)


@pytest.mark.parametrize("own", [False, True])
async def test_a_tool_that_overruns_is_abandoned(own: bool) -> None:
    never, ended = threading.Event(), threading.Event()

    def hang() -> str:
        """Hang."""
        never.wait(WAIT)
        ended.set()
        return ""

    async def ahang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    function, options = (tool(timeout=0.05), {}) if own else (lambda each: each, {"tool_timeout": 0.05})
    environment = environment_of(function(hang), function(ahang), **options)
    result, records = await step(environment, ("hang", {}), ("ahang", {}))
    assert not ended.is_set()
    assert [message.get("content") for message in result.messages] == [
        "Error: hang did not finish within 0.05 s.",
        "Error: ahang did not finish within 0.05 s.",
    ]
    assert [record.outcome for record in records] == ["timeout", "timeout"]
    assert all(0.04 < record.seconds < WAIT for record in records)
    never.set()
    assert await asyncio.to_thread(ended.wait, WAIT)


def test_the_interpreter_ends_although_a_tool_hangs() -> None:
    program = """
import threading
from gymnast.envs import ToolEnv, tool_call
def hang() -> str:
    '''Hang.'''
    threading.Event().wait()
environment = ToolEnv([hang], tool_timeout=0.05)
environment.reset(seed=0, options={"task": {"prompt": "go"}})
print(environment.step(tool_call("hang")).messages[0]["content"])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "Error: hang did not finish within 0.05 s.\n", "")


# --- several calls in one turn ----------------------------------------------------------------------------------


async def test_calls_run_side_by_side_and_answer_in_order() -> None:
    together = threading.Barrier(8)
    last_first = [asyncio.Event() for _ in range(5)]
    loop = asyncio.get_running_loop()
    finished: list[int] = []

    def blocking(index: int) -> int:
        """Wait for all others.

        Args:
            index: Which.
        """
        together.wait(WAIT)
        return index

    async def later(index: int) -> int:
        """Wait for the next one.

        Args:
            index: Which.
        """
        await asyncio.wait_for(last_first[index + 1].wait(), WAIT)
        finished.append(index)
        last_first[index].set()
        return index

    last_first[-1].set()
    environment = environment_of(blocking, later)
    calls = [("blocking", {"index": index}) for index in range(8)] + [("later", {"index": index}) for index in range(4)]
    result, records = await step(environment, *calls)
    assert asyncio.get_running_loop() is loop
    assert finished == [3, 2, 1, 0]
    assert [message.get("content") for message in result.messages] == [*map(str, range(8)), *map(str, range(4))]
    assert [message.get("tool_call_id") for message in result.messages] == [f"call_{index}" for index in range(12)]
    assert [message.get("name") for message in result.messages] == ["blocking"] * 8 + ["later"] * 4
    assert [message["role"] for message in result.messages] == ["tool"] * 12
    assert [record.call_id for record in records] == [f"call_{index}" for index in range(12)]


async def test_a_call_without_an_id_gets_a_result_without_one() -> None:
    message: Message = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "final_answer", "arguments": '{"answer": 5}'}}],
    }
    result = await environment_of(final_answer).astep(message)
    assert result.messages == [{"role": "tool", "name": "final_answer", "content": "5"}]


async def test_the_final_call_comes_after_the_others_and_ends_the_turn() -> None:
    order: list[str] = []

    def note(text: str) -> str:
        """Note.

        Args:
            text: What.
        """
        order.append(text)
        return text

    @tool(final=True)
    def finish(succeed: bool) -> str:
        """Finish.

        Args:
            succeed: Whether this works.
        """
        order.append(f"finish {succeed}")
        if not succeed:
            raise ValueError("not yet")
        return "done"

    environment = environment_of(note, finish)
    result, records = await step(environment, ("finish", {"succeed": False}), ("note", {"text": "a"}))
    assert [record.outcome for record in records] == ["exception", "ok"]
    assert not result.terminated  # a final call that fails does not end the episode
    result, records = await step(
        environment,
        ("note", {"text": "b"}),
        ("finish", {"succeed": True}),
        ("note", {"text": "never"}),
        ("nothing", {}),
        ("finish", {"succeed": True}),
    )
    assert order == ["finish False", "a", "b", "finish True"]
    assert [record.outcome for record in records] == ["ok", "ok", "not_run", "unknown", "not_run"]
    assert [record.failed for record in records] == [False, False, False, True, False]
    assert result.messages[2].get("content") == "Error: not run, the episode ended before this call."
    assert len(result.messages) == 5
    assert result.terminated
    assert result.info["stop_reason"] is StopReason.FINAL_ANSWER


async def test_cancelling_a_turn_cancels_its_calls() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    task = asyncio.create_task(environment_of(wait).astep(tool_calls(("wait", {}))))
    await asyncio.wait_for(started.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
