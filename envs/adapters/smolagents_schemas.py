"""Arguments of our tools in the terms of smolagents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def inputs_of(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `inputs` of a tool, from the JSON schema of its arguments: without references, and with `nullable`.

    Raises:
        ValueError: a type is recursive, which `inputs` cannot describe.
    """
    required, inputs = parameters.get("required", ()), {}
    for key, schema in parameters.get("properties", {}).items():
        schema = _without_references(schema, parameters.get("$defs", {}), name)
        choices = schema.pop("anyOf", [{"type": schema.get("type", "any")}])
        others = [choice for choice in choices if choice.get("type") != "null"] or choices
        kinds = [kind for choice in others for kind in listed(choice.get("type", "any"))]
        if len(others) == 1:
            schema = others[0] | schema
        schema |= {"type": kinds[0] if len(kinds) == 1 else kinds, "description": schema.get("description", "")}
        is_nullable = key not in required or len(others) < len(choices) or "null" in kinds
        inputs[key] = schema | ({"nullable": True} if is_nullable else {})
    return inputs


def listed(kind: str | list[str]) -> list[str]:
    """Return the types of an argument, of which smolagents takes one or a list."""
    return [kind] if isinstance(kind, str) else list(kind)


def _without_references(schema: Any, definitions: Mapping[str, Any], name: str, inside: tuple[str, ...] = ()) -> Any:
    """Return the schema with each definition in the place of its references."""
    if isinstance(schema, list):
        return [_without_references(part, definitions, name, inside) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if (reference := schema.get("$ref")) is not None:
        if reference in inside:
            raise ValueError(f"the tool {name!r} has the recursive type {reference}, which smolagents cannot describe")
        inside = (*inside, reference)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = definitions[reference.removeprefix("#/$defs/")] | rest
    return {key: _without_references(value, definitions, name, inside) for key, value in schema.items()}
