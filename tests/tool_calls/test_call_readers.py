"""Readers of calls: they read what a family's template writes, and raise only ValueErrors for anything else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gymnast.trainer.tool_calls import (
    Reader,
    argument_pairs,
    brace_call,
    json_payload,
    named_json,
    python_calls,
    python_tag_call,
    xml_call,
    xml_parameters,
)

DEEPSEEK = named_json("function<sep>(?P<name>[^\n]+)\n```json\n")
KIMI = named_json(r"(?P<id>(?:functions\.)?(?P<name>[^\s:<]+):\d+)\s*<\|tool_call_argument_begin\|>")
MISTRAL = named_json(r"(?P<name>[^\[{]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?")
MINIMAX = xml_call(
    r"<invoke name=(?P<name>[^<>\n]{1,256})>",
    r"<parameter name=(?P<key>[^<>\n]{1,256})>",
    ("</parameter>", "</invoke>", "</minimax:tool_call>"),
    begins="<invoke name=",
)
GEMMA = brace_call()
MARKS = ["</tool_call>", "<tool_call>", "</parameter>", "</arg_value>", '<|"|>', "<escape>", "{", "}", "]", "'", '"']
MARKS += ["\\", "\\n", "\n", " ", ",", "):", "(", "=", "a=", "ü ☀ 𝄞", "[TOOL_CALLS]", "\x00", "'''", "\\ud800"]
texts = st.lists(st.sampled_from(MARKS) | st.text(max_size=4), max_size=5).map("".join)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
names = st.from_regex(r"[A-Za-z_][\w.\-]{0,15}", fullmatch=True)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(names, values, max_size=4)
text_objects = st.dictionaries(names, texts, max_size=4)


def comes_back(reader: Reader, written: str, payload: Any, behind: str = "</tool_call>") -> None:
    reading = reader(f"before\n {written}{behind}", len("before"))
    assert json.dumps(reading.payload) == json.dumps(payload)  # 1, 1.0 and True differ
    assert reading.end == len("before\n ") + len(written)


# Round trips.


@settings(max_examples=50)
@given(names, objects)
def test_json_comes_back(name: str, arguments: dict[str, Any]) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    comes_back(json_payload, written, arguments)
    comes_back(json_payload, f"[{written}]", [arguments])
    expected = {"name": name, "arguments": arguments}
    comes_back(DEEPSEEK, f"function<sep>{name}\n```json\n{written}", expected, "\n```<end>")
    comes_back(MISTRAL, f"{name}[ARGS]{written}", expected)
    comes_back(MISTRAL, f"{name}{written}", expected)
    comes_back(MISTRAL, f"{name}[CALL_ID]a1[ARGS]{written}", {"name": name, "id": "a1", "arguments": arguments})
    begin = f"functions.{name}:0<|tool_call_argument_begin|>"
    comes_back(KIMI, begin + written, {"name": name, "id": f"functions.{name}:0", "arguments": arguments})


def test_json_longer_than_a_window() -> None:
    arguments = {f"key{index}": ["😀ü" * 7, 1.5e10, True, index] for index in range(2000)}
    for written in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)):
        for shift in range(0, 20, 4):
            comes_back(json_payload, " " * shift + written, arguments)


@settings(max_examples=50)
@given(names, text_objects)
@example("f", {"a": "x</parameter>y</parameter>"})
def test_xml_comes_back(name: str, arguments: dict[str, str]) -> None:
    for value in arguments.values():
        assume(not re.search(r"</parameter>\s*</tool_call>", value))
    pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    comes_back(xml_parameters, f"<function={name}>\n{pairs}</function>", {"name": name, "arguments": arguments})
    pairs = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in arguments.items())
    written = f'<invoke name="{name}">\n{pairs}</invoke>'
    comes_back(MINIMAX, written, {"name": name, "arguments": arguments}, "\n</minimax:tool_call>")


@settings(max_examples=50)
@given(names, text_objects, st.sampled_from(["", "\n"]))
@example("f", {"a": "x</arg_value>y\n"}, "")
def test_pairs_come_back(name: str, arguments: dict[str, str], between: str) -> None:
    for value in arguments.values():
        assume(not re.search(r"</arg_value>\s*</tool_call>", value))
    pairs = [f"<arg_key>{key}</arg_key>{between}<arg_value>{value}</arg_value>" for key, value in arguments.items()]
    written = between.join([name, *pairs, ""])
    comes_back(argument_pairs, written, {"name": name, "arguments": arguments})


def lfm(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
    for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(plain, escaped)
    return f"'{value}'"


@settings(max_examples=50)
@given(names, objects, names)
@example("f", {"a": "'"}, "g")
def test_python_calls_come_back(name: str, arguments: dict[str, Any], other: str) -> None:
    expected = {"name": name, "arguments": arguments}
    for write in (lfm, repr):
        inside = ", ".join(f"{key}={write(value)}" for key, value in arguments.items())
        both = [expected, {"name": other, "arguments": {}}]
        comes_back(python_calls, f"[{name}({inside}), {other}()]", both, "<|tool_call_end|>")
        comes_back(python_calls, f"{name}({inside})", [expected], "")
        comes_back(python_tag_call, f"{name}.call({inside})", expected, "")


def gemma(value: Any, quote: str, quote_keys: bool = False) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, dict):
        keys = {key: quote + key + quote if quote_keys else key for key in value}
        return "{" + ",".join(f"{keys[key]}:{gemma(each, quote, True)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma(each, quote, True) for each in value) + "]"
    return json.dumps(value)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return [text for each in value for text in strings(each)] if isinstance(value, list) else [str(value)]


@settings(max_examples=50)
@given(names, objects, st.sampled_from(['<|"|>', "<escape>"]))
@example("f", {"a": 'x<|"|>y'}, '<|"|>')
def test_braces_come_back(name: str, arguments: dict[str, Any], quote: str) -> None:
    written = f"call:{name}{gemma(arguments, quote)}"
    for text in strings(arguments):
        assume(not re.search(rf"{re.escape(quote)}\s*[,:}}\]]", text))
    comes_back(brace_call(quote), written, {"name": name, "arguments": arguments}, "<tool_call|>")


# Small deviations of models from the rules.


@pytest.mark.parametrize(
    ("reader", "text", "arguments"),
    [
        (xml_parameters, "<function=f></function>", {}),
        (xml_parameters, "<function=\"f\"><parameter='a'>1</parameter></tool_call>", {"a": "1"}),
        (xml_parameters, "<function=f><parameter=a>\n\n</parameter></function>", {"a": ""}),
        (xml_parameters, "<function=f><parameter=a>\n\n x\n\n</parameter></function>", {"a": "\n x\n"}),
        (argument_pairs, " f \n</tool_call>", {}),
        (python_calls, '[f(a=\'it\'s, ok\', b="say "x"")]', {"a": "it's, ok", "b": 'say "x"'}),
        (python_calls, "[f(a='''x'y\nz''', b='\\d\\x41\\u00fc\\ud83d\\ude00',)]", {"a": "x'y\nz", "b": "\\dAü😀"}),
        (
            python_calls,
            "[f(a='\\101\\0\\7z', b='\\U0001F600\\a\\v', c='x\\\ny')]",
            {"a": "A\0\7z", "b": "😀\a\v", "c": "xy"},
        ),
        (python_calls, "[f(a=[true, 'x', None, (1, 2), (3,), (), (4)])]", {"a": [True, "x", None, [1, 2], [3], [], 4]}),
        (python_calls, '[f(a={"x": "\\/"}, b=-.5, c=+1, d=1e3)]', {"a": {"x": "/"}, "b": -0.5, "c": 1, "d": 1000.0}),
        (python_tag_call, 'f.call(query="a "b" c")', {"query": 'a "b" c'}),
        (GEMMA, 'call:f{a:None, b: [ ], <|"|>c d<|"|>:{}}', {"a": None, "b": [], "c d": {}}),
        (GEMMA, 'call:f{a:<|"|>x<|"|>y<|"|>}', {"a": 'x<|"|>y'}),
    ],
)
def test_leniency(reader: Reader, text: str, arguments: dict[str, Any]) -> None:
    payload = reader(text, 0).payload
    call = payload[0] if isinstance(payload, list) else payload
    assert call == {"name": "f", "arguments": arguments}
