"""Our formats beside transformers' parser with TRL's response templates. Differences are recorded and judged."""

from __future__ import annotations

from typing import Any

import pytest
import trl.chat_template_utils as trl_templates

from gymnast.trainer import FORMATS

from ..importing import benchmark

outcomes = benchmark("formats.parser_outcomes")
cases = benchmark("formats.parser_cases")
judging = benchmark("formats.parser_differences")
FAMILIES = benchmark("formats.family_syntax").FAMILIES

SIDES = {
    "transformers": ".venv/bin/python -m benchmarks.formats.parser_outcomes transformers",
    "vllm": ".venv-vllm/bin/python -m benchmarks.formats.parser_outcomes vllm",
}
ROME, PARIS = ["weather", {"city": "Rome", "days": 3}], ["weather", {"city": "Paris", "days": 1}]
MEANT: dict[str, list[Any]] = {  # the correct reading of the texts without an error
    "one call": [ROME],
    "two calls": [ROME, PARIS],
    "thinking": [ROME],
    "no arguments": [["ping", {}]],
    "nested arguments": [["plan", {"stops": ["a, b", {"x": [1.5, None]}], "options": {"fast": True, "on": {}}}]],
    "quotes and unicode": [["weather", {"city": 'Zürich "日本"\n\\n ☀ {x}', "days": 3}]],
    "an unknown tool": [["fly", {"to": "Rome"}]],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_texts_are_valid_calls(family: str) -> None:
    """Otherwise the comparison would be meaningless."""
    said = dict(cases.texts(family))
    assert len(said) >= 12
    assert len(set(said.values())) >= len(said) - 1  # in XML a number and its text look alike
    for case in MEANT.keys() & said.keys():
        found = outcomes.ours(family, said[case])
        assert found["calls"] == MEANT[case], case
        assert found["malformed"] == 0, case
        assert found["thinking"] == ("Rome, then." if case == "thinking" else None), case
        assert found["content"] == "", case


def test_every_case_has_a_text_of_some_family() -> None:
    assert {case for family in FAMILIES for case, _ in cases.texts(family)} == set(cases.CASES)
    assert FAMILIES.keys() <= FORMATS.keys()


def test_every_response_template_of_trl_that_has_calls_is_compared() -> None:
    has_calls = {
        name
        for name, value in vars(trl_templates).items()
        if name.endswith("_template") and isinstance(value, dict) and "tool_calls" in value["fields"]
    }
    assert has_calls - {"nemotron_3_template"} == outcomes.TRANSFORMERS.keys()
    qwen, nemotron = trl_templates.qwen3_5_template, trl_templates.nemotron_3_template
    assert nemotron["fields"]["tool_calls"] == qwen["fields"]["tool_calls"]


@pytest.mark.parametrize(("name", "family"), outcomes.PEERS["transformers"])
def test_transformers_reads_as_recorded(name: str, family: str) -> None:
    found = outcomes.compare("transformers", name, family)
    assert found == outcomes.recorded()["transformers"][f"{name} / {family}"], f"run: {SIDES['transformers']}"


@pytest.mark.parametrize("side", SIDES)
def test_the_record_is_whole(side: str) -> None:
    assert list(outcomes.recorded()[side]) == sorted(f"{name} / {family}" for name, family in outcomes.PEERS[side])


def test_every_difference_has_one_judgement() -> None:
    record = outcomes.recorded()
    verdicts = {difference: judging.judgements_of(*difference) for difference in outcomes.differences(record)}
    assert [verdict for verdict, judgements in verdicts.items() if len(judgements) != 1] == []
    judged = {judgement.key for judgements in verdicts.values() for judgement in judgements}
    assert [judgement.key for judgement in judging.JUDGEMENTS if judgement.key not in judged] == []


def test_the_tables_of_the_page_are_the_record() -> None:
    for page in outcomes.TABLES:
        assert page.read_text() == outcomes.with_tables(page, outcomes.recorded()), f"run: {SIDES['transformers']}"
