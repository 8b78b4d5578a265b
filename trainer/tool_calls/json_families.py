"""The tool-call formats of the model families: one entry each; `docs/families.md` says how to add one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from .atem import AtemFormat
from .bare_calls import json_answer, python_answer
from .call_readers import (
    argument_pairs,
    brace_call,
    json_payload,
    named_json,
    python_calls,
    xml_call,
)
from .harmony import HarmonyFormat
from .react import ReActFormat
from .tool_formats import Conventions, KnownFormat, TextFormat, tagged

_XML_PARAMETER = r"<parameter=(?P<key>[^<>\n]{1,256})>"
_MISTRAL = Conventions(call_id="call{index:05}", allowed_ids="[A-Za-z0-9]{9}")

# The most particular markers come first: the first format that reads what a template renders is taken.
_ENTRIES: tuple[KnownFormat, ...] = (
    HarmonyFormat(),
    AtemFormat(),
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
            xml_call(r"(?P<name>[^<>\n]{1,256})>", _XML_PARAMETER, outer_close="</seed:tool_call>"),
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
        name="gemma4",
        families="Gemma 4, DiffusionGemma",
        markers=("<|tool_call>", "<|tool_response>"),
        spans=tagged("<|tool_call>", "<tool_call|>", brace_call('<|"|>'), begins=r"<\|tool_call>call:"),
        thinking=("<|channel>thought\n", "<channel|>"),
        wrappers=("<|turn>model\n",),  # DiffusionGemma begins its answers anew after results
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
        name="deepseek_v3",
        families="DeepSeek V3, R1",
        markers=("<｜tool▁sep｜>", "```json"),
        spans=tagged(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            named_json(r"\w+<｜tool▁sep｜>(?P<name>[^\s<]+)\s*```json"),
            optional="```",
        ),
        wrappers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    TextFormat(
        name="deepseek_v3_1",
        families="DeepSeek V3.1",
        markers=("<｜tool▁sep｜>",),
        spans=tagged("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", named_json(r"(?P<name>[^\s<]+)\s*<｜tool▁sep｜>")),
        wrappers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    TextFormat(
        name="kimi_k2",
        families="Kimi K2",
        markers=("<|tool_calls_section_begin|>",),
        spans=tagged(
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            named_json(r"(?P<id>(?:functions\.)?+(?P<name>[^\s:<]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"),
        ),
        wrappers=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        conventions=Conventions(call_id="functions.{name}:{index}"),
    ),
    TextFormat(
        name="mistral_v11",
        families="Mistral Small 3.2, Magistral, Devstral, Ministral 3",
        markers=("[TOOL_CALLS]", "[ARGS]"),
        spans=tagged("[TOOL_CALLS]", "", named_json(r"(?P<name>[^\s\[\]{]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?")),
        thinking=("[THINK]", "[/THINK]"),
        conventions=_MISTRAL,
    ),
    TextFormat(
        name="mistral",
        families="Mistral 7B 0.3, Mixtral, Nemo, Large 2407, Small 3.1",
        markers=("[TOOL_CALLS]",),
        spans=tagged("[TOOL_CALLS]", "", json_payload),
        conventions=_MISTRAL,
    ),
    TextFormat(
        name="command_r7b",
        families="Command R7B, Command A",
        markers=("<|START_ACTION|>",),
        spans=tagged("<|START_ACTION|>", "<|END_ACTION|>", json_payload),
        payload="{name: tool_name, arguments: not_null(parameters, arguments), id: tool_call_id}",
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
        wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        conventions=Conventions(
            call_id="{index}", allowed_ids=r"\d{1,9}", numbers=r'(?<="tool_call_id": ")\d+(?=",\n)'
        ),
    ),
    TextFormat(
        name="command_r",
        families="Command R, Command R+",
        markers=("<|CHATBOT_TOKEN|>", "Action:", "tool_name"),
        spans=tagged(re.compile(r"Action:\s*```json"), "```", json_payload),
        payload="{name: tool_name, arguments: not_null(parameters, arguments)}",
    ),
    TextFormat(
        name="lfm2",
        families="LFM2, LFM2.5",
        markers=(("<|tool_call_start|>", "<|tool_list_start|>"),),
        spans=tagged(
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            python_calls,
            begins=r"(?<=<\|tool_call_end\|>)\s*<\|tool_call_start\|>\[",  # strings are quoted, but not all escaped
        ),
        values="python",
    ),
    TextFormat(
        name="granite3",
        families="Granite 3.0 to 3.3, Phi-4-mini",
        markers=(("<|tool_call|>", "<|tool|>"),),
        spans=tagged(re.compile(r"<\|tool_call\|>|<tool_call>"), "", json_payload),
        wrappers=("<|/tool_call|>", "</tool_call>"),
        conventions=Conventions(result_roles=("tool", "tool_response")),
    ),
    TextFormat(
        name="llama3",
        families="Llama 3.1, 3.2, 3.3",
        markers=("<|start_header_id|>", "parameters"),
        spans=json_answer,
        payload="{name: name, arguments: not_null(parameters, arguments)}",
    ),
    TextFormat(
        name="hermes",
        families="Hermes, Qwen 2.5, Qwen 3, SmolLM3, Granite 4",
        markers=("<tool_call>", "arguments"),
        spans=tagged("<tool_call>", "</tool_call>", json_payload),
    ),
    TextFormat(
        name="pythonic",
        families="Llama 4, and whoever was told so",
        spans=python_answer,
        values="python",
        wrappers=("<|python_end|>",),
    ),
    ReActFormat(),
)

FORMATS: Mapping[str, KnownFormat] = MappingProxyType({each.name: each for each in _ENTRIES})
