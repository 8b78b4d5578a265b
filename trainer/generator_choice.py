"""The generator of a configuration."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from transformers import PreTrainedModel

from ..envs.core import ConfigurationError
from .generation.contract import Generator
from .generation.transformers_generator import TransformersGenerator
from .options.generators import changed_options, shards_weights


def check_generator(args: Any, generator: Generator | None) -> None:
    """Check a generator that was given, and warn of options that only the trainer's own generators read.

    Raises:
        TypeError: it is no `Generator`.
        ValueError: it shares the weights in training, and with `max_staleness` they change while it samples.
    """
    if generator is None:
        return
    if isinstance(generator, str):
        raise TypeError(f"the name of a generator is an option: args=GRPOConfig(generator={generator!r})")
    if not isinstance(generator, Generator):
        raise TypeError(
            f"generator must be a gymnast.trainer.Generator, got {type(generator).__name__}; subclass it: it says how "
            f"new weights reach your engine"
        )
    if args.max_staleness and isinstance(generator, TransformersGenerator) and not generator.copies:
        raise ValueError(
            f"max_staleness={args.max_staleness} changes the weights while episodes are played, and this "
            f"TransformersGenerator samples with them: give TransformersGenerator(model, copies=True), or no generator"
        )
    changed = changed_options(args) + (["generator"] if args.generator != "transformers" else [])
    if changed:
        warnings.warn(f"{', '.join(changed)}: no effect, because a generator was given", stacklevel=4)


def check_sharding(args: Any, generator: Generator | None) -> None:
    """Check that the weights can be sharded as accelerate was told, and that no generator samples with parts of them.

    Raises:
        ConfigurationError: the engine is DeepSpeed, or the generator is `transformers`.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise ConfigurationError(
            "DeepSpeed updates the weights inside the backward pass, so a step that must not change them (a skipped "
            "round, a gradient that is not finite) could not be stopped: use FSDP2, which shards as much "
            "(examples/accelerate/fsdp2.yaml)"
        )
    with_model = args.generator == "transformers" if generator is None else isinstance(generator, TransformersGenerator)
    if shards_weights(args) and with_model:
        raise ConfigurationError(
            "FSDP shards the weights over the processes, and generator='transformers' would gather them for every "
            "token: use generator='vllm-server', or 'vllm' where a whole model fits beside each part"
        )


def make_generator(model: PreTrainedModel, args: Any, *, pad_id: int, max_model_len: int) -> Generator:
    """Make the generator of a configuration. vLLM is imported only for a generator that needs it.

    Raises:
        ConfigurationError: vLLM is missing or too old, or a server does not fit this configuration.
    """
    if args.generator == "transformers":
        copies = args.max_staleness > 0  # episodes are played while the weights in training change
        return TransformersGenerator(model, pad_id=pad_id, max_batch_size=args.generation_rows, copies=copies)
    if args.generator == "vllm":
        from .vllm.in_process import VLLMGenerator

        if args.torch_compile and not torch.cuda.is_available():
            warnings.warn("torch_compile: no effect, because vLLM on a CPU switches it off", stacklevel=4)
        given = args.vllm_engine_kwargs or {}
        return VLLMGenerator(
            model,
            max_model_len=max_model_len,
            dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else None,
            max_num_seqs=args.generation_rows,
            gpu_memory_utilization=args.vllm_gpu_memory_utilization,
            enable_sleep_mode=args.vllm_enable_sleep_mode,
            seed=args.seed,
            seeded=args.vllm_request_seeds,
            # The files of an adapter cannot be written from parts of its weights.
            engine_kwargs={"enable_lora": False} | given if shards_weights(args) else given,
        )
    from .vllm.servers import VLLMServerGenerator

    return VLLMServerGenerator(
        args.vllm_server_urls or ["http://localhost:8000"],
        max_model_len=max_model_len,
        timeout=args.vllm_server_timeout,
        group_port=args.vllm_group_port,
        seeded=args.vllm_request_seeds,
    )
