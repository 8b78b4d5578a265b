"""Sharded weights: whether FSDP or DeepSpeed is on, and which of its settings work here."""

from __future__ import annotations

from accelerate.utils import parse_flag_from_env

from ...envs.core import ConfigurationError
from .config import AgentConfig

_REFUSED = {
    "optimizer": "give optim, learning_rate and weight_decay to the trainer's configuration",
    "scheduler": "give lr_scheduler_type and warmup_steps to the trainer's configuration",
    "fp16.enabled": "its loss scale skips steps, which count as failures here; use bf16",
    "torch_autocast.enabled": "the policy would be scored in another precision than it is trained in; use bf16",
    "zero_optimization.mics_shard_size": "each process must have one part of each weight",
    "zero_optimization.zero_hpz_partition_size": "each process must have one part of each weight",
    "zero_optimization.zero_quantized_weights": "the policy would be another one than the generator's",
    "zero_optimization.zenflow": "it updates weights late",
}
"""Settings of DeepSpeed that cannot work here, each with the reason or with the option to set instead."""

_OFF = (None, False, "auto", {})


def zero_stage(args: AgentConfig) -> int | None:
    """Return the stage of ZeRO; None without DeepSpeed."""
    return None if args.deepspeed_plugin is None else args.deepspeed_plugin.zero_stage


def check_deepspeed(args: AgentConfig) -> None:
    """Raise a `ConfigurationError` if this training cannot work with the configuration of DeepSpeed."""
    if args.deepspeed_plugin is None:
        return
    if zero_stage(args) not in (2, 3):
        raise ConfigurationError(
            f"DeepSpeed's zero_optimization.stage must be 2 (shards gradients and optimizer) or 3 (and weights), got "
            f"{zero_stage(args)}"
        )
    get = args.deepspeed_plugin.hf_ds_config.get_value
    for name, reason in _REFUSED.items():
        if (value := get(name)) not in _OFF:
            raise ConfigurationError(f"DeepSpeed's {name}={value!r} cannot work here: {reason}")
    if get("bf16.enabled") is True and not args.bf16:
        raise ConfigurationError(
            "DeepSpeed computes in bfloat16 (bf16.enabled, or accelerate's mixed_precision): set bf16=True"
        )
    if get("bf16.check_grad_overflow") is False:
        raise ConfigurationError("DeepSpeed's bf16.check_grad_overflow must be true: a gradient may not be finite")
    if get("zero_optimization.offload_param.device") == "nvme":
        raise ConfigurationError("DeepSpeed's offload_param.device='nvme' cannot work here; use 'cpu'")
    if args.max_staleness:
        raise ConfigurationError(
            f"max_staleness={args.max_staleness} does not work with DeepSpeed, which changes the weights inside the "
            f"backward pass, while they may be on their way to the generator; use FSDP2"
        )


def has_master_weights(args: AgentConfig) -> bool:
    """Return whether DeepSpeed keeps the weights in float32, too, for the optimizer; the model has them in bfloat16."""
    return args.deepspeed_plugin is not None and args.deepspeed_plugin.hf_ds_config.get_value("bf16.enabled") is True


def shards_weights(args: AgentConfig) -> bool:
    """Return whether the options, or the environment that `accelerate launch` sets, ask for FSDP or ZeRO-3."""
    return bool(args.fsdp) or parse_flag_from_env("ACCELERATE_USE_FSDP") or zero_stage(args) == 3
