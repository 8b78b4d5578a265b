"""Our formats beside vLLM's tool parsers, on the same texts; what differs is recorded, and judged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gymnast.trainer import FORMATS

from ..parser_families import FAMILIES
from ..parser_outcomes import PEERS, VLLM, compare, readers_in_vllm, recorded

RUN = "run: .venv-vllm/bin/python -m tests.parser_outcomes vllm"
NOT_IN_VLLM = {"react", "command_r"}  # formats that none of vLLM's parsers knows
NO_FUNCTIONS = {"harmony": "openai", "command_r7b": "cohere_command3"}  # vLLM's server reads these elsewhere


@pytest.fixture(autouse=True)
def _without_stack_traces() -> Iterator[None]:
    """vLLM's parsers log one for each call that they cannot read."""
    logger = logging.getLogger("vllm.tool_parsers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(("name", "family"), PEERS["vllm"])
def test_vllm_reads_as_recorded(name: str, family: str) -> None:
    assert compare("vllm", name, family) == recorded()["vllm"][f"{name} / {family}"], RUN


def test_which_of_vllms_parsers_find_the_calls_of_our_formats() -> None:
    found = readers_in_vllm()
    assert found == recorded()["vllm_reads"], RUN
    for name, families in VLLM.items():
        assert set(families) <= set(found[name]), name


def test_every_format_that_vllm_reads_too_is_compared() -> None:
    found = readers_in_vllm()
    compared = {family for families in VLLM.values() for family in families}
    assert compared == {family for families in found.values() for family in families}
    assert FORMATS.keys() - compared == NOT_IN_VLLM | NO_FUNCTIONS.keys()
    assert FAMILIES.keys() - compared == {"harmony"}
    assert [found[name] for name in NO_FUNCTIONS.values()] == [[], []]
