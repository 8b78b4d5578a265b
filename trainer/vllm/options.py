"""Options of vLLM that the engine in this process and the servers share."""

from __future__ import annotations

from typing import Any

from ..generation.contract import GenerationRequest

CPU_OPTIONS = {
    "enforce_eager": True,
    "block_size": 32,  # the smallest: a prefix is cached in whole blocks, and the rest is computed again
    "enable_chunked_prefill": False,  # a seeded prompt in chunks crashes the engine: CPU generators cannot be rewound
    "kv_cache_memory_bytes": 1 << 30,  # by default vLLM takes nearly all of the machine's memory, or refuses to start
}


def sampling_options(request: GenerationRequest, *, seeded: bool = True) -> dict[str, Any]:
    """Return the request as keyword arguments of vLLM's `SamplingParams`, with its seed or without."""
    return {
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "min_p": request.sampling.min_p,
        "seed": request.seed if seeded else None,
        "max_tokens": request.max_tokens,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,  # stop_token_ids holds every id that ends the answer
        "logprobs": 0,  # only the sampled token's
        "detokenize": False,
    }
