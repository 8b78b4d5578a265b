"""Arguments: an object from what models write, and text to the schema's types, never beyond it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.trainer.tool_calls.call_arguments import convert, read_arguments

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(st.text(), values, max_size=4)


@settings(max_examples=50)
@given(objects)
def test_every_wrapping_comes_back(arguments: dict[str, Any]) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    assert read_arguments(arguments) is arguments
    for text in (written, json.dumps(written), f" {written}\n", written[1:-1], json.dumps(written[1:-1])):
        assert json.dumps(read_arguments(text)) == json.dumps(arguments)
    for text in (repr(arguments), repr(arguments)[1:-1]):
        assert json.dumps(read_arguments(text, python=True)) == json.dumps(arguments)


@pytest.mark.parametrize("empty", [None, "", " \n"])
def test_empty_text_means_no_arguments(empty: Any) -> None:
    assert read_arguments(empty) == {}


def test_python_literals_where_the_format_writes_them() -> None:
    text = "{'a': (1, 'it\\'s'), \"b\": True, 'c': None, 'd': {'e': [.5]}, 'f': true}"
    expected = {"a": [1, "it's"], "b": True, "c": None, "d": {"e": [0.5]}, "f": True}
    assert read_arguments(text, python=True) == expected
    assert read_arguments(json.dumps(text), python=True) == expected
    for refused in (text, "[1]"):
        with pytest.raises(ValueError, match="must be a JSON object"):
            read_arguments(refused)


REFUSED = ["[1]", "3", "null", '"x"', "{", '{"a": 1} x', '{"a": NaN}', '{"a": 1e999}', "\ud800", "x"]
REFUSED += ["{1: 2}", "{'a': {1}}", "{'a': b'x'}", "{'a': 1j}", "{'a': 1e999}", "{'a': f()}", "{'a': 1 + 1}", "{'a'}"]
REFUSED += ["{" * 100_000, "{'a': " * 100_000, '{"a": ' * 100_000, "-" * 100_000, "7" * 5000]
REFUSED += [json.dumps(json.dumps('"{}"'))]


@pytest.mark.parametrize("value", [*REFUSED, 3, [1], True, ["x" * 1000]], ids=lambda value: repr(value)[:20])
def test_anything_else_is_refused(value: Any) -> None:
    for python in (False, True):
        with pytest.raises(ValueError, match="the arguments must be a JSON object, got ") as refusal:
            read_arguments(value, python=python)
        assert len(str(refusal.value)) < 110
        str(refusal.value).encode()


@settings(max_examples=50)
@given(st.text() | st.text("{}[]'\",:\\x1eN \n"), st.booleans())
def test_nothing_but_a_value_error(text: str, python: bool) -> None:
    try:
        arguments = read_arguments(text, python=python)
    except ValueError:
        return
    json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()


SCHEMA = {
    "type": "object",
    "$defs": {"Day": {"type": "integer"}, "Me": {"anyOf": [{"$ref": "#/$defs/Me"}, {"type": "integer"}]}},
    "properties": {
        "text": {"type": "string"},
        "integer": {"type": "integer"},
        "number": {"type": "number"},
        "boolean": {"type": "boolean"},
        "nothing": {"type": "null"},
        "array": {"type": "array", "items": {"type": "integer"}},
        "object": {"type": "object"},
        "text or integer": {"type": ["string", "integer"]},
        "any of text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "any of integer": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "one of": {"oneOf": [{"type": "boolean"}, {"type": "array"}]},
        "all of": {"allOf": [{"$ref": "#/$defs/Day"}]},
        "open": {"description": "No type."},
        "anything": True,
        "words": {"enum": ["1", "2"]},
        "numbers": {"enum": [1, 2]},
        "constant": {"const": 3},
        "mixed": {"enum": [1, "1"]},
        "day": {"$ref": "#/$defs/Day"},
        "lost": {"$ref": "#/$defs/Week"},
        "elsewhere": {"$ref": "https://example.org/schema"},
        "me": {"$ref": "#/$defs/Me"},
        "odd": {"type": "INTEGER"},
        "nullable": {"type": "integer", "nullable": True},
        "float": {"type": "float"},
        "int": {"type": ["int", "null"]},
        "bool": {"type": "bool"},
        "dict": {"type": "dict"},
        "list": {"type": "list"},
        "str": {"type": "str"},
    },
}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "3", "3"),
        ("integer", "3", 3),
        ("integer", " -3\n", -3),
        ("integer", "3.0", 3),
        ("integer", "3.5", "3.5"),
        ("integer", "1e300", "1e300"),
        ("integer", "true", "true"),
        ("integer", "three", "three"),
        ("integer", "[3]", "[3]"),
        ("integer", '"3"', '"3"'),
        ("integer", "", ""),
        ("number", "3", 3),
        ("number", "3.5", 3.5),
        ("number", "NaN", "NaN"),
        ("number", "1e999", "1e999"),
        ("number", "7" * 5000, "7" * 5000),
        ("boolean", "true", True),
        ("boolean", "1", "1"),
        ("nothing", "null", None),
        ("array", '[1, "2"]', [1, "2"]),
        ("array", "[" * 100_000, "[" * 100_000),
        ("object", '{"a": "1"}', {"a": "1"}),
        ("object", "[1]", "[1]"),
        ("text or integer", "3", "3"),
        ("any of integer", "null", None),
        ("any of integer", "3", 3),
        ("one of", "false", False),
        ("one of", "3", "3"),
        ("all of", "3", 3),
        ("open", "3", "3"),
        ("anything", "3", "3"),
        ("unknown", "3", "3"),
        ("words", "1", "1"),
        ("numbers", "1", 1),
        ("constant", "3", 3),
        ("mixed", "1", "1"),
        ("day", "3", 3),
        ("lost", "3", "3"),
        ("elsewhere", "3", "3"),
        ("me", "3", "3"),  # a schema that refers to itself for ever says nothing
        ("odd", "3", "3"),
        ("nullable", "null", None),
        ("float", "3.5", 3.5),
        ("int", "3", 3),
        ("bool", "true", True),
        ("dict", '{"a": 1}', {"a": 1}),
        ("list", "[1]", [1]),
        ("str", "3", "3"),
    ],
)
def test_text_becomes_what_the_schema_says(key: str, text: str, value: Any) -> None:
    for textual in (False, True):
        found = convert({key: text}, SCHEMA, textual=textual)[key]
        assert (type(found), found) == (type(value), value)


def test_pythons_words_are_read_where_all_values_are_text() -> None:
    written = {"boolean": "True", "nothing": "None", "text": "None", "integer": "True"}
    assert convert(written, SCHEMA, textual=True) == {**written, "boolean": True, "nothing": None}
    assert convert(written, SCHEMA, textual=False) == written


def test_null_for_an_optional_text_is_nothing_where_all_values_are_text() -> None:
    for written in ("null", "None", "null\n"):
        assert convert({"any of text": written}, SCHEMA, textual=True) == {"any of text": None}
        assert convert({"any of text": written}, SCHEMA, textual=False) == {"any of text": written}
    unclear = {"text": "null", "open": "null", "anything": "None", "unknown": "null"}
    assert convert(unclear, SCHEMA, textual=True) == unclear


def test_lists_and_objects_whose_quotes_are_escaped() -> None:
    written = {"array": '[{\\"id\\": \\"1\\"}]', "object": '{\\"a\\": 1}', "text": '[\\"x\\"]'}
    expected = {"array": [{"id": "1"}], "object": {"a": 1}, "text": '[\\"x\\"]'}
    assert convert(written, SCHEMA, textual=True) == expected
    assert convert(written, SCHEMA, textual=False) == written


@settings(max_examples=50)
@given(objects, st.booleans())
def test_values_that_are_not_text_stay(arguments: dict[str, Any], textual: bool) -> None:
    arguments = {"integer": ["3"], "array": {"integer": "3"}, "text": 3} | arguments
    found = convert(
        arguments, SCHEMA | {"properties": {key: {"type": "integer"} for key in arguments}}, textual=textual
    )
    for key, value in arguments.items():
        assert isinstance(value, str) or found[key] is value


SCHEMAS: list[Any] = [None, {}, {"properties": 3}]
SCHEMAS += [{"properties": {"a": a}} for a in ({"type": 3}, {"anyOf": 3}, {"$ref": 3, "enum": 3, "type": [3]})]
SCHEMAS += [{"properties": {"a": {"$ref": "#/properties/a"}}}]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas_that_say_nothing(schema: Any) -> None:
    assert convert({"a": "3"}, schema, textual=True) == {"a": "3"}
