"""The formats benchmark's work with vLLM, as a program of its own: vLLM has a virtual environment of its own.

    python benchmarks/formats/vllm_parsers.py

reads what to measure from the standard input and prints one JSON object, the last line of its output: for each format
the microseconds for one text, or why there is no number. A parser is made for each text, as vLLM does for a request.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from gymnast.trainer.testing.tiny import make_tiny_tokenizer


def main() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    work = json.load(sys.stdin)
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    request = protocol.ChatCompletionRequest(messages=[], tools=work["tools"])
    print(json.dumps({name: measure(given, request, work["rounds"]) for name, given in work["formats"].items()}))


def measure(given: dict[str, Any], request: Any, rounds: int) -> float | str:
    tokenizer: Any = make_tiny_tokenizer([])
    tokenizer.add_tokens(given["tokens"])
    tokenizer = import_module("vllm.tokenizers.hf").get_cached_tokenizer(tokenizer)
    made = import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser(given["parser"])

    def read(text: str) -> Any:
        return made(tokenizer, request.tools).extract_tool_calls(text, request)

    if len(read(given["texts"][0]).tool_calls) != 1:
        return f"vLLM's {given['parser']} does not read it"
    return best_us(read, given["texts"], rounds)


def best_us(read: Callable[[str], object], texts: list[str], rounds: int) -> float:
    """Microseconds for one text, in the best round."""
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        for text in texts:
            read(text)
        seconds.append((time.perf_counter() - started) / len(texts))
    return min(seconds) * 1e6


if __name__ == "__main__":
    main()
