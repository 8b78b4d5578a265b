"""The generator of a configuration."""

from __future__ import annotations

import warnings

import torch
from transformers import PreTrainedModel

from ...envs.core import ConfigurationError
from ..generation.contract import Generator
from ..generation.transformers_generator import TransformersGenerator
from ..models.adapters import has_adapter
from ..models.images import ImageEncoder
from ..options.config import AgentConfig
from ..options.rules import changed_options
from ..options.sharding import check_deepspeed, shards_weights, zero_stage
from ..rollout.overlap.turn_gate import TurnGate


def check_generator(args: AgentConfig, generator: Generator | None) -> None:
    """Raise a TypeError or ValueError if a given generator does not fit; warn of options that only the trainer's read.

    It may not share weights in training that change while it samples, nor compute in another precision.
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
    dtype = _precision(args)
    if isinstance(generator, TransformersGenerator) and generator.copies and generator.dtype != dtype:
        raise ValueError(
            f"this TransformersGenerator samples with a copy in {generator.dtype or 'the precision of its weights'}, "
            f"and the trainer computes in {dtype or 'that of the weights'}: give TransformersGenerator(..., "
            f"dtype={dtype})"
        )
    changed = changed_options(args) + (["generator"] if args.generator != "transformers" else [])
    if changed:
        warnings.warn(f"{', '.join(changed)}: no effect, because a generator was given", stacklevel=4)


def check_sharding(args: AgentConfig, generator: Generator | None) -> None:
    """Raise a ConfigurationError if weights cannot be sharded as accelerate was told, or a generator gets parts."""
    check_deepspeed(args)
    with_model = args.generator == "transformers" if generator is None else isinstance(generator, TransformersGenerator)
    if shards_weights(args) and with_model:
        raise ConfigurationError(
            "the weights are sharded over the processes, and generator='transformers' would gather them for every "
            "token: use generator='vllm-server', or 'vllm' where a whole model fits beside each part"
        )


def check_images(args: AgentConfig, images: ImageEncoder | None) -> None:
    """Raise a ConfigurationError if an option needs images and the model takes none."""
    for name in ("freeze_vision", "max_image_pixels"):
        if images is None and getattr(args, name):
            raise ConfigurationError(
                f"{name}={getattr(args, name)} has no effect on a training without images: leave it out, or give a "
                f"model that takes images, with its processor"
            )


def check_model_can_be_sharded(args: AgentConfig, model: PreTrainedModel) -> None:
    """Raise a ConfigurationError if ZeRO-3 would shard an adapter, which cannot be merged into parts of weights."""
    if zero_stage(args) == 3 and has_adapter(model):
        raise ConfigurationError(
            "ZeRO-3 does not work with an adapter, which generators get merged into the weights: use FSDP2 "
            "(examples/accelerate/fsdp2.yaml), or ZeRO-2 where the frozen weights fit on each GPU"
        )


def _precision(args: AgentConfig) -> torch.dtype | None:
    """The precision of the trainer's matrix products; None: that of the weights."""
    return torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None


def make_generator(
    model: PreTrainedModel,
    args: AgentConfig,
    given: Generator | None,
    images: ImageEncoder | None,
    pad_id: int,
    max_model_len: int,
) -> Generator:
    """Return the generator that was given, or make that of the configuration.

    With `max_staleness`, it lets the training decide when turns begin. Raise a ConfigurationError if vLLM is missing or
    too old, or a server does not fit this configuration.
    """
    made = _make(model, args, images, pad_id=pad_id, max_model_len=max_model_len) if given is None else given
    return TurnGate(made) if args.max_staleness else made


def _make(
    model: PreTrainedModel, args: AgentConfig, images: ImageEncoder | None, *, pad_id: int, max_model_len: int
) -> Generator:
    """Make the generator of a configuration. vLLM is imported only for a generator that needs it."""
    if args.generator == "transformers":
        copies = args.max_staleness > 0  # episodes are played while the weights in training change
        dtype = _precision(args) if copies else None  # shared weights compute as the trainer does
        return TransformersGenerator(
            model, pad_id=pad_id, max_batch_size=args.generation_rows, copies=copies, dtype=dtype, images=images
        )
    if args.generator == "vllm":
        from ..vllm.in_process import VLLMGenerator

        if args.torch_compile and not torch.cuda.is_available():
            warnings.warn("torch_compile: no effect, because vLLM on a CPU switches it off", stacklevel=5)
        given = args.vllm_engine_kwargs or {}
        return VLLMGenerator(
            model,
            max_model_len=max_model_len,
            dtype=None if (dtype := _precision(args)) is None else str(dtype).removeprefix("torch."),
            max_num_seqs=args.generation_rows,
            gpu_memory_utilization=args.vllm_gpu_memory_utilization,
            enable_sleep_mode=args.vllm_enable_sleep_mode,
            seed=args.seed,
            seeded=args.vllm_request_seeds,
            images=images,
            # The files of an adapter cannot be written from parts of its weights.
            engine_kwargs={"enable_lora": False} | given if shards_weights(args) else given,
        )
    from ..vllm.servers import VLLMServerGenerator

    return VLLMServerGenerator(
        args.vllm_server_urls or ["http://localhost:8000"],
        max_model_len=max_model_len,
        timeout=args.vllm_server_timeout,
        group_port=args.vllm_group_port,
        seeded=args.vllm_request_seeds,
        images=images,
    )
