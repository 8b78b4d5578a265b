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


@pytest.fixture(autouse=True)
def _without_stack_traces() -> Iterator[None]:
    """vLLM's parsers log a stack trace for each call that they cannot read."""
    logger = logging.getLogger("vllm.tool_parsers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


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
    assert FORMATS.keys() - compared == NOT_IN_VLLM | outcomes.NO_FUNCTIONS.keys() | outcomes.ONE_CALL.keys()
    assert FAMILIES.keys() - compared == {"harmony"}
    assert [found[name] for name in outcomes.NO_FUNCTIONS.values()] == [[], []]


@pytest.mark.parametrize("name", [name for name, peer in outcomes.ONE_CALL.items() if peer])
def test_vllm_reads_a_call_as_our_format_does(name: str) -> None:
    """This shows that the markers are right for families without a chat template in the tests."""
    tokenizer = make_tiny_tokenizer([])
    writer = WRITERS[name]
    tokenizer.add_tokens([piece for piece in writer.pieces if piece.startswith("<") and piece.endswith(">")])
    request = import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest(
        messages=[], tools=TOOLS
    )
    cached = import_module("vllm.tokenizers.hf").get_cached_tokenizer(tokenizer)
    parser = import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser(outcomes.ONE_CALL[name])
    text = writer.answer(writer("weather", city="Rome"))
    [found] = parser(cached, request.tools).extract_tool_calls(text, request).tool_calls
    [ours] = FORMATS[name].parse(text, prefix="", tools=TOOLS).get("tool_calls", [])
    assert (found.function.name, json.loads(found.function.arguments)) == ("weather", {"city": "Rome"})
    assert ours["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
