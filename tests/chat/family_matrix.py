"""The tables of docs/families.md: what works with each chat template, and why something does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from .families import GIVEN, TEMPLATES, chat_of, is_react, usable_chat
from .family_abilities import NO, YES, abilities_of, takes_a_reply_beside_results
from .family_episodes import CALLS_AS_TEXT, ONE_CALL_AN_ANSWER, THOUGHT, format_name

# --- why something does not work ----------------------------------------------------------------------------------


def _drops_thoughts(texts: Sequence[str]) -> bool:
    return THOUGHT in texts[1] and texts[-1].count(THOUGHT) < len(texts) - 1


def _drops_all_thoughts(texts: Sequence[str]) -> bool:
    return all(THOUGHT not in text for text in texts)


def _drops_a_prompts_end(texts: Sequence[str]) -> bool:
    return any(not texts[-1].startswith(text) and texts[-1].startswith(text[:-60]) for text in texts[:-1])


def _drops_an_instruction(texts: Sequence[str]) -> bool:
    return [text.count("Write 'Action:'") for text in texts[:3]] == [1, 1, 1]


def _moves_tools(texts: Sequence[str]) -> bool:
    return texts[0].index("Tells the weather") < texts[0].index("Zürich") < texts[-1].index("Tells the weather")


def _marks_the_first_results(texts: Sequence[str]) -> bool:
    return texts[2].count("<｜tool▁outputs▁begin｜>") == texts[1].count("<｜tool▁outputs▁begin｜>") == 1


def _ends_results_otherwise(texts: Sequence[str]) -> bool:
    before, after = (text.partition("Sunny in Zurich.")[2] for text in texts[1:3])
    return bool(before) and not after.startswith(before)


Check = Callable[[Sequence[str]], bool]
# Why a template is not prefix-preserving: the reason, the templates, and a check that finds it in the texts of
# `prompts` of an episode of five turns.
REASONS: dict[str, tuple[str, Check]] = {
    "drops the thoughts of earlier questions": (
        "diffusion_gemma diffusion_gemma_training gemma4 gemma4_v3 gemma4_v4 gemma4_v5 "
        "glm4moe glm4moe_training glm_4_6 glm_4_7 gptoss gptoss_training "
        "kimi_k2_thinking lfm2_2_5_v2 lfm2_2_5_vl minimax_m2 "
        "nemotron_3_nano nemotron_3_nano_training nemotron_3_super nemotron_3_super_training "
        "nemotron_3_ultra nemotron_3_ultra_training nemotron_3_5_lightning nemotron_3_5_lightning_training "
        "deepseek_v3_2 qwen3 qwen3_5_think qwen3_6 solar_open_2",
        _drops_thoughts,
    ),
    "drops all thoughts": (
        "apriel_1_6 deepseek_r1 deepseek_r1_distill deepseek_r1_distill_training nemotron_nano_v2",
        _drops_all_thoughts,
    ),
    "drops the mark that its prompts end with after results": ("apertus", _drops_a_prompts_end),
    "drops the empty thoughts that its prompts end with": ("qwen3_5_nothink command_r7b", _drops_a_prompts_end),
    "ends a prompt with an instruction that it drops later": ("command_r", _drops_an_instruction),
    "drops all thoughts; marks the beginning of the first results only": (
        "deepseekv3 deepseekv3_training",
        _marks_the_first_results,
    ),
    "shows its tools before the last question only": ("mistral_v3 mistral_nemo mistral_small_3_2", _moves_tools),
    "ends results differently once an answer follows": ("hermes_3", _ends_results_otherwise),
}


def reason_of(stem: str) -> str:
    """Why a template is not prefix-preserving; empty if it is."""
    return next((reason for reason, (stems, _) in REASONS.items() if stem in stems.split()), "")


def notes_of(stem: str) -> list[str]:
    """Notes on a template: its peculiarities, and why something does not work."""
    native, chat = chat_of(stem), usable_chat(stem)
    notes = []
    if stem in GIVEN:
        notes.append(f'renders calls but no tools: `tool_format="{GIVEN[stem]}"`')
    elif native.recognition.problem:
        notes.append('renders no tools: `tool_format="react"`')
    if stem == "phi4_mini":
        notes.append("tools go into the system message")
    if format_name(chat) in ONE_CALL_AN_ANSWER:
        notes.append("renders one call an answer; more are read and answered anyway")
    if stem in CALLS_AS_TEXT:
        notes.append("renders no calls")
    if format_name(chat) == "command_r7b":
        notes.append("numbers the calls of the episode")
    opens = chat.endings.call_end is not None and chat.endings.call_end.opens_next
    if opens and chat.call_end_id != chat.end_id and not is_react(chat):
        notes.append("the token that ends a call begins its results")
    if format_name(chat) == "llama3":
        notes.append("a call after a text needs `<|python_tag|>`")
    if not takes_a_reply_beside_results(chat):
        notes.append("refuses a user's message right after results")
    return [*notes, *filter(None, [reason_of(stem), UNEXPECTED.get(stem, "")])]


# Other things that do not work, and why.
UNEXPECTED: dict[str, str] = {}


# --- the tables ---------------------------------------------------------------------------------------------------


FAMILIES = {
    "ChatML": "chatml",
    "Command R, Command R+": "command_r",
    "Command R7B, Command A": "command_r7b",
    "Aya Expanse": "cohere",
    "Tiny Aya": "cohere2",
    "Apertus": "apertus",
    "Apriel 1.6": "apriel_1_6",
    "DBRX": "dbrx",
    "DeepSeek V3": "deepseekv3",
    "DeepSeek V3.1": "deepseek_v3_1",
    "DeepSeek V3.2": "deepseek_v3_2",
    "DeepSeek R1": "deepseek_r1",
    "DeepSeek R1 Distill": "deepseek_r1_distill",
    "Falcon Mamba": "falcon_mamba",
    "Gemma, Gemma 2": "gemma",
    "Gemma 3": "gemma3",
    "Gemma 4": "gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5",
    "DiffusionGemma": "diffusion_gemma",
    "Functionary": "functionary_3_1 functionary_3_2",
    "FunctionGemma": "functiongemma",
    "GLM-4.5, 4.6, 4.7": "glm4moe glm_4_6 glm_4_7",
    "GPT-OSS": "gptoss",
    "Granite 3, 4": "granite_3_0 granite_3_3 granite_4",
    "Hermes 3": "hermes_3",
    "Hunyuan A13B": "hunyuan_a13b",
    "Idefics 3": "idefics3",
    "InternLM 2.5": "internlm2_5",
    "Kimi K2": "kimi_k2 kimi_k2_thinking",
    "Kimi K3": "kimi_k3",
    "LFM2, LFM2.5": "lfm2 lfm2_v2 lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl",
    "Llama 3": "llama3",
    "Llama 3.1, 3.2": "llama3_1 llama3_2",
    "Llama 4": "llama4",
    "LLaVA-NeXT": "llava_next",
    "MiniMax M2": "minimax_m2",
    "Mistral 7B 0.1, 0.2": "mistral_v1 mistral_v2",
    "Mistral 7B 0.3, Nemo": "mistral_v3 mistral_nemo",
    "Mistral Small 3.2, Magistral": "mistral_small_3_2 magistral",
    "Muse Glimmer": "muse_glimmer",
    "Nemotron 3": "nemotron_3_nano nemotron_3_super nemotron_3_ultra nemotron_3_5_lightning",
    "Nemotron Nano v2": "nemotron_nano_v2",
    "OLMo 3": "olmo_3",
    "Phi 3, 3.5": "phi3 phi3_5",
    "Phi 4": "phi4",
    "Phi 4 mini": "phi4_mini",
    "Qwen 2.5": "qwen2_5 qwen2_5_vl",
    "Qwen 3": "qwen3 qwen3_instruct_2507 qwen3_vl",
    "Qwen 3 Coder": "qwen3_coder",
    "Qwen 3.5 and later": "qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8",
    "Seed-OSS": "seed_oss",
    "SmolLM3": "smollm3",
    "SmolVLM": "smolvlm",
    "Solar Open 2": "solar_open_2",
}
HEADINGS = [
    "Family",
    "Templates",
    "Tool format",
    "Renders tools",
    "One call",
    "Two calls",
    "Text, call",
    "Thought, call",
    "Malformed call",
    "Prefix-preserving",
    "Exact trace",
    "Ends an answer / a call",
    "Note",
]


def stems_of(family: str) -> list[str]:
    """The templates of a family, those for training too."""
    return [item for name in FAMILIES[family].split() for item in (name, f"{name}_training") if item in TEMPLATES]


def matrix() -> str:
    """The table of all templates in Markdown. Templates of a family with the same results share a row."""
    rows = [HEADINGS, ["---"] * len(HEADINGS)]
    for family in FAMILIES:
        alike: dict[tuple[str, ...], list[str]] = {}
        for stem in stems_of(family):
            alike.setdefault((*abilities_of(stem).cells, "; ".join(notes_of(stem))), []).append(stem)
        rows += [[family, ", ".join(f"`{stem}`" for stem in stems), *cells] for cells, stems in alike.items()]
    return _markdown(rows)


# Families as the original work lists them, and their templates here.
ORIGINAL = {
    "Cohere": "cohere command_r command_r7b",
    "Dbrx": "dbrx",
    "DeepSeek V3": "deepseekv3",
    "Falcon Mamba": "falcon_mamba",
    "Gemma": "gemma",
    "Gemma 2": "gemma",
    "GPT-OSS": "gptoss",
    "Llama 3": "llama3",
    "Llama 3.1": "llama3_1",
    "Llama 3.2": "llama3_2",
    "Mistral 0.1": "mistral_v1",
    "Mistral 0.2": "mistral_v2",
    "Phi 3": "phi3",
    "Qwen 2.5": "qwen2_5",
    "Qwen 3": "qwen3",
}


def original_table() -> str:
    """The families of the original work in Markdown."""
    headings = ["Family", "Template", "Tool calls", "Prefix-preserving", "Works here", "Why"]
    rows = [headings, ["---"] * len(headings)]
    rows += [[family, *_original_row(stem)] for family, stems in ORIGINAL.items() for stem in stems.split()]
    return _markdown(rows)


def _original_row(stem: str) -> list[str]:
    chat, abilities = usable_chat(stem), abilities_of(stem)
    calls = YES if abilities.renders_tools else NO
    works = YES if abilities.one_call and abilities.malformed else NO
    told = f"`{format_name(chat)}` is recognised" if abilities.renders_tools else ""
    appended = "" if abilities.preserving == YES else "tokens are appended, so this does no harm"
    return [f"`{stem}`", calls, abilities.preserving, works, "; ".join(filter(None, [told, *notes_of(stem), appended]))]


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(re.sub('[|]', chr(92) + '|', cell) for cell in row)} |\n" for row in rows)
