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
from . import objective_rules as objective
from .config import AgentConfig
from .derived import learning_settings, parts_of_round, play_settings, sampling_of
from .inherited import LOADER_OPTIONS, REFUSED, WITHOUT_EFFECT

GENERATORS: dict[str, str] = {
    "transformers": "generation_rows",
    "vllm": "generation_rows vllm_gpu_memory_utilization vllm_enable_sleep_mode vllm_engine_kwargs vllm_request_seeds",
    "vllm-server": "vllm_server_urls vllm_server_timeout vllm_group_port vllm_request_seeds",
}
"""The options that each generator reads."""

# --- Options of transformers ---


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


def options_without_effect(args: AgentConfig) -> None:
    """Options in `WITHOUT_EFFECT` that differ from their default are a warning."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(TrainingArguments)
    }
    if args.use_cpu:
        del defaults["dataloader_pin_memory"]  # transformers sets it to False then
    if args.eval_strategy != "no":
        del defaults["do_eval"]  # transformers sets it to True then
    changed = [
        f"{name} ({reason})"
        for name, reason in WITHOUT_EFFECT.items()
        if name in defaults and getattr(args, name) != defaults[name]
    ]
    given: Any = args.accelerator_config
    usual = vars(AcceleratorConfig())
    if isinstance(given, AcceleratorConfig):  # else the path of a JSON file
        changed += [f"accelerator_config.{name}" for name in LOADER_OPTIONS if getattr(given, name) != usual[name]]
    if changed:
        warnings.warn(f"these options have no effect in {type(args).__name__}: {', '.join(changed)}", stacklevel=5)


# --- Playing ---


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
    per_step = args.per_device_train_batch_size * args.world_size
    if args.generation_batch_size is not None and args.generation_batch_size % per_step:
        raise ValueError(
            f"generation_batch_size={args.generation_batch_size} must be a multiple of "
            f"per_device_train_batch_size x processes = {per_step}"
        )
    parts = parts_of_round(args)
    if args.steps_per_generation not in (None, parts):
        raise ValueError(
            f"steps_per_generation={args.steps_per_generation} and generation_batch_size="
            f"{args.generation_batch_size} say different things: a batch of all processes has {per_step} episodes; "
            f"give one of the two, and None for the other"
        )
    per_process = args.per_device_train_batch_size * parts
    if per_process % args.num_generations:
        raise ValueError(
            f"a process plays per_device_train_batch_size x steps_per_generation = "
            f"{args.per_device_train_batch_size} x {parts} = {per_process} episodes in a "
            f"round, which is not a multiple of num_generations={args.num_generations}; change one of the three"
        )


def overlong_penalty_is_on(args: AgentConfig) -> None:
    """`overlong_buffer` and `overlong_penalty` need each other."""
    buffer, penalty = args.overlong_buffer, args.overlong_penalty
    if buffer > args.max_completion_length:
        raise ValueError(
            f"overlong_buffer={buffer} must be at most max_completion_length={args.max_completion_length}: it is the "
            f"last part of it"
        )
    if buffer and not penalty:
        raise ValueError(f"overlong_penalty=0 switches overlong_buffer={buffer} off: set overlong_buffer=0")
    if penalty != 1.0 and not buffer:
        raise ValueError(
            f"overlong_penalty={penalty} needs overlong_buffer=n: the reward falls in the last n tokens before "
            f"max_completion_length"
        )


def overlap(args: AgentConfig) -> None:
    """Rollouts that overlap with updates need a correction, and exclude refills and sleep."""
    if not args.max_staleness:
        return
    given = f"max_staleness={args.max_staleness}"
    if learning_settings(args).correction == "none":
        may_correct = sampling_of(args).is_full_distribution
        remedy = "leave correction out, or set it to 'tis'" if may_correct else "switch off top_p, top_k and min_p"
        raise ValueError(
            f"{given} trains on samples of older weights, which is wrong without a correction, and correction is "
            f"'none': {remedy}, or set max_staleness=0"
        )
    if args.max_refills:
        raise ValueError(
            f"max_refills={args.max_refills} replaces groups of a round, and with {given} the groups of the next "
            f"rounds are in flight already: set one of the two to 0"
        )
    if args.vllm_enable_sleep_mode:
        raise ValueError(
            f"vllm_enable_sleep_mode=True lets the generator sleep while the model trains, and with {given} it "
            f"generates meanwhile: set one of the two to its default"
        )


def read_by_the_generator(args: AgentConfig) -> None:
    """An option of another generator is an error."""
    if isinstance(args.vllm_server_urls, str):
        raise ValueError(f"vllm_server_urls must be a list; write [{args.vllm_server_urls!r}]")
    read = {name: options.split() for name, options in GENERATORS.items()}
    ignored = sorted(set(changed_options(args)) - set(read[args.generator]))
    if ignored:
        readers = [name for name, options in read.items() if set(ignored) <= set(options)]
        advice = f" (generator={' or '.join(map(repr, readers))} does)" if readers else ""
        raise ValueError(f"generator={args.generator!r} does not read {', '.join(ignored)}{advice}")


def changed_options(args: AgentConfig) -> list[str]:
    """Return the options of generators that differ from their default."""
    names = {name for options in GENERATORS.values() for name in options.split()}
    return [field.name for field in fields(args) if field.name in names and getattr(args, field.name) != field.default]


def settings_of_playing(args: AgentConfig) -> None:
    """Sampling, budgets, limits, rewards and the treatment of failures check their own ranges."""
    _ = play_settings(args, max_model_len=args.max_model_len or 1)
    _ = OnFailure.parse(args.on_failure), Rewards(timeout=args.reward_timeout)


RULES: tuple[Callable[[AgentConfig], None], ...] = (
    options_without_effect,
    refused_options,
    one_greedy_episode,
    whole_batches,
    objective.paper_of_the_loss,
    objective.read_by_the_loss,
    objective.correction,
    objective.advantages,
    objective.bounds_of_the_ratio,
    objective.reference,
    objective.entropy,
    overlong_penalty_is_on,
    overlap,
    read_by_the_generator,
    settings_of_playing,
)
