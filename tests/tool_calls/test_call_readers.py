"""Readers of calls: small deviations are read, and a ValueError says what is wrong with anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gymnast.trainer.tool_calls import (
    Reader,
    argument_pairs_call,
    brace_call,
    json_payload,
    named_json,
    python_calls,
    xml_call,
)
from gymnast.trainer.tool_calls.payload_readers import python_tag_call

DEEPSEEK = named_json("function<sep>(?P<name>[^\n]+)\n```json\n")
MISTRAL = named_json(r"(?P<name>[^\[{]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?")
GEMMA = brace_call()
GLM = argument_pairs_call("arg_key", "arg_value")
QWEN = xml_call(
    r"<function=(?P<name>[^<>\n]+)>",
    r"<parameter=(?P<key>[^<>\n]+)>",
    ("</parameter>", "</function>", "</tool_call>"),
    begins=r"<tool_call>\s*<function=",
    newlines=True,
)


def test_json_longer_than_a_window() -> None:
    arguments = {f"key{index}": ["😀ü" * 7, 1.5e10, True, index] for index in range(2000)}
    for written in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)):
        for shift in range(0, 20, 4):
            payload, end = json_payload(f"before\n {' ' * shift}{written}</tool_call>", len("before"))
            assert payload == arguments
            assert end == len("before\n ") + shift + len(written)


@pytest.mark.parametrize(
    ("reader", "text", "arguments"),
    [
        (QWEN, "<function=f></function>", {}),
        (QWEN, "<function=\"f\"><parameter='a'>1</parameter></tool_call>", {"a": "1"}),
        (QWEN, "<function=f><parameter=a>\n\n</parameter></function>", {"a": ""}),
        (QWEN, "<function=f><parameter=a>\n\n x\n\n</parameter></function>", {"a": "\n x\n"}),
        (GLM, " f \n</tool_call>", {}),
        (python_calls, '[f(a=\'it\'s, ok\', b="say "x"")]', {"a": "it's, ok", "b": 'say "x"'}),
        (python_calls, "[f(a='''x'y\nz''', b='\\d\\x41\\u00fc\\ud83d\\ude00',)]", {"a": "x'y\nz", "b": "\\dAü😀"}),
        (python_calls, "[f(a='\\101\\0\\7z', b='\\U0001F600', c='x\\\ny')]", {"a": "A\0\7z", "b": "😀", "c": "xy"}),
        (python_calls, "[f(a=[true, 'x', None, (1, 2), (3,), (), (4)])]", {"a": [True, "x", None, [1, 2], [3], [], 4]}),
        (python_calls, '[f(a={"x": "\\/"}, b=-.5, c=+1, d=1e3)]', {"a": {"x": "/"}, "b": -0.5, "c": 1, "d": 1000.0}),
        (python_tag_call, 'f.call(query="a "b" c")', {"query": 'a "b" c'}),
        (GEMMA, 'call:f{a:None, b: [ ], <|"|>c d<|"|>:{}}', {"a": None, "b": [], "c d": {}}),
        (GEMMA, 'call:f{a:<|"|>x<|"|>y<|"|>}', {"a": 'x<|"|>y'}),
    ],
)
def test_leniency(reader: Reader, text: str, arguments: dict[str, Any]) -> None:
    payload, _ = reader(text, 0)
    call = payload[0] if isinstance(payload, list) else payload
    assert call == {"name": "f", "arguments": arguments}


def test_a_call_behind_a_python_tag_that_was_cut_is_refused() -> None:
    """The calls of all formats are cut in `test_tool_formats.py`."""
    text = 'f.call(a="x")'
    python_tag_call(text, 0)
    for length in range(len(text)):
        with pytest.raises(ValueError, match=r"\w"):
            python_tag_call(text[:length], 0)


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
        (QWEN, "<function=f>text</function>", "expected an argument or </function>, got 'text"),
        (QWEN, "<function=f><parameter=a>x", "cut off: 'a' has no </parameter>"),
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
