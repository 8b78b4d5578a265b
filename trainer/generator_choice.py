"""The generator that the configuration names, and the options that mean something to it."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import torch
from transformers import PreTrainedModel

from .generation.contract import Generator
from .generation.transformers_generator import TransformersGenerator

GENERATORS = {
    "transformers": ("generation_rows",),
    "vllm": ("generation_rows", "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_engine_kwargs"),
    "vllm-server": ("vllm_server_urls", "vllm_server_timeout", "vllm_group_port"),
}
"""The generators that `generator=` names, each with the options that it reads."""


def check_generator_options(args: Any) -> None:
    """Check the options of an `AgentConfig` that concern generation.

    Raises:
        ValueError: the generator does not read an option that was set, or the servers are not a list.
    """
    if isinstance(args.vllm_server_urls, str):
        raise ValueError(f"vllm_server_urls must be a list; write [{args.vllm_server_urls!r}]")
    ignored = sorted(set(_changed(args)) - set(GENERATORS[args.generator]))
    if ignored:
        readers = [name for name, options in GENERATORS.items() if set(ignored) <= set(options)]
        advice = f" (generator={' or '.join(map(repr, readers))} does)" if readers else ""
        raise ValueError(f"generator={args.generator!r} does not read {', '.join(ignored)}{advice}")


def check_generator(args: Any, generator: Generator | None) -> None:
    """Check a generator that was given, and warn of options that only the trainer's own generators read.

    Raises:
        TypeError: it is no `Generator`.
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
    changed = _changed(args) + (["generator"] if args.generator != "transformers" else [])
    if changed:
        warnings.warn(f"{', '.join(changed)}: no effect, because a generator was given", stacklevel=4)


def _changed(args: Any) -> list[str]:
    """Options of generators that differ from their default."""
    names = {name for options in GENERATORS.values() for name in options}
    return [each.name for each in fields(args) if each.name in names and getattr(args, each.name) != each.default]


def make_generator(model: PreTrainedModel, args: Any, *, pad_id: int, max_model_len: int) -> Generator:
    """Make the generator of a configuration. vLLM is imported only for a generator that needs it.

    Raises:
        ConfigurationError: vLLM is missing or too old, or a server does not fit this configuration.
    """
    if args.generator == "transformers":
        return TransformersGenerator(model, pad_id=pad_id, max_batch_size=args.generation_rows)
    if args.generator == "vllm":
        from .vllm.in_process import VLLMGenerator

        if args.torch_compile and not torch.cuda.is_available():
            warnings.warn("torch_compile: no effect, because vLLM on a CPU switches it off", stacklevel=4)
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
    from .vllm.servers import VLLMServerGenerator

    return VLLMServerGenerator(
        args.vllm_server_urls or ["http://localhost:8000"],
        max_model_len=max_model_len,
        timeout=args.vllm_server_timeout,
        group_port=args.vllm_group_port,
    )
