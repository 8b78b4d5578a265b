"""Tools: arguments checked and converted, results rendered."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymnast.envs import ToolEnv, tool, tool_calls

from .toolkit import Colour, Person, Point, call, environment_of, paint, step

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


# --- marks ------------------------------------------------------------------------------------------------------


def submit(text: str) -> str:
    """Submit a text.

    Args:
        text: The text.
    """
    return text


async def ends(environment: ToolEnv, name: str) -> bool:
    environment.reset(seed=0, options={"task": {"prompt": "go"}})
    result, _ = await step(environment, (name, {"text": "done"}))
    return result.terminated


async def test_a_mark_is_on_one_use_of_a_function() -> None:
    plain = ToolEnv([submit])
    final, slow, renamed = tool(final=True)(submit), tool(timeout=5.0)(submit), tool(name="hand_in")(submit)
    assert await ends(ToolEnv([final]), "submit")
    assert ToolEnv([slow]).tools["submit"].timeout == 5.0
    assert list(ToolEnv([renamed]).tools) == ["hand_in"]
    assert not await ends(plain, "submit")
    assert not await ends(ToolEnv([submit]), "submit")
    assert list(ToolEnv([submit, renamed]).tools) == ["submit", "hand_in"]


async def test_a_mark_on_a_marked_function_changes_the_options_that_it_names() -> None:
    answer = tool(name="answer", timeout=5.0)(tool(final=True)(submit))
    [described] = ToolEnv([answer]).tools.values()
    assert (described.name, described.timeout, described.final) == ("answer", 5.0, True)
    with pytest.raises(ValueError, match="both final and parallel"):
        tool(parallel=True)(answer)


async def test_a_mark_works_on_whatever_is_a_function() -> None:
    class Desk:
        name = "desk"

        async def look(self, *, times: int = 1) -> str:
            """Look.

            Args:
                times: How often.
            """
            return " ".join([self.name] * times)

    @functools.cache
    def cached(text: str) -> str:
        """Repeat a text.

        Args:
            text: The text.
        """
        return text

    desk = Desk()
    environment = environment_of(tool(name="look_twice", parallel=True)(desk.look), tool(desk.look), tool(cached))
    result, _ = await step(environment, ("look_twice", {"times": 2}), ("look", {}), ("cached", {"text": "a"}))
    assert [message.get("content") for message in result.messages] == ["desk desk", "desk", "a"]
    assert not environment.tools["look"].parallel
    tool(cached).cache_clear()
    assert cached.cache_info().currsize == 0
    for wrong in (3, functools.partial(desk.look, times=2)):
        with pytest.raises(TypeError, match=r"@tool marks a function, got (int: 3|partial: .*); write a `def`"):
            tool(final=True)(wrong)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"a tool is a function, got partial: .*; write a `def`"):
        ToolEnv([functools.partial(desk.look, times=2)])


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


async def test_a_tool_cannot_change_the_models_message() -> None:
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


PARTS = [{"type": "text", "text": "see"}, {"type": "audio", "url": "file:///a.wav"}]
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
        ([*PARTS, 1], '[{"type":"text","text":"see"},{"type":"audio","url":"file:///a.wav"},1]'),
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
    assert record.outcome == "refused"
