"""Formats whose calls hold JSON: one entry a family.

The most particular markers come first: the first format that reads what a template renders is taken.
"""

from __future__ import annotations

import re

from .formats import Conventions, TextFormat
from .payload_readers import json_list_or, json_payload, named_json
from .spans import tagged
from .unmarked_calls import json_answer

_JSON_CALLS = r'\[\s*\{\s*"name"\s*:\s*"[\w.\-]{1,256}"\s*,\s*"arguments"\s*:\s*\{'
_MISTRAL = Conventions(call_id="call{index:05}", allowed_ids="[A-Za-z0-9]{9}")

JSON_ENTRIES = (
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
        spans=tagged(
            "[TOOL_CALLS]",
            "",
            json_list_or(named_json(r"(?P<name>[^\s\[\]{]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?")),
        ),
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
        payload="{name: not_null(tool_name, name), arguments: not_null(parameters, arguments), id: tool_call_id}",
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
        wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        conventions=Conventions(
            call_id="{index}", allowed_ids=r"\d{1,9}", numbers=r'(?<="tool_call_id": ")\d+(?=",\n)'
        ),
    ),
    TextFormat(
        name="command_r",
        families="Command R, Command R+",
        markers=("<|CHATBOT_TOKEN|>", "Action:", "tool_name"),
        spans=tagged(re.compile(r"Action:\s*```json"), "```", json_payload),
        payload="{name: not_null(tool_name, name), arguments: not_null(parameters, arguments)}",
    ),
    TextFormat(
        name="granite3",
        families="Granite 3.0 to 3.3, Phi-4-mini; by name xLAM 2",
        markers=(("<|tool_call|>", "<|tool|>"),),
        spans=tagged(re.compile(rf"<\|tool_call\|>|<tool_call>|\A\s*(?={_JSON_CALLS})"), "", json_payload),
        wrappers=("<|/tool_call|>", "</tool_call>"),
        conventions=Conventions(result_roles=("tool", "tool_response")),
    ),
    TextFormat(
        name="apriel",
        families="Apriel 1.5, 1.6",
        markers=("<tool_calls>", "[BEGIN FINAL RESPONSE]"),
        spans=tagged("<tool_calls>", "</tool_calls>", json_payload),
        thinking=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        wrappers=("[END FINAL RESPONSE]",),
    ),
    TextFormat(
        name="hunyuan",
        families="Hunyuan A13B, Jamba",
        markers=("<tool_calls>",),
        spans=tagged("<tool_calls>", "</tool_calls>", json_payload),
        wrappers=("<answer>", "</answer>"),
    ),
    TextFormat(
        name="nemotron_nano_v2",
        families="Nemotron Nano v2",
        markers=("<TOOLCALL>",),
        spans=tagged("<TOOLCALL>", "</TOOLCALL>", json_payload),
    ),
    TextFormat(
        name="apertus",
        families="Apertus",
        markers=("<|tools_prefix|>",),
        spans=tagged("<|tools_prefix|>", "<|tools_suffix|>", json_payload),
        payload="{name: keys(@)[0], arguments: values(@)[0]}",
        thinking=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    TextFormat(
        name="longcat",
        families="LongCat Flash",
        markers=("<longcat_tool_call>",),
        spans=tagged("<longcat_tool_call>", "</longcat_tool_call>", json_payload),
    ),
    TextFormat(
        name="internlm2",
        families="InternLM 2.5",
        markers=("<|action_start|>", "<|plugin|>"),
        spans=tagged(re.compile(r"<\|action_start\|>\s*<\|plugin\|>"), "<|action_end|>", json_payload),
    ),
    TextFormat(
        name="functionary",
        families="Functionary 3.1",
        markers=("<function=", "</function>"),
        spans=tagged("<function=", "</function>", named_json(r"(?P<name>[^<>\s]{1,256})>")),
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
)
