"""Formats whose calls are tags around arguments in plain text, Gemma's braces, or Python: one entry a family.

The most particular markers come first: the first format that reads what a template renders is taken.
"""

from __future__ import annotations

import re

from .formats import TextFormat
from .payload_readers import brace_call, json_list_or, python_calls, python_lines
from .spans import tagged
from .text_arguments import argument_pairs, xml_call
from .unmarked_calls import llama4_answer

_XML_PARAMETER = r"<parameter=(?P<key>[^<>\n]{1,256})>"

TEXT_ENTRIES = (
    TextFormat(
        name="qwen3_coder",
        families="Qwen3-Coder, Qwen 3.5 and later, Nemotron 3",
        markers=("<tool_call>", "<function="),
        spans=tagged(
            re.compile(r"<tool_call>\s*<function=|<tool_call>|<function="),  # the first marker is often left out
            "</tool_call>",
            xml_call(r"(?P<name>[^<>\n]{1,256})>", _XML_PARAMETER, newlines=True),
            begins="<tool_call>\\s*<function=",
        ),
        values="text",
    ),
    TextFormat(
        name="seed_oss",
        families="Seed-OSS",
        markers=("<seed:tool_call>",),
        spans=tagged(
            re.compile(r"<seed:tool_call>\s*<function=|<seed:tool_call>|<function="),
            "</seed:tool_call>",
            xml_call(
                r"(?P<name>[^<>\n]{1,256})>",
                _XML_PARAMETER,
                outer_close="</seed:tool_call>",
                outer_open=r"<seed:tool_call>\s*<function=",
            ),
            begins="<seed:tool_call>\\s*<function=",
        ),
        values="text",
        thinking=("<seed:think>", "</seed:think>"),
    ),
    TextFormat(
        name="minimax_m2",
        families="MiniMax M2",
        markers=("<minimax:tool_call>",),
        spans=tagged(
            "<invoke",
            "",
            xml_call(
                r"\s*name=(?P<name>[^<>\n]{1,256})>",
                r"<parameter\s+name=(?P<key>[^<>\n]{1,256})>",
                call_close="</invoke>",
                outer_close="</minimax:tool_call>",
                outer_open=r"<invoke\s+name=",
            ),
            begins=r"<invoke\s+name=",
            ends="</invoke>",
        ),
        values="text",
        wrappers=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    TextFormat(
        name="glm4",
        families="GLM-4.5, 4.6, 4.7",
        markers=("<tool_call>", "<arg_key>"),
        spans=tagged("<tool_call>", "</tool_call>", argument_pairs, begins=r"<tool_call>[^\s<]+\s*<arg_key>"),
        values="text",
        end_tokens=("<|user|>", "<|observation|>"),
    ),
    TextFormat(
        name="dsml",
        families="DeepSeek V3.2, V4",
        markers=("｜DSML｜",),
        spans=tagged(
            "<｜DSML｜invoke",
            "",
            xml_call(
                r"\s*name=(?P<name>[^<>\n]{1,256})>",
                r'<｜DSML｜parameter\s+name="(?P<key>[^"]{1,256})"(?:\s+string="(?:true|(?P<json>false))")?\s*>',
                parameter_close="</｜DSML｜parameter>",
                call_close="</｜DSML｜invoke>",
                outer_close="</｜DSML｜function_calls>",
                outer_open=r"<｜DSML｜invoke\s+name=",
            ),
            begins=r"<｜DSML｜invoke\s+name=",
            ends="</｜DSML｜invoke>",
        ),
        values="text",
        wrappers=tuple(f"<{slash}｜DSML｜{name}>" for slash in ("", "/") for name in ("function_calls", "tool_calls")),
    ),
    TextFormat(
        name="kimi_k3",
        families="Kimi K3",
        markers=("<|open|>", "<|sep|>"),
        spans=tagged(
            "<|open|>call",
            "",
            xml_call(
                r'\s*tool="(?P<name>[^"<>\n]{1,256})"(?:\s+index="\d{1,9}")?\s*<\|sep\|>',
                r'<\|open\|>argument\s+key="(?P<key>[^"]{1,256})"(?:\s+type="(?:string|(?P<json>\w+))")?\s*<\|sep\|>',
                parameter_close="<|close|>argument<|sep|>",
                call_close="<|close|>call<|sep|>",
                outer_close="<|close|>tools<|sep|>",
                outer_open=r"<\|open\|>call\s+tool=",
            ),
            begins=r"<\|open\|>call\s+tool=",
            ends="<|close|>call<|sep|>",
        ),
        values="text",
        thinking=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        wrappers=(
            *(f"<|{does}|>{name}<|sep|>" for does in ("open", "close") for name in ("response", "tools")),
            "<|close|>message<|sep|>",
        ),
        end_tokens=("<|end_of_msg|>",),
    ),
    TextFormat(
        name="step3",
        families="Step 3",
        markers=("<steptml:invoke",),
        spans=tagged(
            "<｜tool_call_begin｜>function<｜tool_sep｜>",
            "<｜tool_call_end｜>",
            xml_call(
                r"<steptml:invoke\s+name=(?P<name>[^<>\n]{1,256})>",
                r'<steptml:parameter\s+name="(?P<key>[^"]{1,256})">',
                parameter_close="</steptml:parameter>",
                call_close="</steptml:invoke>",
                outer_close="<｜tool_call_end｜>",
                outer_open="<｜tool_call_begin｜>",
            ),
            begins="<｜tool_call_begin｜>function<｜tool_sep｜>",
        ),
        values="text",
        wrappers=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    ),
    TextFormat(
        name="solar_open2",
        families="Solar Open 2",
        markers=("<|tool_call:start|>",),
        spans=tagged(
            "<|tool_call:start|>",
            "",
            xml_call(
                r"(?P<name>[^<>\n]{1,256})",
                r"<\|tool_arg:start\|>(?P<key>[^<>\n]{1,256})<\|tool_arg:value\|>",
                parameter_close="<|tool_arg:end|>",
                call_close="<|tool_call:end|>",
                outer_close="<|tool_call:end|>",
                outer_open=r"<\|tool_call:start\|>",
            ),
            begins=r"<\|tool_call:start\|>",
            ends="<|tool_call:end|>",
        ),
        values="text",
    ),
    TextFormat(
        name="gemma4",
        families="Gemma 4, DiffusionGemma",
        markers=("<|tool_call>", "<|tool_response>"),
        spans=tagged("<|tool_call>", "<tool_call|>", brace_call('<|"|>'), begins=r"<\|tool_call>call:"),
        thinking=("<|channel>thought", "<channel|>"),
        wrappers=("<|turn>model\n", "<|channel>"),  # DiffusionGemma begins its answers anew after results
        end_tokens=("<turn|>", "<|tool_response>"),
    ),
    TextFormat(
        name="functiongemma",
        families="FunctionGemma",
        markers=("<start_function_call>",),
        spans=tagged(
            "<start_function_call>", "<end_function_call>", brace_call("<escape>"), begins="<start_function_call>call:"
        ),
        end_tokens=("<end_of_turn>", "<start_function_response>"),
    ),
    TextFormat(
        name="lfm2",
        families="LFM2, LFM2.5",
        markers=(("<|tool_call_start|>", "<|tool_list_start|>"),),
        spans=tagged(
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            json_list_or(python_calls),
            begins=r"(?<=<\|tool_call_end\|>)\s*<\|tool_call_start\|>\[",  # strings are quoted, but not all escaped
        ),
        values="python",
    ),
    TextFormat(
        name="olmo3",
        families="OLMo 3",
        markers=("<function_calls>",),
        spans=tagged("<function_calls>", "</function_calls>", python_lines),
        values="python",
    ),
    TextFormat(
        name="pythonic",
        families="Llama 4, ToolACE",
        markers=("<|python_start|>",),
        spans=llama4_answer,
        values="python",
        wrappers=("<|python_start|>", "<|python_end|>"),
    ),
)
