"""Checks of single options: types, values, ranges, unknown names, and options without effect."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from ..learning.advantages import ESTIMATORS, KLIn, Scale
from ..learning.corrections import CORRECTIONS
from ..learning.credit import Credit
from ..learning.losses import LOSSES
from ..rollout.token_policy import OVERLONG_PROMPT_ERRORS
from .fields import OnNonFinite
from .generators import GENERATORS
from .inherited import LOADER_OPTIONS, REFUSED, WITHOUT_EFFECT
from .trl_names import TRL_NAMES

CHOICES: dict[str, Collection[str]] = {
    "generator": GENERATORS,
    "loss_type": LOSSES,
    "advantage_estimator": ESTIMATORS,
    "correction": CORRECTIONS,
    "credit": get_args(Credit),
    "kl_in": get_args(KLIn),
    "scale_rewards": get_args(Scale),
    "overlong_prompts": OVERLONG_PROMPT_ERRORS,
    "on_nonfinite": get_args(OnNonFinite),
}
"""Options whose values are names, and the possible names."""

_SAPO = ("sapo_temperature_pos", "sapo_temperature_neg")

RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 2 (an advantage compares an episode with others of its group)": (lambda n: n >= 2, ("num_generations",)),
    "at least 1": (
        lambda n: n >= 1,
        (
            *("num_iterations", "num_generations_eval", "steps_per_generation", "generation_batch_size"),
            *("max_concurrency", "generation_rows", "max_tokens_per_batch", "ref_model_sync_steps"),
            *("per_device_train_batch_size", "gradient_accumulation_steps", "save_total_limit"),
        ),
    ),
    "at least 0": (
        lambda n: n >= 0,
        (
            *("epsilon_high", "log_episodes_steps", "overlong_buffer", "max_refills", "max_staleness"),
            *("max_grad_norm", "eval_delay", "seed", "data_seed"),
        ),
    ),
    "finite and at least 0": (
        lambda n: 0 <= n < math.inf,
        ("beta", "entropy_coef", "overlong_penalty", "eval_temperature", "learning_rate", "weight_decay"),
    ),
    "finite": (math.isfinite, ("success_reward",)),
    "positive": (
        lambda n: 0 < n < math.inf,
        (
            *("temperature", "delta", "vllm_server_timeout", "stall_warning", *_SAPO),
            *("num_train_epochs", "logging_steps", "eval_steps", "save_steps"),
        ),
    ),
    "positive, or -1 (num_train_epochs decides)": (lambda n: n == -1 or n > 0, ("max_steps",)),
    "in [0, 1]": (lambda n: 0 <= n <= 1, ("max_failure_rate", "discount")),
    "in [0, 1)": (lambda n: 0 <= n < 1, ("epsilon",)),
    "in (0, 1]": (
        lambda n: 0 < n <= 1,
        ("vllm_gpu_memory_utilization", "ref_model_mixup_alpha", "top_entropy_quantile"),
    ),
    "a port, or 0 for any free one": (lambda n: 0 <= n < 1 << 16, ("vllm_group_port",)),
}
"""The ranges of numbers, with the test and the options of each. Sampling, budgets and limits check their own.

It has those options of transformers for which transformers accepts senseless values, or fails later.
"""


def unknown_names(
    owner: str, given: Iterable[str], known: Collection[str], *, config: type[TrainingArguments] | None = None
) -> TypeError:
    """The error for arguments that do not exist, with the names to write instead.

    `config` is a class of options, for the hint that a name belongs into `args=config(...)`.
    """
    hints = []
    known = [name for name in known if name not in WITHOUT_EFFECT and name not in REFUSED]
    options = {each.name for each in fields(config)} if config is not None else set()
    for name in given:
        near = difflib.get_close_matches(name, known, n=1)
        hint = TRL_NAMES.get(name) or (f"did you mean {near[0]!r}?" if near else "")
        if config is not None and name in options:
            hint = f"it is an option: args={config.__name__}({name}=...)"
        hints.append(f"{name!r}" + (f" ({hint})" if hint else ""))
    return TypeError(f"{owner} has no {', '.join(hints)}")


def options_without_effect(args: TrainingArguments) -> list[str]:
    """The options in `WITHOUT_EFFECT` that differ from their default, each with the reason."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(TrainingArguments)
    }
    if args.use_cpu:
        del defaults["dataloader_pin_memory"]  # transformers sets it to False then, so a copy has another value
    if args.eval_strategy != "no":
        del defaults["do_eval"]  # transformers sets it to True then
    changed = [
        f"{name} ({reason})"
        for name, reason in WITHOUT_EFFECT.items()
        if name in defaults and getattr(args, name) != defaults[name]
    ]
    given: Any = args.accelerator_config or {}
    given = vars(given) if isinstance(given, AcceleratorConfig) else given
    usual = vars(AcceleratorConfig())
    if isinstance(given, dict):  # else the path of a JSON file
        changed += [
            f"accelerator_config.{name}" for name in LOADER_OPTIONS if given.get(name, usual[name]) != usual[name]
        ]
    return changed


_TYPES: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def check_values(args: TrainingArguments) -> None:
    """Check the types, names and ranges of gymnast's own options, and of those of transformers in `RANGES`.

    Raises:
        TypeError: a value has another type, such as 12.5 or "8" for a whole number.
        ValueError: a name is unknown, or a number is out of its range.
    """
    ranged = {name for _, names in RANGES.values() for name in names}
    others = {each.name for each in fields(TrainingArguments)} - ranged  # transformers checks them
    for name, hint in get_type_hints(type(args)).items():
        parts, value = get_args(hint), getattr(args, name)
        kind = parts[0] if parts[1:] == (NoneType,) else hint
        if name in others or kind not in _TYPES or (value is None and kind is not hint):
            continue
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}: {value!r}")
    for name, known in CHOICES.items():
        if getattr(args, name) not in (*known, getattr(type(args), name)):  # the default may be None
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(args, name)!r}")
    for text, (holds, names) in RANGES.items():
        for name in names:
            value = getattr(args, name)
            if value is not None and not holds(value):
                raise ValueError(f"{name} must be {text}, got {value}")


def warn_of_equal_episodes(count: int | None, temperature: float | None, *, stacklevel: int) -> None:
    """Warn if an evaluation plays several greedy episodes of each task."""
    if temperature == 0 and count is not None and count > 1:
        warnings.warn(
            f"an evaluation at temperature 0 plays {count} equal episodes of each task: leave num_generations_eval out "
            f"for one, or set eval_temperature above 0",
            stacklevel=stacklevel,
        )


def check_refused(args: TrainingArguments) -> None:
    """Check that no option is set that would break training.

    Raises:
        ValueError: one is; the message says why.
    """
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
