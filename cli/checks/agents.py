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
    """Say nothing."""
    return ""


def random_agent(seed: int) -> Agent:
    """Return an agent that calls a random tool with random valid arguments, or says a word where there is no tool."""

    def act(messages: list[Message], tools: list[ToolSchema]) -> Message | str:
        rng = random.Random(f"{seed} {messages[:1]} {len(messages)}")
        if not tools:
            return rng.choice(WORDS)
        tool = rng.choice(tools)
        return tool_call(tool["function"]["name"], **valid_arguments(tool, rng))

    return act


def parameters_of(tool: ToolSchema) -> dict[str, Any]:
    """Return the schema of each parameter of a tool."""
    return tool["function"]["parameters"].get("properties", {})


def valid_arguments(tool: ToolSchema, rng: random.Random) -> dict[str, Any]:
    """Return random arguments that fit the schema of a tool."""
    definitions = tool["function"]["parameters"].get("$defs", {})
    return {name: _value(schema, definitions, rng) for name, schema in parameters_of(tool).items()}


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


def reading_calls(path: str, tool: ToolSchema) -> Sequence[Message]:
    """Return calls of a tool that try to read a file of the machine, one for each way to name it."""
    texts = [name for name, schema in parameters_of(tool).items() if schema.get("type") == "string"]
    if not texts:
        return []
    ways = [path, f"../../../../../../../..{path}", f"file://{path}", f"print(open({path!r}).read())", f"cat {path}"]
    rng = random.Random(0)
    name = tool["function"]["name"]
    return [tool_call(name, **valid_arguments(tool, rng) | dict.fromkeys(texts, way)) for way in ways]


def hostile_values() -> dict[str, Any]:
    """Return arguments, by their kind, that a model may give by mistake or because a text told it to."""
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    return {
        "a very long text": "x" * 1_000_000,
        "NUL and lone surrogates": "\x00\ud800\udfff",
        "a path out of the folder": "../../../../etc/shadow",
        "shell syntax": "'; echo gymnast #`id`$(id)",
        "a huge number": 10**400,
        "deeply nested lists": nested,
        "NaN": float("nan"),
    }
