"""Scripted agents: one that does nothing, one that calls tools at random, one that looks for files."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...envs.core import Message, ToolSchema
from ...envs.policy import tool_call

Agent = Callable[[list[Message], list[ToolSchema]], "Message | str"]

WORDS = ("yes", "no", "42", "hello", "")


def null_agent(messages: list[Message], tools: list[ToolSchema]) -> str:
    """Says nothing."""
    return ""


def random_agent(seed: int) -> Agent:
    """Calls a random tool with random valid arguments, or answers with a word where there is no tool."""

    def act(messages: list[Message], tools: list[ToolSchema]) -> Message | str:
        rng = random.Random(f"{seed} {messages[:1]} {len(messages)}")
        if not tools:
            return rng.choice(WORDS)
        function = rng.choice(tools)["function"]
        return tool_call(function["name"], **valid_arguments(function["parameters"], rng))

    return act


def valid_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Arguments that fit the schema of a tool."""
    definitions = schema.get("$defs", {})
    return {name: _value(each, definitions, rng) for name, each in schema.get("properties", {}).items()}


def _value(schema: Mapping[str, Any], definitions: Mapping[str, Any], rng: random.Random) -> Any:
    if "$ref" in schema:
        return _value(definitions[schema["$ref"].rpartition("/")[2]], definitions, rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return _value(rng.choice(schema["anyOf"]), definitions, rng)
    match schema.get("type"):
        case "integer":
            low = int(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
            return rng.randint(low, int(schema.get("maximum", low + 9)))
        case "number":
            return float(schema.get("minimum", 0.5))
        case "boolean":
            return rng.random() < 0.5
        case "array":
            least = schema.get("minItems", 1)
            return [_value(schema.get("items", {"type": "string"}), definitions, rng) for _ in range(least)]
        case "object":
            names = schema.get("required", ())
            return {name: _value(schema["properties"][name], definitions, rng) for name in names}
        case "null":
            return None
    return rng.choice(WORDS)


def reading_agent(path: str, tool: ToolSchema) -> Sequence[Message]:
    """Calls of one tool that try to read a file of the machine, one for each way to name it."""
    function = tool["function"]
    rng = random.Random(0)
    texts = [
        name for name, each in function["parameters"].get("properties", {}).items() if each.get("type") == "string"
    ]
    if not texts:
        return []
    ways = [path, f"../../../../../../../..{path}", f"file://{path}", f"print(open({path!r}).read())", f"cat {path}"]
    arguments = [valid_arguments(function["parameters"], rng) | dict.fromkeys(texts, way) for way in ways]
    return [tool_call(function["name"], **each) for each in arguments]


HOSTILE: dict[str, Any] = {
    "a very long text": "x" * 1_000_000,
    "NUL and lone surrogates": "\x00\ud800\udfff",
    "a path out of the folder": "../../../../etc/shadow",
    "shell syntax": "'; echo gymnast #`id`$(id)",
    "a huge number": 10**400,
    "deeply nested lists": None,  # made when needed
    "NaN": float("nan"),
}
"""Arguments that a model may give, by mistake or because a text told it to."""


def nested(depth: int = 500) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value
