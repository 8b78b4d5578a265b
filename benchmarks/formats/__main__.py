"""Measures tool-call formats: reading an answer (beside other parsers), recognition, and the tokens of a tool's result.

    python -m benchmarks.formats
    python -m benchmarks.formats --quick          small samples, to see that everything works; writes no results
    python -m benchmarks.formats --vllm none      without vLLM's parsers

prints a table and writes benchmarks/results/formats.json. It takes less than a minute on two cores. An answer is about
200 tokens of text and one call. No text is read twice in a row, so no cache helps.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import transformers

from gymnast.envs import Message
from gymnast.trainer import FORMATS, recognise_tool_format
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

# The templates of the families, and the writers of formats that are not compared, are the tests'.
from tests.chat import families
from tests.tool_calls import writers

from ..figures import Figure, Values, entry, print_table, rounded
from . import family_syntax as texts_of
from . import parser_cases as cases
from . import parser_outcomes as outcomes

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parents[1] / "results" / "formats.json"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
WORDS = "I look at what is known of the place first, and then I ask for the weather of the days that are left. "
CHARACTERS = 700  # about 180 tokens of English, and 20 for the call
ARGUMENTS = {"city": "Zürich", "days": 3}
TARGET_US = 1000
OBSERVED = ("qwen3", "gptoss", "gemma4", "llama3_1", "glm4moe", "mistral_v3")  # templates
PEERS = ("transformers", "vLLM")
ABSENT: Any = None  # where a peer has no parser


@dataclass(kw_only=True, frozen=True)
class Cost(Figure):
    """Microseconds beside those of others."""

    unit: str = "us"
    target: float | None = None

    def ratio(self, value: float | str, peers: dict[str, float | str | None]) -> float | None:
        numbers = [peer for peer in peers.values() if isinstance(peer, float)]
        return None if isinstance(value, str) or not numbers else min(numbers) / value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small samples, to see that everything works; writes no results"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--vllm", default=VLLM, help="a Python that has vLLM (default: %(default)s), or none")
    arguments = parser.parse_args()
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "transformers": transformers.__version__,
    }
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    count, rounds = (2, 1) if arguments.quick else (20, 40)
    answers = {name: [answer(name, number) for number in range(count)] for name in FORMATS}
    ours = {name: reading(name, texts, rounds) for name, texts in answers.items()}
    theirs: dict[str, Values] = {
        "transformers": with_transformers(answers, rounds),
        "vLLM": with_vllm(answers, -(-rounds // 3), str(arguments.vllm)),
    }
    ours |= recognition(families.STEMS[:3] if arguments.quick else families.STEMS)
    ours |= {f"observation_{stem}": observation(stem, count, rounds) for stem in OBSERVED}
    entries = [entry(figure, ours, theirs) for figure in figures()]
    print_table(entries, list(PEERS))
    if not arguments.quick:
        results = {"machine": facts, "figures": entries, "details": {"gymnast": rounded(ours)}}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


def figures() -> list[Figure]:
    parsing = [Cost(key=name, name=f"reading an answer: {name}", target=TARGET_US) for name in FORMATS]
    recognising = [
        Figure(key=f"recognition_{which}", name=f"recognising a template's format: {which}", unit="ms", target=None)
        for which in ("median", "slowest")
    ]
    observing = [Cost(key=f"observation_{stem}", name=f"tokens of a tool's result: {stem}") for stem in OBSERVED]
    return [*parsing, *(_alone(cost) for cost in (*recognising, *observing))]


def _alone(figure: Figure) -> Figure:
    return type(figure)(key=figure.key, name=figure.name, unit=figure.unit, target=None, peers=False)


# --- reading ------------------------------------------------------------------------------------------------------


def answer(name: str, number: int) -> str:
    """Text and a call as a model of this format writes them; each number has a text of its own."""
    text = f"{number}. " + (WORDS * 10)[:CHARACTERS].strip()
    if name not in texts_of.FAMILIES:
        writer = writers.WRITERS[name]
        return writer.answer(writer("weather", **ARGUMENTS), before=text)
    family = texts_of.FAMILIES[name]
    if name == "pythonic":  # nothing may stand beside its calls
        return family.calls(("weather", {**ARGUMENTS, "city": text}))
    if family.message:
        text = family.message.replace("%", text)
    return f"{text}{'<|python_tag|>' if name == 'llama3' else ''}{family.calls(('weather', ARGUMENTS))}"


def best_us(read: Callable[[str], object], texts: Sequence[str], rounds: int) -> float:
    """Return the microseconds for one text in the best round: other load can only add to it."""

    def seconds() -> float:
        started = time.perf_counter()
        for text in texts:
            read(text)
        return (time.perf_counter() - started) / len(texts)

    return min(seconds() for _ in range(rounds)) * 1e6


def reading(name: str, texts: Sequence[str], rounds: int) -> float:
    family = texts_of.FAMILIES.get(name)
    read = partial(FORMATS[name].parse, prefix=family.prefix if family else "", tools=cases.TOOLS)
    message = read(texts[0])
    [call] = message.get("tool_calls", [])
    arguments: Any = call["function"]["arguments"]
    assert arguments["days"] == 3
    assert "malformed" not in message
    return best_us(read, texts, rounds)


def with_transformers(answers: dict[str, list[str]], rounds: int) -> Values:
    """TRL's response templates; of several the one for the format itself."""
    values: Values = {}
    templates = {family: template for template, family in outcomes.TRANSFORMERS.items()}
    tokenizer: Any = make_tiny_tokenizer([])
    for name, texts in answers.items():
        if name not in templates:
            values[name] = ABSENT
            continue
        family = texts_of.FAMILIES[name]
        tokenizer.response_template = getattr(importlib.import_module("trl.chat_template_utils"), templates[name])
        read = partial(tokenizer.parse_response, prefix=family.prefix, tools=cases.TOOLS)
        whole = [f"{text}{family.end}" for text in texts]
        assert len(read(whole[0])["tool_calls"]) == 1, name
        values[name] = best_us(read, whole, rounds)
    return values


def with_vllm(answers: dict[str, list[str]], rounds: int, python: str) -> Values:
    """vLLM's tool parsers, in the virtual environment that has them."""
    if not Path(python).exists():
        return dict.fromkeys(answers, f"not measured: there is no Python at {python!r}")
    parsers = {family: name for name, found in outcomes.VLLM.items() for family in found}
    parsers["hermes"] = "hermes"
    work = {
        "rounds": rounds,
        "tools": cases.TOOLS,
        "formats": {
            name: {"parser": parsers[name], "tokens": texts_of.FAMILIES[name].tokens, "texts": texts}
            for name, texts in answers.items()
            if name in parsers
        },
    }
    program = Path(__file__).with_name("vllm_parsers.py")
    done = subprocess.run([python, program], input=json.dumps(work), capture_output=True, text=True, timeout=300)
    if done.returncode:
        return dict.fromkeys(answers, f"failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict.fromkeys(answers, ABSENT) | json.loads(done.stdout.splitlines()[-1])


# --- the template -------------------------------------------------------------------------------------------------


def recognition(stems: Sequence[str]) -> Values:
    """Milliseconds for each template: of the median, and of the slowest."""
    milliseconds = []
    for stem in stems:
        tokenizer = families.tokenizer_of(stem)
        tokenizer.get_chat_template()
        started = time.perf_counter()
        recognise_tool_format(tokenizer)
        milliseconds.append((time.perf_counter() - started) * 1e3)
    return {"recognition_median": statistics.median(milliseconds), "recognition_slowest": max(milliseconds)}


def observation(stem: str, count: int, rounds: int) -> float:
    """Of one short result, behind a call that ended with its own end token."""
    chat = families.usable_chat(stem)
    tools = families.TOOLS

    def observe(content: str) -> list[int]:
        result: Message = {"role": "tool", "name": "weather", "tool_call_id": "call00000", "content": content}
        return chat.observation_tokens([result], tools=tools, ended_by=chat.call_end_id, last=False).ids

    contents = [f"{number}: sunny, 21 degrees" for number in range(count)]
    assert contents[0] in chat.template.decode(observe(contents[0]))
    return best_us(observe, contents, rounds)


if __name__ == "__main__":
    main()
