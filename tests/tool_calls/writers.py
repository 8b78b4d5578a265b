"""Calls, thoughts and text in the syntax of every tool-call format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from gymnast.envs.core import Message

THINK = ("<think>\n", "\n</think>\n\n")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    """A value in formats whose values are text."""
    return value if isinstance(value, str) else to_json(value)


def put_in(pattern: str) -> Callable[[str, str], str]:
    """A writer of calls: `NAME` and `ARGUMENTS` of the pattern are filled in."""

    def write(name: str, arguments: str) -> str:
        before, _, after = pattern.partition("ARGUMENTS")
        return before.replace("NAME", name) + arguments + after.replace("NAME", name)

    return write


def parameters(pattern: str, arguments: Mapping[str, Any]) -> str:
    """Arguments whose values are text, one after the other."""
    return "".join(put_in(pattern)(key, as_text(value)) for key, value in arguments.items())


def in_braces(quote: str, value: Any) -> str:
    """A value in Gemma's way: keys without quotes, strings between marks, nothing escaped."""
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{in_braces(quote, item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(in_braces(quote, item) for item in value) + "]"
    return to_json(value)


def in_python(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


@dataclass(kw_only=True, frozen=True)
class Writer:
    """Writes in the syntax of one format.

    Attributes:
        call: A tool's name and its arguments as text -> a call.
        arguments: Arguments -> their text in a call.
        joined: Calls, and text before and after them -> an answer.
        pieces: Parts of the syntax, for hostile texts.
        thinking: What stands before and behind a thought.
        text_before: Whether there may be text before the first call.
        kind: How arguments are written.
    """

    call: Callable[[str, str], str]
    arguments: Callable[[Mapping[str, Any]], str] = to_json
    joined: Callable[[Sequence[str], str, str], str]
    pieces: tuple[str, ...]
    thinking: tuple[str, str] = THINK
    text_before: bool = True
    kind: Literal["json", "text", "braces", "python"] = "json"

    def __call__(self, name: str = "add", **arguments: Any) -> str:
        """One call, as it is written between others."""
        return self.call(name, self.arguments(arguments))

    def answer(self, *calls: str, before: str = "", after: str = "") -> str:
        return self.joined(calls, before, after)


def _lines(calls: Sequence[str], before: str, after: str, *, opening: str = "", closing: str = "") -> str:
    block = opening + "\n".join(calls) + closing
    return "\n".join(filter(None, [before, block, after]))


def wrapped(opening: str, closing: str) -> Callable[[Sequence[str], str, str], str]:
    """One wrapper around all calls."""
    return partial(_lines, opening=opening, closing=closing)


def _channels(go_on: str, said: str, calls: Sequence[str], before: str, after: str) -> str:
    texts = [said + weight if weight else "" for weight in (before, after)]
    return go_on.join(filter(None, [texts[0], *calls, texts[1]]))


def _recipients(said: str, calls: Sequence[str], before: str, after: str) -> str:
    return (f"{said}{before}\n" if before else "") + "".join(calls) + (said + after if after else "")


def _after_python_tag(calls: Sequence[str], before: str, after: str) -> str:
    return (f"{before} <|python_tag|>" if before else "") + "; ".join(calls) + (f" {after}" if after else "")


def _one_list(calls: Sequence[str], before: str, after: str) -> str:
    return before + "[" + ", ".join(call[1:-1] for call in calls) + "]" + (f"\n{after}" if after else "")


def _xml(call: str, parameter: str, *pieces: str, joined: Any = _lines, thinking: tuple[str, str] = THINK) -> Writer:
    """A writer of calls whose arguments are text."""
    write = partial(parameters, parameter)
    return Writer(call=put_in(call), arguments=write, joined=joined, pieces=pieces, thinking=thinking, kind="text")


def _json(call: str, *pieces: str, joined: Any = _lines, thinking: tuple[str, str] = THINK) -> Writer:
    """A writer of calls whose arguments are JSON."""
    return Writer(call=put_in(call), joined=joined, pieces=pieces, thinking=thinking)


def _listed(opening: str, closing: str, *, thinking: tuple[str, str] = THINK) -> Writer:
    """A writer of JSON lists between two markers."""
    call = f'{opening}[{{"name": "NAME", "arguments": ARGUMENTS}}]{closing}'
    return _json(call, opening, closing, f'{opening}[{{"name": ', thinking=thinking)


def _braces(opening: str, closing: str, quote: str, *pieces: str, thinking: tuple[str, str] = THINK) -> Writer:
    return Writer(
        call=put_in(f"{opening}call:NAMEARGUMENTS{closing}"),
        arguments=partial(in_braces, quote),
        joined=_lines,
        pieces=(opening, closing, quote, "call:add{", *pieces),
        thinking=thinking,
        kind="braces",
    )


_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_DEEPSEEK = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP)
_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_HARMONY_NEXT, _ATEM_NEXT = "<|end|><|start|>assistant", "<|eom|><|start|>assistant"
_FINAL, _ANALYSIS = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"
_MINIMAX, _MINIMAX_END = "<minimax:tool_call>", "</minimax:tool_call>"
_ACTION = "<|START_ACTION|>"

# One format for each way to write and read calls. The others differ from one of these only in their markers.
KINDS = ("harmony", "atem", "qwen3_coder", "minimax_m2", "glm4", "gemma4", "lfm2", "olmo3", "pythonic")
KINDS += ("deepseek_v3", "mistral_v11", "mistral", "command_r", "llama3", "hermes", "react")

WRITERS: dict[str, Writer] = {
    "harmony": _json(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS",
        *("<|channel|>", "<|message|>", "<|start|>assistant", "<|call|>", "<|end|>", " to=functions.add", _ANALYSIS),
        joined=partial(_channels, _HARMONY_NEXT, _FINAL),
        thinking=(_ANALYSIS, _HARMONY_NEXT),
    ),
    "atem": _xml(
        ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\nARGUMENTS</atem:invoke>\n'
        "</atem:function_calls>",
        '<atem:parameter name="NAME">ARGUMENTS</atem:parameter>\n',
        *(" to=add<|message|>", "<atem:function_calls>", '<atem:invoke name="add">', "</atem:invoke>", "<|eom|>"),
        *('<atem:parameter name="a">', "</atem:parameter>", " to=self<|message|>", "</atem:function_calls>"),
        joined=partial(_channels, _ATEM_NEXT, " to=user<|message|>"),
        thinking=(" to=self<|message|>", _ATEM_NEXT),
    ),
    "qwen3_coder": _xml(
        "<tool_call>\n<function=NAME>\nARGUMENTS</function>\n</tool_call>",
        "<parameter=NAME>\nARGUMENTS\n</parameter>\n",
        *("<tool_call>", "</tool_call>", "<function=add>", "</function>", "<parameter=a>", "</parameter>"),
    ),
    "seed_oss": _xml(
        "<seed:tool_call>\n<function=NAME>\nARGUMENTS</function>\n</seed:tool_call>",
        "<parameter=NAME>ARGUMENTS</parameter>\n",
        *("<seed:tool_call>", "</seed:tool_call>", "<function=add>", "<parameter=a>", "</parameter>", "<seed:think>"),
        thinking=("<seed:think>", "</seed:think>\n"),
    ),
    "minimax_m2": _xml(
        '<invoke name="NAME">\nARGUMENTS</invoke>',
        '<parameter name="NAME">ARGUMENTS</parameter>\n',
        *(_MINIMAX, _MINIMAX_END, "<invoke", ' name="add">', '<parameter name="a">', "</parameter>", "</invoke>"),
        joined=wrapped(f"{_MINIMAX}\n", f"\n{_MINIMAX_END}"),
    ),
    "glm4": _xml(
        "<tool_call>NAME\nARGUMENTS</tool_call>",
        "<arg_key>NAME</arg_key>\n<arg_value>ARGUMENTS</arg_value>\n",
        *("<tool_call>", "</tool_call>", "add\n", "<arg_key>a</arg_key>", "<arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "dsml": _xml(
        '<｜DSML｜invoke name="NAME">\nARGUMENTS</｜DSML｜invoke>',
        '<｜DSML｜parameter name="NAME" string="true">ARGUMENTS</｜DSML｜parameter>\n',
        *("<｜DSML｜function_calls>", "<｜DSML｜invoke", ' name="add">', "</｜DSML｜parameter>", "</｜DSML｜invoke>"),
        joined=wrapped("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
    ),
    "kimi_k3": _xml(
        '<|open|>call tool="NAME" index="1"<|sep|>ARGUMENTS<|close|>call<|sep|>',
        '<|open|>argument key="NAME" type="string"<|sep|>ARGUMENTS<|close|>argument<|sep|>',
        *("<|open|>", "<|sep|>", "<|close|>", '<|open|>call tool="add"<|sep|>', "<|close|>argument<|sep|>"),
        joined=wrapped("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        thinking=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    "step3": _xml(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">ARGUMENTS</steptml:invoke>'
        "<｜tool_call_end｜>",
        '<steptml:parameter name="NAME">ARGUMENTS</steptml:parameter>',
        *("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>", '<steptml:invoke name="add">'),
        *('<steptml:parameter name="a">', "</steptml:parameter>", "</steptml:invoke>"),
        joined=wrapped("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    ),
    "solar_open2": _xml(
        "<|tool_call:start|>NAME\nARGUMENTS<|tool_call:end|>",
        "<|tool_arg:start|>NAME<|tool_arg:value|>ARGUMENTS<|tool_arg:end|>\n",
        *("<|tool_call:start|>", "<|tool_call:end|>", "<|tool_arg:start|>a<|tool_arg:value|>", "<|tool_arg:end|>"),
        thinking=("<|think:start|>", "<|think:end|>"),
    ),
    "gemma4": _braces(
        "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>thought\n", thinking=("<|channel>thought\n", "\n<channel|>")
    ),
    "functiongemma": _braces("<start_function_call>", "<end_function_call>", "<escape>"),
    "deepseek_v3": _json(
        f"{_CALL}function{_SEP}NAME\n```json\nARGUMENTS\n```{_CALL_END}",
        *(*_DEEPSEEK, f"{_CALL}function{_SEP}add\n```json\n", "\n```"),
        joined=wrapped(_CALLS, _CALLS_END),
    ),
    "deepseek_v3_1": _json(
        f"{_CALL}NAME{_SEP}ARGUMENTS{_CALL_END}", *(*_DEEPSEEK, f"{_CALL}add{_SEP}"), joined=wrapped(_CALLS, _CALLS_END)
    ),
    "kimi_k2": _json(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
        *(_SECTION, _SECTION_END, "<|tool_call_begin|>", "functions.add:0", "<|tool_call_argument_begin|>"),
        "<|tool_call_end|>",
        joined=wrapped(_SECTION, _SECTION_END),
    ),
    "mistral_v11": _json(
        "[TOOL_CALLS]NAME[ARGS]ARGUMENTS",
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "add", "[THINK]", "[/THINK]"),
        thinking=("[THINK]", "[/THINK]"),
    ),
    "mistral": _json('[TOOL_CALLS] [{"name": "NAME", "arguments": ARGUMENTS}]', "[TOOL_CALLS]", "[TOOL_CALLS] ["),
    "command_r7b": _json(
        _ACTION + '[\n    {"tool_name": "NAME", "parameters": ARGUMENTS}\n]<|END_ACTION|>',
        *(_ACTION, "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>"),
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "command_r": _json(
        'Action:\n```json\n[\n    {"tool_name": "NAME", "parameters": ARGUMENTS}\n]```',
        "Action:",
        "Action: ```json",
        "```",
    ),
    "lfm2": Writer(
        call=put_in("<|tool_call_start|>[NAME(ARGUMENTS)]<|tool_call_end|>"),
        arguments=in_python,
        kind="python",
        joined=_lines,
        pieces=("<|tool_call_start|>", "<|tool_call_end|>", "add(", "a=", "[", "'", ")", "<|tool_call_start|>[add(a="),
    ),
    "granite3": _json(
        '<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]<|/tool_call|>', "<|tool_call|>", "<|/tool_call|>"
    ),
    "apriel": _listed(
        "<tool_calls>", "</tool_calls>", thinking=("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n")
    ),
    "hunyuan": _listed("<tool_calls>", "</tool_calls>"),
    "nemotron_nano_v2": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "apertus": _json(
        '<|tools_prefix|>[{"NAME": ARGUMENTS}]<|tools_suffix|>',
        *("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>"),
        thinking=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "longcat": _json(
        '<longcat_tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</longcat_tool_call>',
        *("<longcat_tool_call>", "</longcat_tool_call>"),
    ),
    "internlm2": _json(
        '<|action_start|><|plugin|>\n{"name": "NAME", "parameters": ARGUMENTS}<|action_end|>',
        *("<|action_start|><|plugin|>", "<|action_end|>"),
    ),
    "functionary": _json("<function=NAME>ARGUMENTS</function>", "<function=", "</function>", "<function=add>"),
    "functionary_v3_2": _json(
        ">>>NAME\nARGUMENTS", *(">>>", ">>>all\n", "all\n", ">>>add\n"), joined=partial(_recipients, ">>>all\n")
    ),
    "gigachat3": _json(
        '<|function_call|>{"name": "NAME", "arguments": ARGUMENTS}', "<|function_call|>", "<|function_call|>{"
    ),
    "solar_open": _json(
        "<|tool_call:begin|><|tool_call:name|>NAME<|tool_call:args|>ARGUMENTS<|tool_call:end|>",
        *("<|tool_call:begin|>", "<|tool_call:name|>add", "<|tool_call:args|>", "<|tool_call:end|>", "<|tool_calls|>"),
        joined=wrapped("<|tool_calls|>", "<|calls|>"),
        thinking=("<|think|>", "<|end|><|begin|>assistant"),
    ),
    "llama3": _json(
        '{"name": "NAME", "parameters": ARGUMENTS}', "<|python_tag|>", '"parameters"', joined=_after_python_tag
    ),
    "hermes": _json(
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
        *("<tool_call>", "</tool_call>", '{"name": "add", "arguments": '),
    ),
    "olmo3": Writer(
        call=put_in("<function_calls>\nNAME(ARGUMENTS)\n</function_calls>"),
        arguments=in_python,
        kind="python",
        joined=_lines,
        pieces=("<function_calls>", "</function_calls>", "add(", "a=", "'", ")", "<function_calls>add(a="),
    ),
    "pythonic": Writer(
        call=put_in("[NAME(ARGUMENTS)]"),
        arguments=in_python,
        kind="python",
        joined=_one_list,
        pieces=("[", "[add(", "add(", "a=", "'", "(", ")]"),
        text_before=False,
    ),
    "react": _json(
        "Action: NAME\nAction Input: ARGUMENTS",
        *("\nAction:", "\nAction Input:", "\nObservation:", "\nThought:", "\nFinal Answer:", "Action: add\n"),
    ),
}


def calls(message: Message) -> list[tuple[str, Any]]:
    """The names and arguments of the calls that were read."""
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def errors(message: Message) -> list[str]:
    """What is wrong with each malformed call."""
    return [malformed["error"] for malformed in message.get("malformed", [])]
