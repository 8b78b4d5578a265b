"""Compares gymnast's formats with other parsers on the texts of `parser_cases`, and records the outcomes.

    .venv/bin/python -m benchmarks.formats.parser_outcomes transformers
    .venv-vllm/bin/python -m benchmarks.formats.parser_outcomes vllm

write what is found into benchmarks/formats/parser_outcomes.json, and from it the tables of docs/parsers.md and of
docs/how_to/serve.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from gymnast.trainer import FORMATS
from gymnast.trainer.testing.tiny import make_tiny_tokenizer
from gymnast.trainer.tool_calls.assistant_message import split_thinking

from .family_syntax import FAMILIES
from .parser_cases import TOOLS, texts
from .parser_differences import JUDGEMENTS, judgements_of

Outcome = dict[str, Any]
"""`content`, `thinking`, `calls` as (name, arguments), and `malformed`; or `raises`, the type of the exception."""

RECORD = Path(__file__).with_name("parser_outcomes.json")
DOCS = Path(__file__).parents[2] / "docs"

TRANSFORMERS = {  # TRL's response templates, and gymnast's formats for the same models
    "qwen3_template": "hermes",
    "qwen3_5_template": "qwen3_coder",
    "glm4moe_template": "glm4",
    "gemma4_template": "gemma4",
    "llama3_template": "llama3",
    "gptoss_template": "harmony",
    "lfm2_2_5_template": "lfm2",
}
VLLM = {  # vLLM's tool parsers, and gymnast's formats for the same models
    "hermes": ("hermes",),
    "granite4": ("hermes",),
    "qwen3_coder": ("qwen3_coder",),
    "seed_oss": ("seed_oss",),
    "minimax_m2": ("minimax_m2",),
    "glm45": ("glm4",),
    "gemma4": ("gemma4",),
    "functiongemma": ("functiongemma",),
    "deepseek_v3": ("deepseek_v3",),
    "deepseek_v31": ("deepseek_v3_1",),
    "kimi_k2": ("kimi_k2",),
    "mistral": ("mistral", "mistral_v11"),
    "lfm2": ("lfm2",),
    "granite": ("granite3",),
    "llama3_json": ("llama3",),
    "pythonic": ("pythonic",),
    "muse_glimmer": ("atem",),
}
NO_FUNCTIONS = {
    "harmony": "openai",
    "command_r7b": "cohere_command3",
}  # vLLM's server reads these without calling the parser
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
NAMES = {"transformers": "transformers", "vllm": "vLLM"}
PEERS = {
    "transformers": list(TRANSFORMERS.items()),
    "vllm": [(name, family) for name, families in VLLM.items() for family in families],
}


# --- the readings -------------------------------------------------------------------------------------------------


def ours(family: str, text: str) -> Outcome:
    message = FORMATS[family].parse(text, prefix=FAMILIES[family].prefix, tools=TOOLS)
    return {
        "content": str(message.get("content") or "").strip(),
        "thinking": message.get("reasoning_content"),
        "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", [])],
        "malformed": len(message.get("malformed", [])),
    }


@cache
def _tokenizer(family: str) -> Any:
    made = make_tiny_tokenizer([])
    made.add_tokens(list(FAMILIES[family].tokens))
    return made


def transformers_outcome(template: str, family: str, text: str) -> Outcome:
    """Called as TRL does: with the end token and the end of the prompt."""
    tokenizer = _tokenizer(family)
    tokenizer.response_template = getattr(import_module("trl.chat_template_utils"), template)
    try:
        found = tokenizer.parse_response(text + FAMILIES[family].end, prefix=FAMILIES[family].prefix, tools=TOOLS)
    except Exception as error:  # how it says that it cannot read an answer
        return {"raises": type(error).__name__}
    return {
        "content": (found.get("content") or "").strip(),
        "thinking": found.get("reasoning_content") or found.get("thinking"),
        "calls": [
            [call["function"]["name"], call["function"].get("arguments")] for call in found.get("tool_calls") or []
        ],
        "malformed": 0,
    }


def vllm_outcome(name: str, family: str, text: str) -> Outcome:
    """Reads the text after the thinking. vLLM leaves thinking to its reasoning parsers; here gymnast removes it."""
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    manager = import_module("vllm.tool_parsers").ToolParserManager
    tokenizer = _cached_by_vllm(family)
    thinking, rest = ours(family, text)["thinking"], text
    markers = FAMILIES[family].thinking
    if markers and not FAMILIES[family].message:  # the others' thoughts are messages, which vLLM passes over
        thinking, rest = split_thinking(text, "", (markers[0].strip(), markers[1].strip()))
    try:
        request = protocol.ChatCompletionRequest(messages=[], tools=TOOLS)
        found = manager.get_tool_parser(name)(tokenizer, request.tools).extract_tool_calls(rest, request)
    except Exception as error:
        return {"raises": type(error).__name__}
    return {
        "content": (found.content or "").strip(),
        "thinking": thinking,
        "calls": [[call.function.name, _read(call.function.arguments)] for call in found.tool_calls],
        "malformed": 0,
    }


@cache
def _cached_by_vllm(family: str) -> Any:
    return import_module("vllm.tokenizers.hf").get_cached_tokenizer(_tokenizer(family))


def _read(arguments: str) -> Any:
    """The arguments, which vLLM returns as JSON; as text if they are not JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


THEIRS: dict[str, Callable[[str, str, str], Outcome]] = {"transformers": transformers_outcome, "vllm": vllm_outcome}


# --- the comparison -----------------------------------------------------------------------------------------------


def same(mine: Outcome, other: Outcome) -> bool:
    """Whether both read the same calls, text and thoughts, or both refuse the answer."""
    if "raises" in other:
        return bool(mine["malformed"]) and not mine["calls"]
    return mine == other


def how(mine: Outcome, other: Outcome) -> str:
    """A few words on how the peer differs from gymnast."""
    if "raises" in other:
        return "raises, and reads nothing"
    if len(other["calls"]) < len(mine["calls"]):
        return "reads fewer calls"
    if len(other["calls"]) > len(mine["calls"]):
        return "reads more calls"
    if other["calls"] != mine["calls"]:
        return "reads other arguments"
    if mine["malformed"]:
        return "takes a broken call for text" if other["content"] else "drops a broken call"
    return "drops text" if len(other["content"]) < len(mine["content"]) else "reads other text"


def shown(outcome: Outcome) -> str:
    """An outcome on one line."""
    if "raises" in outcome:
        return f"raises {outcome['raises']}"
    parts = [
        f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})"
        if isinstance(arguments, dict)
        else f"{name} with {'nothing' if arguments is None else f'the text {arguments!r}'}"
        for name, arguments in outcome["calls"]
    ]
    parts += [f"{outcome['malformed']} malformed"] if outcome["malformed"] else []
    parts += [f"{key} {outcome[key]!r}" for key in ("content", "thinking") if outcome[key]]
    return "; ".join(parts) or "nothing"


def compare(side: str, name: str, family: str) -> dict[str, Any]:
    """The number of texts that are read alike, and the other cases with both outcomes."""
    differ: dict[str, Any] = {}
    compared = list(texts(family))
    for case, text in compared:
        mine, other = (
            json.loads(json.dumps(outcome)) for outcome in (ours(family, text), THEIRS[side](name, family, text))
        )
        if not same(mine, other):
            differ[case] = {"how": how(mine, other), "ours": shown(mine), "theirs": shown(other)}
    return {"alike": len(compared) - len(differ), "differ": differ}


def readers_in_vllm() -> dict[str, list[str]]:
    """Each of vLLM's parsers, and the families of ours whose calls it finds."""
    known = import_module("vllm.tool_parsers").ToolParserManager.list_registered()
    return {name: [family for family in FAMILIES if _finds_calls(name, family)] for name in known}


def _finds_calls(name: str, family: str) -> bool:
    for case in ("one call", "two calls"):
        text = dict(texts(family))[case]
        found = vllm_outcome(name, family, text).get("calls", [])
        if [tool for tool, _ in found] != [tool for tool, _ in ours(family, text)["calls"]]:
            return False
    return True


def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def differences(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Each difference: side, peer with family, case, and what they do."""
    for side in PEERS:
        for peer, found in record.get(side, {}).items():
            for case, both in found["differ"].items():
                yield side, peer, case, both["how"]


# --- the page -----------------------------------------------------------------------------------------------------


def with_tables(path: Path, record: Mapping[str, Any]) -> str:
    """The text of a page, with its tables between their markers."""
    page = path.read_text()
    for name, table in TABLES[path].items():
        begin, end = f"<!-- {name}: written by benchmarks/formats/parser_outcomes.py -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{path.name} must have the lines {begin.strip()!r} and {end.strip()!r}")
        page = f"{before}{begin}\n{_markdown(table(record))}\n{end}{after}"
    return page


def _markdown(rows: Iterator[tuple[str, ...]]) -> str:
    head, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *body))


def _comparison(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "Format", "Compared with", "Read alike", "Differences"
    for side in PEERS:
        for peer, found in record[side].items():
            name, _, family = peer.partition(" / ")
            total = found["alike"] + len(found["differ"])
            marks: dict[str, list[str]] = {}
            for case, both in found["differ"].items():
                [judgement] = judgements_of(side, peer, case, both["how"])
                marks.setdefault(judgement.key, []).append(case)
            listed = "; ".join(f"{key}: {', '.join(cases)}" for key, cases in sorted(marks.items()))
            yield f"`{family}`", f"{NAMES[side]} `{name}`", f"{found['alike']} of {total}", listed


def _judgements(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "", "They", "Who is right", "Why"
    for judgement in JUDGEMENTS:
        does = sorted({found[-1] for found in differences(record) if judgement in judgements_of(*found)})
        yield judgement.key, "; ".join(does), judgement.right, judgement.why


def _vllm(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "vLLM's parser", "finds the calls of gymnast's formats"
    for name, families in record["vllm_reads"].items():
        if families:
            yield f"`{name}`", ", ".join(f"`{family}`" for family in families)
    others = [name for name, families in record["vllm_reads"].items() if not families]
    yield ", ".join(f"`{name}`" for name in others), "none: other models, or names only"


def _formats(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "gymnast's format", "`--tool-call-parser`"
    for family in sorted(FORMATS):
        names = [name for name, families in record["vllm_reads"].items() if family in families]
        names = names or (ONE_CALL | NO_FUNCTIONS).get(family, "").split()
        yield f"`{family}`", ", ".join(f"`{name}`" for name in names) or "none"


TABLES = {
    DOCS / "parsers.md": {"comparison": _comparison, "judgements": _judgements, "vllm": _vllm},
    DOCS / "how_to" / "serve.md": {"formats": _formats},
}


def write(side: str) -> None:
    found = {f"{name} / {family}": compare(side, name, family) for name, family in PEERS[side]}
    record = recorded() | {side: found} | ({"vllm_reads": readers_in_vllm()} if side == "vllm" else {})
    RECORD.write_text(json.dumps(record, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    record = recorded()
    unclear = [difference for difference in differences(record) if len(judgements_of(*difference)) != 1]
    if unclear:
        raise SystemExit(f"parser_differences.py has none or several of these differences: {unclear}")
    for path in TABLES:
        path.write_text(with_tables(path, record))


if __name__ == "__main__":
    write(sys.argv[1])
