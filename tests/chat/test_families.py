"""The model families: the recognised format of each chat template, and its abilities, as in docs/families.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gymnast.envs.core import ConfigurationError
from gymnast.trainer import ChatFormat, recognise_tool_format

from .families import GIVEN, STEMS, TEMPLATES, TOKENS, TOOLS, chat_of, tokenizer_of, usable_chat
from .family_abilities import NO, YES, abilities_of, thoughts_of
from .family_episodes import CALLS_AS_TEXT, WRITERS, five_turns, format_name, prompts, written
from .family_matrix import (
    FAMILIES,
    ORIGINAL,
    REASONS,
    UNEXPECTED,
    matrix,
    notes_of,
    original_table,
    reason_of,
    stems_of,
)

ROOT = Path(__file__).resolve().parents[2]

# (format, end of an answer, end of a call): templates. "" means that no format is recognised.
EXPECTED = {
    ("hermes", "<|im_end|>", "<|im_end|>"): (
        "hermes_3 qwen2_5 qwen2_5_training qwen3 qwen3_training qwen3_instruct_2507 qwen3_instruct_2507_training "
        "qwen3_vl qwen3_vl_training smollm3"
    ),
    ("hermes", "<|end_of_text|>", "<|end_of_text|>"): "granite_4",
    ("qwen3_coder", "<|im_end|>", "<|im_end|>"): (
        "nemotron_3_5_lightning nemotron_3_5_lightning_training nemotron_3_nano nemotron_3_nano_training "
        "nemotron_3_super nemotron_3_super_training nemotron_3_ultra nemotron_3_ultra_training qwen3_5_nothink "
        "qwen3_5_nothink_training qwen3_5_think qwen3_5_think_training qwen3_6 qwen3_6_training qwen3_8 "
        "qwen3_8_training qwen3_coder"
    ),
    ("gemma4", "<turn|>", "<|tool_response>"): (
        "diffusion_gemma diffusion_gemma_training gemma4 gemma4_v3 gemma4_v4 gemma4_v5"
    ),
    ("gemma4", "<turn|>", "<turn|>"): "gemma4_v2",
    ("functiongemma", "<end_of_turn>", "<start_function_response>"): "functiongemma",
    ("glm4", "<|user|>", "<|observation|>"): "glm4moe glm4moe_training glm_4_6 glm_4_7",
    ("harmony", "<|return|>", "<|call|>"): "gptoss gptoss_training",
    ("atem", "<|eot|>", "<|eot|>"): "muse_glimmer muse_glimmer_training",
    ("lfm2", "<|im_end|>", "<|im_end|>"): (
        "lfm2 lfm2_training lfm2_v2 lfm2_v2_training lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl"
    ),
    ("llama3", "<|eot_id|>", "<|eot_id|>"): "llama3_1 llama3_2",
    ("command_r", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"): "command_r",
    ("command_r7b", "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"): "command_r7b",
    ("deepseek_v3", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"): "deepseek_r1",
    ("granite3", "<|end_of_text|>", "<|end_of_text|>"): "granite_3_0 granite_3_3",
    ("granite3", "<|end|>", "<|end|>"): "phi4_mini",
    ("kimi_k2", "<|im_end|>", "<|im_end|>"): "kimi_k2 kimi_k2_thinking",
    ("minimax_m2", "[e~[", "[e~["): "minimax_m2",
    ("mistral", "</s>", "</s>"): "mistral_v3 mistral_nemo",
    ("mistral_v11", "</s>", "</s>"): "mistral_small_3_2 magistral",
    ("seed_oss", "<seed:eos>", "<seed:eos>"): "seed_oss",
    ("dsml", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"): "deepseek_v3_2",
    ("kimi_k3", "<|end_of_msg|>", "<|end_of_msg|>"): "kimi_k3",
    ("solar_open2", "<|im:end|>", "<|im:end|>"): "solar_open_2",
    ("olmo3", "<|im_end|>", "<|im_end|>"): "olmo_3",
    ("apriel", "<|end|>", "<|end|>"): "apriel_1_6",
    ("hunyuan", "<|eos|>", "<|eos|>"): "hunyuan_a13b",
    ("nemotron_nano_v2", "<SPECIAL_12>", "<SPECIAL_12>"): "nemotron_nano_v2",
    ("apertus", "<|assistant_end|>", "<|tools_suffix|>"): "apertus",
    ("internlm2", "<|im_end|>", "<|im_end|>"): "internlm2_5",
    ("functionary", "<|eot_id|>", "<|eom_id|>"): "functionary_3_1",
    ("functionary_v3_2", "<|eot_id|>", "<|eot_id|>"): "functionary_3_2",
    ("pythonic", "<|eot|>", "<|eot|>"): "llama4",
    ("", "<|im_end|>", "<|im_end|>"): "chatml dbrx falcon_mamba phi4 qwen2_5_vl qwen2_5_vl_training",
    ("", "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"): "cohere cohere_training cohere2 cohere2_training",
    ("", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"): (
        "deepseekv3 deepseekv3_training deepseek_v3_1 deepseek_r1_distill deepseek_r1_distill_training"
    ),
    ("", "<end_of_turn>", "<end_of_turn>"): "gemma gemma_training gemma3 gemma3_training",
    ("", "<end_of_utterance>", "<end_of_utterance>"): "idefics3 idefics3_training smolvlm smolvlm_training",
    ("", "</s>", "</s>"): "llava_next llava_next_training mistral_v1 mistral_v2",
    ("", "<|eot_id|>", "<|eot_id|>"): "llama3 llama3_training",
    ("", "<|end|>", "<|end|>"): "phi3 phi3_training phi3_5 phi3_5_training",
}
BY_STEM = {stem: expected for expected, stems in EXPECTED.items() for stem in stems.split()}
SUPPORTED = [stem for stem, expected in BY_STEM.items() if expected[0]]
UNSUPPORTED = [stem for stem, expected in BY_STEM.items() if not expected[0]]
# By name alone: each worker imports this file, and to make a `ChatFormat` of each template takes seconds.
FORMATS = {stem: BY_STEM[stem][0] for stem in SUPPORTED} | GIVEN
WRITTEN_AND_RENDERED = [
    stem for stem, name in FORMATS.items() if stem not in (*CALLS_AS_TEXT, "apriel_1_6") and name in WRITERS
]

by_stem = pytest.mark.parametrize("stem", STEMS)


# --- recognition --------------------------------------------------------------------------------------------------


def test_every_template_is_expected_and_has_its_tokens() -> None:
    assert sorted(BY_STEM) == STEMS
    assert sorted(TOKENS) == STEMS
    assert sum(len(stems.split()) for stems in EXPECTED.values()) == len(STEMS)


@by_stem
def test_format_end_tokens_and_the_reason_of_recognition(stem: str) -> None:
    chat = chat_of(stem)
    name, *ends = BY_STEM[stem]
    assert (getattr(chat.tool_format, "name", ""), not chat.template.tools_problem) == (name, bool(name))
    assert [chat.template.decode([item]) for item in (chat.end_id, chat.call_end_id)] == ends
    assert {chat.end_id, chat.call_end_id} <= chat.end_ids
    assert chat.tokenizer.convert_tokens_to_ids(TOKENS[stem]["eos"])[0] in chat.end_ids
    found = recognise_tool_format(tokenizer_of(stem))
    if name:
        chat.check_tools(TOOLS)
        assert found.reason.startswith("the template's markers")
        assert (found.problem, name in found.looked_for) == ("", False)
    else:
        assert found.format is None
        assert found.problem.startswith("the tokenizer's chat template does not render tools")


@pytest.mark.parametrize("stem", UNSUPPORTED)
def test_a_template_without_tools_is_refused_until_a_format_is_given(stem: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"\['weather'\].*does not render tools.*'react'.*docs/families\.md"
    ) as refused:
        chat_of(stem).check_tools(TOOLS)
    name = GIVEN.get(stem)
    assert (f"but calls of {name}: tool_format={name!r}" in str(refused.value)) == bool(name)
    assert ("but calls of" in str(refused.value)) == bool(name), "add it to GIVEN in tests/chat/families.py"
    chat_of(stem).check_tools([])
    chat_of(stem, "react").check_tools(TOOLS)


@pytest.mark.parametrize("stem", GIVEN)
def test_a_format_may_be_given_to_a_template_that_renders_calls_but_no_tools(stem: str) -> None:
    chat = usable_chat(stem)
    chat.check_tools(TOOLS)
    assert format_name(chat) == GIVEN[stem]
    assert chat.recognition.described_in_prompt
    own = ChatFormat(tokenizer_of(stem), tool_format=lambda text: {"role": "assistant", "content": text})
    assert (format_name(own), own.recognition.described_in_prompt) == ("custom", True)


# --- the matrix ---------------------------------------------------------------------------------------------------


@by_stem
def test_every_no_in_the_matrix_has_a_reason_and_traces_are_exact(stem: str) -> None:
    found = abilities_of(stem)
    tried = [found.one_call, found.two_calls, found.text_and_call, found.thinking_and_call, found.malformed]
    assert all(tried) or stem in UNEXPECTED, "explain in UNEXPECTED what does not work"
    assert found.renders_tools == (stem in SUPPORTED)
    assert (found.preserving == YES) == (not reason_of(stem))
    assert not (NO in found.cells and not notes_of(stem))
    assert found.exact == found.preserving


@pytest.mark.parametrize(
    ("reason", "stem"), [(reason, stem) for reason, (stems, _) in REASONS.items() for stem in stems.split()]
)
def test_a_reason_shows_in_the_rendered_text(reason: str, stem: str) -> None:
    chat, shows = usable_chat(stem), REASONS[reason][1]
    assert any(shows(prompts(stem, chat, five_turns(chat, thought))) for thought in thoughts_of(stem, chat))


def test_every_template_has_its_row() -> None:
    assert sorted(stem for family in FAMILIES for stem in stems_of(family)) == STEMS
    assert {stem for stems in ORIGINAL.values() for stem in stems.split()} <= set(TEMPLATES)


@pytest.mark.parametrize("stem", WRITTEN_AND_RENDERED)
def test_calls_are_written_as_the_template_renders_them(stem: str) -> None:
    """`WRITERS` write the calls that a template does not render after its prompt. Other templates agree."""
    chat = usable_chat(stem)
    turns = five_turns(chat)
    whole = prompts(stem, chat, turns)[-1]
    calls = [written(chat, turn.answer) for turn in turns if turn.answer.get("tool_calls")]
    assert all(call.removeprefix("<｜tool▁calls▁begin｜>") in whole for call in calls)  # DeepSeek V3 sometimes omits it


def test_every_writer_is_compared_but_three() -> None:
    """No template renders calls of `granite3` or `react`. Apriel's template adds ids."""
    compared = {format_name(usable_chat(stem)) for stem in WRITTEN_AND_RENDERED}
    assert compared == WRITERS.keys() - {"granite3", "react", "apriel"}


# --- the page -----------------------------------------------------------------------------------------------------


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_matrix() -> None:
    page = (ROOT / "docs" / "families.md").read_text()
    assert page == generator().with_families(page, matrix(), original_table()), "run: python docs/generate.py"
