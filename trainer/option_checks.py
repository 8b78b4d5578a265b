"""Checks of single options: their types, values and ranges, and names that are not, or mean nothing, here."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from .generator_choice import GENERATORS
from .learning.advantages import Scale
from .learning.losses import LOSSES
from .rollout.token_policy import OVERLONG_PROMPT_ERRORS

CHOICES: dict[str, Collection[str]] = {
    "generator": GENERATORS,
    "loss_type": LOSSES,
    "scale_rewards": get_args(Scale),
    "overlong_prompts": OVERLONG_PROMPT_ERRORS,
}
"""Options that are names, and the names that they may be."""

_SAPO = ("sapo_temperature_pos", "sapo_temperature_neg")

RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 2 (an advantage compares an episode with others of its group)": (lambda n: n >= 2, ("num_generations",)),
    "at least 1": (
        lambda n: n >= 1,
        (
            *("num_iterations", "num_generations_eval", "steps_per_generation", "generation_batch_size"),
            *("max_concurrency", "generation_rows", "max_tokens_per_batch"),
        ),
    ),
    "at least 0": (
        lambda n: n >= 0,
        ("beta", "epsilon_high", "log_episodes_steps", "overlong_buffer", "overlong_penalty"),
    ),
    "positive": (lambda n: 0 < n < math.inf, ("temperature", "vllm_server_timeout", *_SAPO)),
    "positive, or -1 (num_train_epochs decides)": (lambda n: n != 0, ("max_steps",)),
    "in [0, 1]": (lambda n: 0 <= n <= 1, ("max_failure_rate",)),
    "in [0, 1)": (lambda n: 0 <= n < 1, ("epsilon",)),
    "in (0, 1]": (lambda n: 0 < n <= 1, ("vllm_gpu_memory_utilization",)),
    "a port, or 0 for any free one": (lambda n: 0 <= n < 1 << 16, ("vllm_group_port",)),
}
"""The ranges of numbers, with the test and the options of each. Sampling, budgets and limits check their own."""

WITHOUT_EFFECT = frozenset(
    {
        # Episodes are played by the engine, not by a data loader, and not in batches of a fixed size.
        *("per_device_eval_batch_size", "train_sampling_strategy", "length_column_name", "dataloader_drop_last"),
        *("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"),
        *("dataloader_multiprocessing_context", "dataloader_in_order", "dataloader_pin_memory"),
        # There are no labels and no predictions.
        *("label_names", "label_smoothing_factor", "prediction_loss_only", "include_for_metrics", "do_predict"),
        *("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics"),
        # Always so: generation needs the cache and training does not, and `dapo` counts the tokens of all processes.
        *("use_cache", "average_tokens_across_devices"),
    }
)
"""Options of `TrainingArguments` that mean nothing here; setting one warns."""

_SHARDED = "sharded weights are not supported yet: a checkpoint, a weight transfer and a sampler all read whole weights"

REFUSED = {
    "auto_find_batch_size": "a smaller batch would tear groups apart",
    "bf16_full_eval": "evaluation plays episodes with the weights in training; use bf16=True",
    "fp16_full_eval": "evaluation plays episodes with the weights in training; use fp16=True",
    "neftune_noise_alpha": "with noise in its embeddings the model is another one than the one that sampled",
    "ignore_data_skip": "resuming skips no batch: it goes on at the next round at once",
    "fsdp": _SHARDED,
    "deepspeed": _SHARDED,
    "parallelism_config": _SHARDED,
}
"""Options of `TrainingArguments` that would break training, and why; setting one is an error."""

_GENERATOR = "choose with generator='vllm' (in this process) or generator='vllm-server'"
_WRAP = "wrap the model before you pass it: model=peft.get_peft_model(model, config)"
_ENVIRONMENT = "pass environment=..., a class with @tool methods"

TRL_NAMES = {
    "peft_config": _WRAP,
    "tokenizer": "it is called processing_class",
    "environment_factory": _ENVIRONMENT,
    "tools": _ENVIRONMENT,
    "rollout_func": _ENVIRONMENT,
    "compute_metrics": "environments report metrics in self.metrics, and reward_funcs see whole episodes",
    "reward_processing_classes": "a reward function has a tokenizer of its own",
    "reward_weights": "it is an option: args=GRPOConfig(reward_weights=[...])",
    "data_collator": "there is nothing to collate: episodes become batches here",
    "use_vllm": _GENERATOR,
    "vllm_mode": _GENERATOR,
    "vllm_server_base_url": "give vllm_server_urls=['http://...']",
    "vllm_server_host": "give vllm_server_urls=['http://host:port']",
    "vllm_server_port": "give vllm_server_urls=['http://host:port']",
    "vllm_tensor_parallel_size": "give generator='vllm-server', and --tensor-parallel-size to the servers",
    "vllm_max_model_length": "it is called max_model_len",
    "log_completions": "give log_episodes_steps=n: whole episodes go to episodes.jsonl",
    "max_prompt_length": "prompts are never cut: give max_model_len, and overlong_prompts='drop'",
    "max_tool_calling_iterations": "give max_turns, or max_tool_calls",
    "importance_sampling_level": "it follows from loss_type: 'gspo' and 'rloo' have one ratio for each sequence",
    "repetition_penalty": "samples would come from another distribution than the one that is trained",
    "mask_truncated_completions": "give truncated='mask', or a treatment for each stop reason",
    "sync_ref_model": "the reference model stays as it was when training began",
    "scale_advantages": "it is called scale_rewards",
    "batch_size": "it is called per_device_train_batch_size",
    "per_device_batch_size": "it is called per_device_train_batch_size",
    "max_tokens": "it is called max_completion_length",
    "max_new_tokens": "it is called max_completion_length",
    "lr": "it is called learning_rate",
    "config": "it is called args",
}
"""Names that TRL users know, with the advice for each."""


def unknown_names(owner: str, given: Iterable[str], known: Collection[str]) -> TypeError:
    """The error for arguments that do not exist, with the names to write instead."""
    hints = []
    known = [name for name in known if name not in WITHOUT_EFFECT and name not in REFUSED]
    for name in given:
        near = difflib.get_close_matches(name, known, n=1)
        hint = TRL_NAMES.get(name) or (f"did you mean {near[0]!r}?" if near else "")
        hints.append(f"{name!r}" + (f" ({hint})" if hint else ""))
    return TypeError(f"{owner} has no {', '.join(hints)}")


def options_without_effect(args: TrainingArguments) -> list[str]:
    """The options in `WITHOUT_EFFECT` that differ from their default."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(TrainingArguments)
    }
    changed = [name for name in sorted(WITHOUT_EFFECT) if name in defaults and getattr(args, name) != defaults[name]]
    given: Any = args.accelerator_config or {}
    given = vars(given) if isinstance(given, AcceleratorConfig) else given
    usual = vars(AcceleratorConfig())
    loader_options = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler")
    if isinstance(given, dict):  # else the path of a JSON file
        changed += [
            f"accelerator_config.{name}" for name in loader_options if given.get(name, usual[name]) != usual[name]
        ]
    return changed


_TYPES: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def check_values(args: TrainingArguments) -> None:
    """Check the types, names and ranges of gymnast's own options; transformers checks the others.

    Raises:
        TypeError: a value has another type, such as 12.5 or "8" for a whole number.
        ValueError: a name is unknown, or a number is out of its range.
    """
    inherited = {each.name for each in fields(TrainingArguments)}
    for name, hint in get_type_hints(type(args)).items():
        parts, value = get_args(hint), getattr(args, name)
        kind = parts[0] if parts[1:] == (NoneType,) else hint
        if name in inherited or kind not in _TYPES or (value is None and kind is not hint):
            continue
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}: {value!r}")
    for name, known in CHOICES.items():
        if getattr(args, name) not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(args, name)!r}")
    for text, (holds, names) in RANGES.items():
        for name in names:
            value = getattr(args, name)
            if value is not None and not holds(value):
                raise ValueError(f"{name} must be {text}, got {value}")


def check_refused(args: TrainingArguments) -> None:
    """Check that no option is set that would break training.

    Raises:
        ValueError: one is; the message says why.
    """
    for name, reason in REFUSED.items():
        if getattr(args, name):
            raise ValueError(f"{name}={getattr(args, name)!r} cannot work here: {reason}")
    if args.remove_unused_columns:
        raise ValueError("remove_unused_columns=True would remove the columns that environments read; leave it False")
    if args.metric_for_best_model in ("loss", "eval_loss"):
        raise ValueError("metric_for_best_model='loss' does not exist: evaluation has no loss; use 'reward'")
