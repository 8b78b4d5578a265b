"""All tool-call formats by name, one row a format; `docs/families.md` says how to add one.

The most particular markers come first: the first format that reads the call of a template is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .channels import ATEM, HARMONY
from .formats import Conventions, KnownFormat, TextFormat
from .payload_readers import Reader, brace_call, json_or, json_payload, named_json, python_calls, python_lines
from .react import ReActFormat
from .spans import Spans, json_answer, llama4_answer, tagged
from .text_arguments import argument_pairs_call, xml_calls

_NAME, _KEY = r"(?P<name>[^<>\n]{1,256})", r"(?P<key>[^<>\n]{1,256})"
_QUOTED_KEY = r'"(?P<key>[^"]{1,256})"'
_JSON_CALLS = r'\[\s*\{\s*"name"\s*:\s*"[\w.\-]{1,256}"\s*,\s*"arguments"\s*:\s*\{'
_MISTRAL = Conventions(call_id="call{index:05}", allowed_ids="[A-Za-z0-9]{9}")
_TOOL_NAME_FIRST = "{name: not_null(tool_name, name), arguments: not_null(parameters, arguments), id: tool_call_id}"


def _between(
    name: str,
    families: str,
    marks: tuple[str | re.Pattern[str], str],
    reader: Reader = json_payload,
    *,
    optional: str = "",
    begins: str = "",
    **others: Any,
) -> TextFormat:
    """Return a format of calls between two marks. If no markers are given, the first mark tells the format."""
    others = {"markers": marks[:1], **others}
    spans = tagged(*marks, reader, optional=optional, begins=begins)
    return TextFormat(name=name, families=families, spans=spans, **others)


def _text(name: str, families: str, markers: tuple[str, ...], spans: Spans, **others: Any) -> TextFormat:
    """Return a format of calls whose arguments are text."""
    return TextFormat(name=name, families=families, markers=markers, spans=spans, values="text", **others)


def _functions(tag: str, *, newlines: bool = False) -> Spans:
    """Cut out calls that Qwen3-Coder writes between `<tag>` and `</tag>`; the opening tag is often left out."""
    begins = rf"<{tag}>\s*<function="
    closings = ("</parameter>", "</function>", f"</{tag}>")
    opening = re.compile(rf"{begins}|<{tag}>|<function=")
    return xml_calls(opening, rf"{_NAME}>", rf"<parameter={_KEY}>", closings, begins=begins, newlines=newlines)


def _pair(mark: str) -> tuple[str, str]:
    """Return `<mark>` and `</mark>`."""
    return f"<{mark}>", f"</{mark}>"


_FORMATS: tuple[KnownFormat, ...] = (
    HARMONY,
    ATEM,
    # Arguments that are text between tags.
    _text(
        "qwen3_coder",
        "Qwen3-Coder, Qwen 3.5 and later, Nemotron 3",
        ("<tool_call>", "<function="),
        _functions("tool_call", newlines=True),
    ),
    _text("seed_oss", "Seed-OSS", ("<seed:tool_call>",), _functions("seed:tool_call"), thinking=_pair("seed:think")),
    _text(
        "minimax_m2",
        "MiniMax M2",
        ("<minimax:tool_call>",),
        xml_calls(
            "<invoke",
            rf"\s*name={_NAME}>",
            rf"<parameter\s+name={_KEY}>",
            ("</parameter>", "</invoke>", "</minimax:tool_call>"),
            begins=r"<invoke\s+name=",
            shared=True,
        ),
        wrappers=_pair("minimax:tool_call"),
    ),
    _between(
        "glm4",
        "GLM-4.5, 4.6, 4.7",
        _pair("tool_call"),
        argument_pairs_call("arg_key", "arg_value"),
        begins=r"<tool_call>[^\s<]+\s*<arg_key>",
        markers=("<tool_call>", "<arg_key>"),
        values="text",
        end_tokens=("<|user|>", "<|observation|>"),
    ),
    _text(
        "dsml",
        "DeepSeek V3.2, V4",
        ("｜DSML｜",),
        xml_calls(
            "<｜DSML｜invoke",
            rf"\s*name={_NAME}>",
            rf'<｜DSML｜parameter\s+name={_QUOTED_KEY}(?:\s+string="(?:true|(?P<json>false))")?\s*>',
            ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
            begins=r"<｜DSML｜invoke\s+name=",
            shared=True,
        ),
        wrappers=(*_pair("｜DSML｜function_calls"), *_pair("｜DSML｜tool_calls")),
    ),
    _text(
        "kimi_k3",
        "Kimi K3",
        ("<|open|>", "<|sep|>"),
        xml_calls(
            "<|open|>call",
            r'\s*tool="(?P<name>[^"<>\n]{1,256})"(?:\s+index="\d{1,9}")?\s*<\|sep\|>',
            rf'<\|open\|>argument\s+key={_QUOTED_KEY}(?:\s+type="(?:string|(?P<json>\w+))")?\s*<\|sep\|>',
            ("<|close|>argument<|sep|>", "<|close|>call<|sep|>", "<|close|>tools<|sep|>"),
            begins=r"<\|open\|>call\s+tool=",
            shared=True,
        ),
        thinking=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        wrappers=(
            *(f"<|{does}|>{name}<|sep|>" for does in ("open", "close") for name in ("response", "tools")),
            "<|close|>message<|sep|>",
        ),
        end_tokens=("<|end_of_msg|>",),
    ),
    _text(
        "step3",
        "Step 3",
        ("<steptml:invoke",),
        xml_calls(
            "<｜tool_call_begin｜>function<｜tool_sep｜>",
            rf"<steptml:invoke\s+name={_NAME}>",
            rf"<steptml:parameter\s+name={_QUOTED_KEY}>",
            ("</steptml:parameter>", "</steptml:invoke>", "<｜tool_call_end｜>"),
            begins="<｜tool_call_begin｜>function<｜tool_sep｜>",
        ),
        wrappers=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    ),
    _text(
        "solar_open2",
        "Solar Open 2",
        ("<|tool_call:start|>",),
        xml_calls(
            "<|tool_call:start|>",
            _NAME,
            rf"<\|tool_arg:start\|>{_KEY}<\|tool_arg:value\|>",
            ("<|tool_arg:end|>", "<|tool_call:end|>", "<|tool_call:end|>"),
            begins=r"<\|tool_call:start\|>",
            shared=True,
        ),
        thinking=("<|think:start|>", "<|think:end|>"),
    ),
    # Gemma's braces, and Python.
    _between(
        "gemma4",
        "Gemma 4, DiffusionGemma",
        ("<|tool_call>", "<tool_call|>"),
        brace_call(),
        begins=r"<\|tool_call>call:",
        markers=("<|tool_call>", "<|tool_response>"),
        thinking=("<|channel>thought", "<channel|>"),
        wrappers=("<|turn>model\n", "<|channel>"),  # DiffusionGemma begins its answers anew after results
        end_tokens=("<turn|>", "<|tool_response>"),
    ),
    _between(
        "functiongemma",
        "FunctionGemma",
        ("<start_function_call>", "<end_function_call>"),
        brace_call("<escape>"),
        begins="<start_function_call>call:",
        end_tokens=("<end_of_turn>", "<start_function_response>"),
    ),
    _between(
        "lfm2",
        "LFM2, LFM2.5",
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        json_or(python_calls),
        begins=r"(?<=<\|tool_call_end\|>)\s*<\|tool_call_start\|>\[",  # strings are quoted, but not all escaped
        markers=(("<|tool_call_start|>", "<|tool_list_start|>"),),
        values="python",
    ),
    _between("olmo3", "OLMo 3", _pair("function_calls"), python_lines, values="python"),
    TextFormat(
        name="pythonic",
        families="Llama 4, ToolACE",
        markers=("<|python_start|>",),
        spans=llama4_answer,
        values="python",
        wrappers=("<|python_start|>", "<|python_end|>"),
    ),
    # JSON.
    _between(
        "deepseek_v3",
        "DeepSeek V3, R1",
        ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        named_json(r"\w+<｜tool▁sep｜>(?P<name>[^\s<]+)\s*```json"),
        optional="```",
        markers=("<｜tool▁sep｜>", "```json"),
        wrappers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    _between(
        "deepseek_v3_1",
        "DeepSeek V3.1",
        ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        named_json(r"(?P<name>[^\s<]+)\s*<｜tool▁sep｜>"),
        markers=("<｜tool▁sep｜>",),
        wrappers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    _between(
        "kimi_k2",
        "Kimi K2",
        ("<|tool_call_begin|>", "<|tool_call_end|>"),
        named_json(r"(?P<id>(?:functions\.)?+(?P<name>[^\s:<]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"),
        markers=("<|tool_calls_section_begin|>",),
        wrappers=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        conventions=Conventions(call_id="functions.{name}:{index}"),
    ),
    _between(
        "mistral_v11",
        "Mistral Small 3.2, Magistral, Devstral, Ministral 3",
        ("[TOOL_CALLS]", ""),
        json_or(named_json(r"(?P<name>[^\s\[\]{]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?")),
        markers=("[TOOL_CALLS]", "[ARGS]"),
        thinking=("[THINK]", "[/THINK]"),
        conventions=_MISTRAL,
    ),
    _between(
        "mistral", "Mistral 7B 0.3, Mixtral, Nemo, Large 2407, Small 3.1", ("[TOOL_CALLS]", ""), conventions=_MISTRAL
    ),
    _between(
        "command_r7b",
        "Command R7B, Command A",
        ("<|START_ACTION|>", "<|END_ACTION|>"),
        payload=_TOOL_NAME_FIRST,
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
        wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        conventions=Conventions(
            call_id="{index}", allowed_ids=r"\d{1,9}", numbers=r'(?<="tool_call_id": ")\d+(?=",\n)'
        ),
    ),
    _between(
        "command_r",
        "Command R, Command R+",
        (re.compile(r"Action:\s*```json"), "```"),
        markers=("<|CHATBOT_TOKEN|>", "Action:", "tool_name"),
        payload=_TOOL_NAME_FIRST,
    ),
    _between(
        "granite3",
        "Granite 3.0 to 3.3, Phi-4-mini; by name xLAM 2",
        (re.compile(rf"<\|tool_call\|>|<tool_call>|\A\s*(?={_JSON_CALLS})"), ""),
        markers=(("<|tool_call|>", "<|tool|>"),),
        wrappers=("<|/tool_call|>", "</tool_call>"),
        conventions=Conventions(result_roles=("tool", "tool_response")),
    ),
    _between(
        "apriel",
        "Apriel 1.5, 1.6",
        _pair("tool_calls"),
        markers=("<tool_calls>", "[BEGIN FINAL RESPONSE]"),
        thinking=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        wrappers=("[END FINAL RESPONSE]",),
    ),
    _between("hunyuan", "Hunyuan A13B, Jamba", _pair("tool_calls"), wrappers=(*_pair("answer"), "助手：")),
    _between("nemotron_nano_v2", "Nemotron Nano v2", _pair("TOOLCALL")),
    _between(
        "apertus",
        "Apertus",
        ("<|tools_prefix|>", "<|tools_suffix|>"),
        payload="{name: keys(@)[0], arguments: values(@)[0]}",
        thinking=("<|inner_prefix|>", "<|inner_suffix|>"),
        end_tokens=("<|assistant_end|>", "<|tools_suffix|>"),  # results stand in the turn of the calls
    ),
    _between(
        "longcat",
        "LongCat Flash",
        _pair("longcat_tool_call"),
        json_or(argument_pairs_call("longcat_arg_key", "longcat_arg_value", outer_close="</longcat_tool_call>")),
        begins=r"<longcat_tool_call>[^\s<{]+\s*<longcat_arg_key>",
    ),
    _between(
        "internlm2",
        "InternLM 2.5",
        (re.compile(r"<\|action_start\|>\s*<\|plugin\|>"), "<|action_end|>"),
        markers=("<|action_start|>", "<|plugin|>"),
    ),
    _between(
        "functionary",
        "Functionary 3.1",
        ("<function=", "</function>"),
        named_json(r"(?P<name>[^<>\s]{1,256})>"),
        markers=("<function=", "</function>"),
    ),
    _between(
        "functionary_v3_2",
        "Functionary 3.2",
        # The prompt ends with the first mark. A line `>>> 1 + 1` of a text is not a call.
        (re.compile(r">>>(?!all\n)(?=[\w.\-]{0,256}\n)|\A(?!all\n)(?=[\w.\-]{1,256}\n\s*\{)"), ""),
        named_json(r"(?P<name>[\w.\-]+)\n"),
        markers=(">>>", "<|start_header_id|>"),
        wrappers=("all\n", ">>>all\n"),
    ),
    _between("gigachat3", "GigaChat 3.1", ("<|function_call|>", "")),
    _between(
        "solar_open",
        "Solar Open 1",
        ("<|tool_call:begin|>", "<|tool_call:end|>"),
        named_json(r"(?P<id>[^<\s]+)?<\|tool_call:name\|>(?P<name>[^<\s]+)<\|tool_call:args\|>"),
        thinking=("<|think|>", "<|end|>"),
        wrappers=(
            *("<|begin|>assistant<|content|>", "<|begin|>assistant", "<|content|>", "<|end|>"),
            *("<|tool_calls|>", "<|calls|>", "<|flush|>"),
        ),
        end_tokens=("<|flush|>", "<|calls|>"),
    ),
    TextFormat(
        name="llama3",
        families="Llama 3.1, 3.2, 3.3",
        markers=("<|start_header_id|>", "parameters"),
        spans=json_answer,
    ),
    _between(
        "hermes",
        "Hermes, Qwen 2.5, Qwen 3, SmolLM3, Granite 4",
        _pair("tool_call"),
        markers=("<tool_call>", "arguments"),
    ),
    ReActFormat(),
)

FORMATS: Mapping[str, KnownFormat] = MappingProxyType({known.name: known for known in _FORMATS})
