"""The options of generators, and which generator reads which."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from accelerate.utils import parse_flag_from_env

from .deepspeed import zero_stage

GENERATORS = {
    "transformers": ("generation_rows",),
    "vllm": (
        *("generation_rows", "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_engine_kwargs"),
        "vllm_request_seeds",
    ),
    "vllm-server": ("vllm_server_urls", "vllm_server_timeout", "vllm_group_port", "vllm_request_seeds"),
}
"""The generators that `generator=` names, each with the options that it reads."""


def check_generator_options(args: Any) -> None:
    """Check the options of an `AgentConfig` that concern generation.

    Raises:
        ValueError: the generator does not read an option that was set, or the servers are not a list.
    """
    if isinstance(args.vllm_server_urls, str):
        raise ValueError(f"vllm_server_urls must be a list; write [{args.vllm_server_urls!r}]")
    ignored = sorted(set(changed_options(args)) - set(GENERATORS[args.generator]))
    if ignored:
        readers = [name for name, options in GENERATORS.items() if set(ignored) <= set(options)]
        advice = f" (generator={' or '.join(map(repr, readers))} does)" if readers else ""
        raise ValueError(f"generator={args.generator!r} does not read {', '.join(ignored)}{advice}")


def shards_weights(args: Any) -> bool:
    """Whether the options, or the environment that `accelerate launch` sets, ask for FSDP or ZeRO-3."""
    return bool(args.fsdp) or parse_flag_from_env("ACCELERATE_USE_FSDP") or zero_stage(args) == 3


def changed_options(args: Any) -> list[str]:
    """Options of generators that differ from their default."""
    names = {name for options in GENERATORS.values() for name in options}
    return [each.name for each in fields(args) if each.name in names and getattr(args, each.name) != each.default]
