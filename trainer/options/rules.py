"""Rules: options that exclude each other, need each other, or have no effect together.

Each rule raises an error that names the options, or warns. `RULES` at the end lists them in the order of the checks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from ...envs.engine.failures import OnFailure
from ...envs.rewards import Rewards
from .config import AgentConfig
from .derived import parts_of_round, play_settings
from .inherited import LOADER_OPTIONS, REFUSED, WITHOUT_EFFECT
from .objective_rules import changed, check_read, objective

_OF_VLLM = ("vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_engine_kwargs", "vllm_request_seeds")
GENERATORS = {
    "transformers": ("generation_rows",),
    "vllm": ("generation_rows", *_OF_VLLM),
    "vllm-server": ("vllm_server_urls", "vllm_server_timeout", "vllm_group_port", "vllm_request_seeds"),
}
"""The options that each generator reads."""


def options_without_effect(args: AgentConfig) -> None:
    """Options in `WITHOUT_EFFECT` that differ from their default are a warning."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(TrainingArguments)
        if field.name in WITHOUT_EFFECT
    }
    if args.use_cpu:
        del defaults["dataloader_pin_memory"]  # transformers sets it to False then
    if args.eval_strategy != "no":
        del defaults["do_eval"]  # transformers sets it to True then
    found = [f"{name} ({WITHOUT_EFFECT[name]})" for name, usual in defaults.items() if getattr(args, name) != usual]
    given: Any = args.accelerator_config
    usual = vars(AcceleratorConfig())
    if isinstance(given, AcceleratorConfig):  # else the path of a JSON file
        found += [f"accelerator_config.{name}" for name in LOADER_OPTIONS if getattr(given, name) != usual[name]]
    if found:
        warnings.warn(f"these options have no effect in {type(args).__name__}: {', '.join(found)}", stacklevel=5)


def refused_options(args: AgentConfig) -> None:
    """Options that would break training are errors."""
    for name, reason in REFUSED.items():
        if getattr(args, name):
            raise ValueError(f"{name}={getattr(args, name)!r} cannot work here: {reason}")
    accelerator: Any = args.accelerator_config
    count = (accelerator.gradient_accumulation_kwargs or {}).get("num_steps", 1)  # transformers itself writes 1
    if count != 1:
        raise ValueError(f"num_steps={count} in accelerator_config: write gradient_accumulation_steps={count} instead")
    if args.fsdp_config and not args.fsdp:
        raise ValueError(f"fsdp_config={args.fsdp_config!r} has no effect without fsdp=True")
    if args.remove_unused_columns:
        raise ValueError("remove_unused_columns=True would remove the columns that environments read; leave it False")
    if args.metric_for_best_model in ("loss", "eval_loss"):
        raise ValueError("metric_for_best_model='loss' does not exist: evaluation has no loss; use 'reward'")


def one_greedy_episode(args: AgentConfig) -> None:
    """Several greedy episodes of one task are a warning."""
    warn_of_equal_episodes(args.num_generations_eval, args.eval_temperature, stacklevel=6)


def warn_of_equal_episodes(count: int | None, temperature: float | None, *, stacklevel: int) -> None:
    """Warn if an evaluation plays several greedy episodes of each task."""
    if temperature == 0 and count is not None and count > 1:
        warnings.warn(
            f"an evaluation at temperature 0 plays {count} equal episodes of each task: leave num_generations_eval out "
            f"for one, or set eval_temperature above 0",
            stacklevel=stacklevel,
        )


def whole_batches(args: AgentConfig) -> None:
    """A round must consist of whole batches and whole groups."""
    per_process, asked = args.per_device_train_batch_size, args.generation_batch_size
    per_step = per_process * args.world_size
    if asked is not None and asked % per_step:
        raise ValueError(
            f"generation_batch_size={asked} must be a multiple of per_device_train_batch_size x processes = {per_step}"
        )
    parts = parts_of_round(args)
    if args.steps_per_generation not in (None, parts):
        raise ValueError(
            f"steps_per_generation={args.steps_per_generation} and generation_batch_size={asked} say different things: "
            f"a batch of all processes has {per_step} episodes; give one of the two, and None for the other"
        )
    if per_process * parts % args.num_generations:
        raise ValueError(
            f"a process plays per_device_train_batch_size x steps_per_generation = {per_process} x {parts} = "
            f"{per_process * parts} episodes in a round, which is not a multiple of "
            f"num_generations={args.num_generations}; change one of the three"
        )


def read_by_the_generator(args: AgentConfig) -> None:
    """An option of another generator is an error."""
    if isinstance(args.vllm_server_urls, str):
        raise ValueError(f"vllm_server_urls must be a list; write [{args.vllm_server_urls!r}]")
    check_read(args, "generator", GENERATORS)


def changed_options(args: AgentConfig) -> list[str]:
    """Return the options of generators that differ from their default."""
    return changed(args, dict.fromkeys(name for options in GENERATORS.values() for name in options))


def settings_of_playing(args: AgentConfig) -> None:
    """Sampling, budgets, limits, rewards and the treatment of failures check their own ranges."""
    _ = play_settings(args, max_model_len=args.max_model_len or 1)
    _ = OnFailure.parse(args.on_failure), Rewards(timeout=args.reward_timeout)


RULES: tuple[Callable[[AgentConfig], None], ...] = (
    options_without_effect,
    refused_options,
    one_greedy_episode,
    whole_batches,
    objective,
    read_by_the_generator,
    settings_of_playing,
)
