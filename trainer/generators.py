"""The generator that the configuration names."""

from __future__ import annotations

import warnings

import torch
from transformers import PreTrainedModel

from .config import AgentConfig
from .generation import Generator, TransformersGenerator


def make_generator(model: PreTrainedModel, args: AgentConfig, *, pad_id: int, max_model_len: int) -> Generator:
    """Make it; vLLM is imported only here, and only for a generator that needs it.

    Raises:
        ConfigurationError: vLLM is missing or too old, or a server cannot serve this configuration.
    """
    if args.generator == "transformers":
        return TransformersGenerator(model, pad_id=pad_id, max_batch_size=args.generation_rows)
    if args.generator == "vllm":
        from .vllm import VLLMGenerator

        if args.torch_compile and not torch.cuda.is_available():
            warnings.warn("torch_compile: no effect beside vLLM on a CPU, for which it is switched off", stacklevel=4)
        return VLLMGenerator(
            model,
            max_model_len=max_model_len,
            dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else None,
            max_num_seqs=args.generation_rows,
            gpu_memory_utilization=args.vllm_gpu_memory_utilization,
            enable_sleep_mode=args.vllm_enable_sleep_mode,
            seed=args.seed,
            engine_kwargs=args.vllm_engine_kwargs,
        )
    from .vllm_server import VLLMServerGenerator

    return VLLMServerGenerator(
        args.vllm_server_urls or ["http://localhost:8000"],
        max_model_len=max_model_len,
        timeout=args.vllm_server_timeout,
        group_port=args.vllm_group_port,
    )
