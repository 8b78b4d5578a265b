"""Checks of options by their names: those of `TrainingArguments` that mean nothing here, and those of TRL."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import MISSING, fields
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

WITHOUT_EFFECT = frozenset(
    {
        # Episodes are played by the engine, not by a data loader, and not in batches of a fixed size.
        "per_device_eval_batch_size",
        "dataloader_drop_last",
        "dataloader_num_workers",
        "dataloader_prefetch_factor",
        "dataloader_persistent_workers",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
        "dataloader_pin_memory",
        "train_sampling_strategy",
        "length_column_name",
        # There are no labels and no predictions.
        "label_names",
        "label_smoothing_factor",
        "prediction_loss_only",
        "include_for_metrics",
        "eval_accumulation_steps",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        "batch_eval_metrics",
        "do_predict",
        # Always so: generation needs the cache and training does not, and `dapo` counts the tokens of all processes.
        "use_cache",
        "average_tokens_across_devices",
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
    "reward_processing_classes": "a reward function tokenizes what it needs itself",
    "reward_weights": "it is an option: args=GRPOConfig(reward_weights=[...])",
    "data_collator": "there is nothing to collate: episodes become batches here",
    "use_vllm": _GENERATOR,
    "vllm_mode": _GENERATOR,
    "vllm_server_base_url": "give vllm_server_urls=['http://...']",
    "vllm_server_host": "give vllm_server_urls=['http://host:port']",
    "vllm_server_port": "give vllm_server_urls=['http://host:port']",
    "vllm_tensor_parallel_size": "give vllm_engine_kwargs={'tensor_parallel_size': ...}",
    "vllm_max_model_length": "it is called max_model_len",
    "log_completions": "give log_episodes_steps=n: whole episodes go to episodes.jsonl",
    "max_prompt_length": "prompts are never cut: give max_model_len, and overlong_prompts='drop'",
    "max_tool_calling_iterations": "give max_turns, or max_tool_calls",
    "importance_sampling_level": "it follows from loss_type: 'gspo' and 'rloo' have one ratio for each sequence",
    "repetition_penalty": "samples would come from another distribution than the one that is trained",
    "sync_ref_model": "the reference model stays as it was when training began",
    "scale_advantages": "it is called scale_rewards",
}
"""Names that TRL users know, and what to do here."""


def unknown_names(owner: str, given: Iterable[str], known: Collection[str]) -> TypeError:
    """The error for arguments that do not exist, which says what to write instead."""
    hints = []
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


_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def check_types(args: TrainingArguments) -> None:
    """Check the types of numbers and names among gymnast's own options; transformers checks the others.

    Raises:
        TypeError: a value has another type, such as 12.5 or "8" for a whole number.
    """
    inherited = {each.name for each in fields(TrainingArguments)}
    for each in fields(args):
        kind, value = str(each.type).removesuffix(" | None"), getattr(args, each.name)
        if each.name in inherited or kind not in _TYPES or (value is None and each.default is None):
            continue
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise TypeError(f"{each.name} must be of type {each.type}, got {type(value).__name__}: {value!r}")


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
