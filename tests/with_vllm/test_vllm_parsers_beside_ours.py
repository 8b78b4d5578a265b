"""Our formats and vLLM's tool parsers read the same texts. Their differences are recorded and judged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from importlib import import_module

import pytest

from gymnast.trainer import FORMATS
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

from ..importing import benchmark
from ..tool_calls.writers import WRITERS

outcomes = benchmark("formats.parser_outcomes")
FAMILIES = benchmark("formats.family_syntax").FAMILIES
TOOLS = benchmark("formats.parser_cases").TOOLS
RUN = "run: .venv-vllm/bin/python -m benchmarks.formats.parser_outcomes vllm"
NOT_IN_VLLM = {"react", "command_r"}  # formats that none of vLLM's parsers knows
NO_FUNCTIONS = {"harmony": "openai", "command_r7b": "cohere_command3"}  # vLLM's server reads these elsewhere


@pytest.fixture(autouse=True)
def _without_stack_traces() -> Iterator[None]:
    """vLLM's parsers log a stack trace for each call that they cannot read."""
    logger = logging.getLogger("vllm.tool_parsers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


# Formats that are compared on one call only, and vLLM's parser for the same models, if it has one.
ONE_CALL = {
    "gigachat3": "gigachat3",
    "dsml": "deepseek_v32",
    "kimi_k3": "kimi_k3",
    "step3": "step3",
    "olmo3": "olmo3",
    "hunyuan": "hunyuan_a13b",
    "apertus": "apertus",
    "longcat": "longcat",
    "internlm2": "internlm",
    **dict.fromkeys(["apriel", "nemotron_nano_v2", "functionary", "functionary_v3_2", "solar_open", "solar_open2"], ""),
}


@pytest.mark.parametrize(("name", "family"), outcomes.PEERS["vllm"])
def test_vllm_reads_as_recorded(name: str, family: str) -> None:
    assert outcomes.compare("vllm", name, family) == outcomes.recorded()["vllm"][f"{name} / {family}"], RUN


def test_which_of_vllms_parsers_find_the_calls_of_our_formats() -> None:
    found = outcomes.readers_in_vllm()
    assert found == outcomes.recorded()["vllm_reads"], RUN
    for name, families in outcomes.VLLM.items():
        assert set(families) <= set(found[name]), name


def test_every_format_that_vllm_reads_too_is_compared() -> None:
    found = outcomes.readers_in_vllm()
    compared = {family for families in outcomes.VLLM.values() for family in families}
    assert compared == {family for families in found.values() for family in families}
    assert FORMATS.keys() - compared == NOT_IN_VLLM | NO_FUNCTIONS.keys() | ONE_CALL.keys()
    assert FAMILIES.keys() - compared == {"harmony"}
    assert [found[name] for name in NO_FUNCTIONS.values()] == [[], []]


@pytest.mark.parametrize("name", [name for name, peer in ONE_CALL.items() if peer])
def test_vllm_reads_a_call_as_our_format_does(name: str) -> None:
    """This shows that the markers are right for families without a chat template in the tests."""
    tokenizer = make_tiny_tokenizer([])
    writer = WRITERS[name]
    tokenizer.add_tokens([each for each in writer.pieces if each.startswith("<") and each.endswith(">")])
    request = import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest(
        messages=[], tools=TOOLS
    )
    cached = import_module("vllm.tokenizers.hf").get_cached_tokenizer(tokenizer)
    parser = import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser(ONE_CALL[name])
    text = writer.answer(writer("weather", city="Rome"))
    [found] = parser(cached, request.tools).extract_tool_calls(text, request).tool_calls
    [ours] = FORMATS[name].parse(text, prefix="", tools=TOOLS).get("tool_calls", [])
    assert (found.function.name, json.loads(found.function.arguments)) == ("weather", {"city": "Rome"})
    assert ours["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
