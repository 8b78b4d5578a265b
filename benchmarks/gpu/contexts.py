"""Long prompts and long conversations in a generator, in bfloat16.

    python -m benchmarks.gpu.contexts --size 0.6B --what prompts [--small]
    python -m benchmarks.gpu.contexts --size 0.6B --what turns [--generator vllm] [--small]

`prompts`: seconds and megabytes at the peak for 32 to 256 simultaneous prompts of 4,000 tokens in
`TransformersGenerator`, or the error, such as memory that does not suffice. `turns`: seconds of each of 8 turns of 16
conversations that grow by 64 sampled and 256 observed tokens, and how many prompt tokens a cache held. Each prints one
line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import torch

from gymnast.envs.tokens import Tokens
from gymnast.trainer import GenerationRequest, Generator, Sampling, TransformersGenerator
from gymnast.trainer.generation.contract import GenerationError

from .generation import make_generator, make_prompts
from .models import DEVICE, described, free_memory, make_model, peak_megabytes, synchronize

TURNS = 8


def request(prompt: list[int], tokens: int, seed: int, session: object | None = None) -> GenerationRequest:
    options: Any = {"stop_ids": frozenset[int](), "sampling": Sampling(), "session": session}
    return GenerationRequest(prompt=Tokens(prompt), max_tokens=tokens, seed=seed, **options)


def measure_prompts(model: Any, counts: list[int], length: int) -> dict[str, Any]:
    values: dict[str, Any] = {"prompt_tokens": length}
    for rows in counts:
        prompts = make_prompts(model.config.vocab_size, rows, length)
        free_memory()
        generator = TransformersGenerator(model)
        generator.load_weights(model, 0)
        started = time.perf_counter()

        async def answer(generator: Generator = generator, prompts: list[list[int]] = prompts) -> None:
            await asyncio.gather(*[generator.generate(request(ids, 8, seed)) for seed, ids in enumerate(prompts)])

        try:
            asyncio.run(answer())
            values |= {f"seconds_of_{rows}_rows": time.perf_counter() - started}
        except (GenerationError, torch.OutOfMemoryError) as error:
            values |= {f"error_of_{rows}_rows": f"{error!r} caused by {error.__cause__!r}"[:300]}
        finally:
            generator.close()
        values |= {f"megabytes_of_{rows}_rows": peak_megabytes()}
    return values


class Conversation:
    """One conversation's tokens; its identity is the key of its session."""

    def __init__(self, prompt: list[int]) -> None:
        self.ids = prompt


async def measure_turns(
    generator: Generator, vocabulary: int, rows: int, sampled: int, observed: int
) -> dict[str, Any]:
    conversations = [Conversation(prompt) for prompt in make_prompts(vocabulary, rows, observed)]
    observations = make_prompts(vocabulary, rows, observed)
    seconds, prompt_tokens, cached = list[float](), 0, 0
    for turn in range(TURNS):
        synchronize()
        started = time.perf_counter()
        requests = [
            request(conversation.ids, sampled, 100 * turn + seed, conversation)
            for seed, conversation in enumerate(conversations)
        ]
        answers = await asyncio.gather(*map(generator.generate, requests))
        seconds.append(time.perf_counter() - started)
        for conversation, answer, observation in zip(conversations, answers, observations, strict=True):
            prompt_tokens += len(conversation.ids)
            cached += answer.num_cached
            conversation.ids = [*conversation.ids, *answer.token_ids, *observation]
    return {
        "seconds": sum(seconds),
        "seconds_of_first_turn": seconds[0],
        "seconds_of_last_turn": seconds[-1],
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "seconds_of_turns": [round(elapsed, 4) for elapsed in seconds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", required=True)
    parser.add_argument("--what", choices=["prompts", "turns"], required=True)
    parser.add_argument("--generator", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    size = "small" if arguments.small else arguments.size
    model = make_model(size, torch.float32 if DEVICE == "cpu" else torch.bfloat16).eval()
    if arguments.what == "prompts":
        counts, length = ([2, 4], 64) if arguments.small else ([32, 64, 128, 256], 4000)
        print(json.dumps(described(measure_prompts(model, counts, length))))
        return
    shape = (2, 4, 16) if arguments.small else (16, 64, 256)
    generator = make_generator(arguments.generator, model, context=4096)
    try:
        generator.wake()
        generator.load_weights(model, 0)
        asyncio.run(measure_turns(generator, model.config.vocab_size, *shape))  # the first time tunes kernels
        generator.load_weights(model, 1)  # empties the cache
        values = asyncio.run(measure_turns(generator, model.config.vocab_size, *shape))
    finally:
        generator.close()
    print(json.dumps(described(values | {"megabytes": peak_megabytes()})))


if __name__ == "__main__":
    main()
