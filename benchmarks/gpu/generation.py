"""Sampling in bfloat16: gymnast's generator, or vLLM in this process, beside `generate` of transformers.

    python -m benchmarks.gpu.generation --size 0.6B [--generator transformers|vllm] [--small]

prints one line of JSON: tokens a second of 128 simultaneous requests, and the seconds that new weights take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any, cast

import torch
from transformers import Qwen3ForCausalLM

from gymnast.envs.tokens import Tokens
from gymnast.trainer.generation.contract import GenerationRequest, Generator
from gymnast.trainer.generation.sampling import Sampling
from gymnast.trainer.generation.transformers_generator import TransformersGenerator

from .models import DEVICE, described, make_model, synchronize

CONTEXT = 1024


def make_prompts(vocabulary: int, requests: int, length: int) -> list[list[int]]:
    numbers = torch.Generator().manual_seed(0)
    return torch.randint(2, vocabulary, (requests, length), generator=numbers).tolist()


def make_generator(name: str, model: Qwen3ForCausalLM, context: int = CONTEXT) -> Generator:
    if name == "transformers":
        return TransformersGenerator(model)
    from gymnast.trainer.vllm.in_process import VLLMGenerator

    return VLLMGenerator(model, max_model_len=context)


async def sample(generator: Generator, prompts: list[list[int]], tokens: int) -> int:
    """Answer all prompts at once; return the number of sampled tokens."""
    requests = [
        GenerationRequest(prompt=Tokens(ids), max_tokens=tokens, stop_ids=frozenset(), seed=seed, sampling=Sampling())
        for seed, ids in enumerate(prompts)
    ]
    answers = await asyncio.gather(*map(generator.generate, requests))
    return sum(len(answer.token_ids) for answer in answers)


def of_transformers(model: Qwen3ForCausalLM, prompts: list[list[int]], tokens: int) -> float:
    """Tokens a second of `generate`, with all prompts in one batch."""
    ids_BT, generate, started = torch.tensor(prompts, device=DEVICE), cast(Any, model).generate, 0.0
    options: Any = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True, "top_k": 0}
    for repeat in range(2):  # the first time tunes kernels
        synchronize()
        started = time.perf_counter()
        generate(ids_BT, attention_mask=torch.ones_like(ids_BT), **(options if repeat else _short(options)))
        synchronize()
    return len(prompts) * tokens / (time.perf_counter() - started)


def _short(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"max_new_tokens": 8, "min_new_tokens": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", required=True)
    parser.add_argument("--generator", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    size, requests, tokens = ("small", 4, 16) if arguments.small else (arguments.size, 128, 256)
    model = make_model(size, torch.float32 if DEVICE == "cpu" else torch.bfloat16).eval()
    prompts = make_prompts(model.config.vocab_size, requests, length=tokens)
    generator = make_generator(arguments.generator, model)
    try:
        generator.wake()
        synchronize()
        started = time.perf_counter()
        generator.load_weights(model, 0)
        loading = time.perf_counter() - started
        asyncio.run(sample(generator, prompts, 8))
        started = time.perf_counter()
        count = asyncio.run(sample(generator, prompts, tokens))
        values = {"tokens_per_second": count / (time.perf_counter() - started), "load_weights_seconds": loading}
    finally:
        generator.close()
    values["tokens_per_second_of_generate"] = of_transformers(model, prompts, tokens)
    print(json.dumps(described(values)))


if __name__ == "__main__":
    main()
