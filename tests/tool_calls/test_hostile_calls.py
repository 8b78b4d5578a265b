"""Readers of calls on broken or hostile text: a ValueError soon says what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.trainer.tool_calls import (
    Reader,
    argument_pairs,
    brace_call,
    json_payload,
    named_json,
    python_calls,
    python_tag_call,
    xml_parameters,
)

from .reading_time import not_held

DEEPSEEK = named_json("function<sep>(?P<name>[^\n]+)\n```json\n")
MISTRAL = named_json(r"(?P<name>[^\[{]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?")
GEMMA = brace_call()
READERS: dict[str, Reader] = {
    "json": json_payload,
    "deepseek": DEEPSEEK,
    "mistral": MISTRAL,
    "xml": xml_parameters,
    "pairs": argument_pairs,
    "python": python_calls,
    "python_tag": python_tag_call,
    "gemma": GEMMA,
    "functiongemma": brace_call("<escape>"),
}
MARKS = ["</tool_call>", "<tool_call>", "</parameter>", "</arg_value>", '<|"|>', "<escape>", "{", "}", "]", "'", '"']
MARKS += ["\\", "\\n", "\n", " ", ",", "):", "(", "=", "a=", "ü ☀ 𝄞", "[TOOL_CALLS]", "\x00", "'''", "\\ud800"]

WHOLE: list[tuple[Reader, str]] = [
    (json_payload, '{"name": "f", "arguments": {"a": [1, "x"]}}'),
    (DEEPSEEK, 'function<sep>f\n```json\n{"a": "x"}'),
    (xml_parameters, "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>"),
    (argument_pairs, "f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"),
    (python_calls, """[f(a='x', b=[1, 'y'], c={"z": null}), g()]"""),
    (python_tag_call, 'f.call(a="x")'),
    (GEMMA, 'call:f{a:<|"|>x<|"|>,b:{c:[1,true]}}'),
]


@pytest.mark.parametrize(("reader", "text"), WHOLE)
def test_a_call_that_was_cut_is_refused(reader: Reader, text: str) -> None:
    assert reader(text, 0)
    for length in range(len(text)):
        with pytest.raises(ValueError, match=r"\w"):
            reader(text[:length], 0)


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (json_payload, "3", "must be a JSON object or array, got 3"),
        (json_payload, '{"a": NaN}', "NaN is not a JSON number"),
        (json_payload, '{"a": 1e999}', "too large a number"),
        (json_payload, "[" * 100_000, "not valid JSON"),
        (MISTRAL, "f[ARGS][1]", "arguments of 'f' must be a JSON object, got \\[1\\]"),
        (MISTRAL, "f[ARGS]", "not valid JSON"),
        (DEEPSEEK, "other<sep>f", "expected the name of a tool, got 'other<sep>f'"),
        (xml_parameters, "<function=f>text</function>", "expected an argument or </function>, got 'text"),
        (xml_parameters, "<function=f><parameter=a>x", "cut off: 'a' has no </parameter>"),
        (python_calls, "[]", "expected a call"),
        (python_calls, "[f(1)]", "expected a key and '='"),
        (python_calls, "[f(a=g())]", "expected a value, got 'g\\(\\)"),
        (python_calls, "[f(a=[{1, 2}])]", "expected a key in quotes"),
        (python_calls, "[f(a=1e999)]", "too large a number"),
        (python_calls, "[f(a=007)]", "expected"),
        (python_calls, f"[f(a={'[' * 100_000})]", "nested too deeply"),
        (python_tag_call, "f(a=1)", "expected `name.call"),
        (GEMMA, "call:f{a:x:y}", "expected a value, got 'x:y}'"),
        (GEMMA, f"call:f{{a:{'[' * 100_000}}}", "nested too deeply"),
    ],
)
def test_refusals_say_what_is_wrong(reader: Reader, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(text, 0)


PIECES = [*MARKS, *(text for _, text in WHOLE), "\ud83d", "<function=f>", "<parameter=a>", "<arg_key>", "call:f{", "f("]
PIECES += [
    "[f(a='",
    "NaN",
    "1e999",
    "-",
    ":",
    "</function>",
    "<arg_value>",
    "\\ud83d",
    "\\U00110000",
    "7" * 5000,
    "[" * 2000,
]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join), st.integers(0, 20))
def test_nothing_but_a_value_error(reader: Reader, text: str, start: int) -> None:
    start = min(start, len(text))
    try:
        reading = reader(text, start)
    except ValueError:
        return
    assert start < reading.end <= len(text)
    json.dumps(reading.payload, allow_nan=False)


HOSTILE: list[tuple[Reader, str, str]] = [
    (json_payload, '{"a":"', ""),
    (json_payload, "[[", ""),
    (DEEPSEEK, "function<sep>f", ""),
    (DEEPSEEK, "function<sep>f\n```json\n{", ""),
    (xml_parameters, "<function=f><parameter=a></parameter><parameter=a>", ""),
    (xml_parameters, "<function=f><parameter=a>", "</parameter>"),
    (argument_pairs, "f<arg_key>a</arg_key><arg_value></arg_value><arg_key>a</arg_key><arg_value>", ""),
    (python_calls, "[f(a='x',a='", "')"),
    (python_calls, "[f(a=['x',['", "']])"),
    (python_calls, "[f(a='x'), f(a='", "'),"),
    (python_tag_call, "f.call(a='x',a='", ""),
    (GEMMA, 'call:f{a:[<|"|>x<|"|>,[<|"|>', '<|"|>]'),
    (GEMMA, 'call:f{a:<|"|><|"|>,b:<|"|>', ""),
]


@pytest.mark.parametrize(("reader", "piece", "end"), HOSTILE)
def test_no_answer_blocks_a_reader_for_long(reader: Reader, piece: str, end: str) -> None:
    """A caller tries every opening. Without a memory of failures, many of these would take quadratic time."""
    text = f"<M>{piece}" * 4_000 + end
    with not_held(text):
        for start in range(len("<M>"), len(text) - len(end), len(piece) + len("<M>")):
            with suppress(ValueError):
                reader(text, start)
