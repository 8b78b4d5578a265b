"""Arguments of a tool call: from the text of a model to an object whose values have the types of the tool's schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from .literals import read_python
from .value_readers import read_json, shorten


def read_arguments(value: Any, *, python: bool = False) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    They are None, an object, or text that holds a JSON object, perhaps quoted twice or without its braces; with
    `python` also one of Python's literals. Raise a ValueError for anything else.
    """
    if isinstance(value, dict):
        return value
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        for text in _wrappings(value):
            for read in (read_json, read_python) if python else (read_json,):
                with suppress(ValueError):
                    if isinstance(found := read(text), dict):
                        return found
    raise ValueError(f"the arguments must be a JSON object, got {shorten(value)}")


def _wrappings(text: str) -> Iterable[str]:
    """Return the texts in which an object may stand."""
    yield text
    try:
        inner = read_json(text)
    except ValueError:
        yield "{" + text + "}"
        return
    if isinstance(inner, str):
        yield inner
        yield "{" + inner + "}"


def convert(arguments: Mapping[str, Any], schema: Mapping[str, Any] | None, *, textual: bool) -> dict[str, Any]:
    """Turn texts among the arguments into the types of the tool's schema; a text that the schema allows stays.

    With `textual` all values of the format are text, so a template may have written Python's `True`, `False` and
    `None`.
    """
    schema = schema if isinstance(schema, Mapping) else {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    return {
        key: _convert(value, _types(properties.get(key), schema, 0), textual) if isinstance(value, str) else value
        for key, value in arguments.items()
    }


def _convert(text: str, allowed: frozenset[str], textual: bool) -> Any:
    """Return the value of a text in one of the allowed types; the text itself if that is allowed or no type fits."""
    if textual and text.strip() in ("null", "None") and "null" in allowed and allowed != _ALL:
        return None
    if "string" in allowed:
        return text
    value = _read_value(text, textual and not allowed.isdisjoint({"array", "object"}))
    if textual and text.strip() in _PYTHON_WORDS:
        value = _PYTHON_WORDS[text.strip()]
    if _kind(value) in allowed:
        return value
    if "integer" in allowed and isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return text


def _read_value(text: str, structured: bool) -> Any:
    """Return the value of a text; the text itself if it cannot be read.

    Seed-OSS's template writes lists and objects as Python does, and GLM may escape their quotes.
    """
    readers = (read_json, read_python, lambda text: read_json(read_json(f'"{text}"')))
    for read in readers if structured else readers[:1]:
        with suppress(ValueError):
            return read(text)
    return text


_PYTHON_WORDS = {"True": True, "False": False}
_ALL = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_ALIASES = {  # Python's names of types, which hand-written schemas use
    "str": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
}
_DEEPEST = 6  # references and alternatives within each other; a schema may refer to itself


def _kind(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Return the types that a schema allows; all types if it names no type, or cannot be understood."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return _ALL
    bounds = [_named_types(schema)]
    if "$ref" in schema:
        bounds.append(_types(_resolve(schema["$ref"], root), root, depth + 1))
    for keyword in ("anyOf", "oneOf", "allOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and options:
            allowed = [_types(option, root, depth + 1) for option in options]
            bounds += allowed if keyword == "allOf" else [frozenset().union(*allowed)]
    return frozenset.intersection(*bounds)


def _named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that `type`, `enum`, `const` and `nullable` allow."""
    named = schema.get("type", sorted(_ALL))
    names = [named] if isinstance(named, str) else named
    known = isinstance(names, list) and all(isinstance(name, str) for name in names)
    types = frozenset(_ALIASES.get(name, name) for name in names) if known else _ALL
    allowed = _with_integers(types) if types <= _ALL else _ALL
    if schema.get("nullable") is True:
        allowed |= {"null"}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        allowed &= _with_integers(frozenset(map(_kind, values)))
    return allowed


def _with_integers(types: frozenset[str]) -> frozenset[str]:
    """Return the types, with integers where numbers are allowed."""
    return types | {"integer"} if "number" in types else types


def _resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema that a reference such as `#/$defs/Day` names; None if it is not there."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, reference[1:].split("/")):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
