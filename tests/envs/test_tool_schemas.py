"""Tools: schemas from signatures. A wrong tool is an error when the environment is made."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

from gymnast.envs import Tool, ToolEnv, tool

from .toolkit import Colour, Person, Point, call, paint

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


# --- a wrong tool is an error when the environment is made --------------------------------------------------


def documented(function: Any) -> Any:
    function.__doc__ = "Do.\n\nArgs:\n    a: It."
    return function


@documented
def keywords(**kwargs: int) -> None: ...


@documented
def positional(a: int, /) -> None: ...


@documented
def no_schema(a: threading.Lock) -> None: ...  # type: ignore[valid-type]


@documented
def unresolved(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (keywords, TypeError, r"tool 'keywords': parameter '\*\*kwargs: .*int.*' must be an ordinary"),
        (positional, TypeError, "tool 'positional': parameter 'a: .*int.*' must be an ordinary"),
        (no_schema, TypeError, "tool 'no_schema': a parameter's type has no JSON schema"),
        (unresolved, TypeError, "tool 'unresolved': its type hints cannot be resolved: name 'Nowhere'"),
    ],
)
def test_a_wrong_tool_is_refused(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ToolEnv([function])


def test_names_of_tools_are_checked() -> None:
    class Noted(ToolEnv):
        @tool
        def note(self) -> str:
            """Note."""
            return ""

    def other() -> str:
        """Note too."""
        return ""

    with pytest.raises(ValueError, match=r"Noted has two tools named 'note': rename one with @tool\(name="):
        Noted([tool(name="note")(other)])
    with pytest.raises(ValueError, match="'my tool' is not a name for a tool"):
        Noted([tool(name="my tool")(other)])


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be positive"):
        tool(timeout=timeout)
