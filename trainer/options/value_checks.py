"""Checks of single options: types, values, ranges and unknown names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields, replace
from typing import Any, get_type_hints

from transformers import TrainingArguments

from ...sandbox import keywords
from .fields import Allowed
from .inherited import RANGES, REFUSED, WITHOUT_EFFECT
from .trl_names import TRL_NAMES

_TYPES: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def unknown_names(
    owner: str, given: Iterable[str], known: Collection[str], *, config: type[TrainingArguments] | None = None
) -> TypeError:
    """Return the error for arguments that do not exist, with the names to write instead.

    `config` is a class of options, for the hint that a name belongs into `args=config(...)`.
    """
    options = () if config is None else config.__dataclass_fields__
    advice = {name: f"it is an option: args={config.__name__}({name}=...)" for name in options if config is not None}
    known = [name for name in known if name not in WITHOUT_EFFECT and name not in REFUSED]
    return keywords.unknown_names(owner, given, known, {"dataset": "it is called train_dataset", **TRL_NAMES, **advice})


def allowed_values(config: type[TrainingArguments]) -> dict[str, Allowed]:
    """Return the values that each option allows, without the options that transformers checks."""
    own, inherited = get_type_hints(config, include_extras=True), get_type_hints(TrainingArguments)
    allowed = {field.name: Allowed.by(own[field.name]) for field in fields(config)}
    checked_here = {name: values for name, values in allowed.items() if name not in inherited or values.values}
    return checked_here | {name: replace(Allowed.by(inherited[name]), values=limits) for name, limits in RANGES.items()}


def check_values(args: TrainingArguments) -> None:
    """Check the types, names and ranges of gymnast's own options, and of those of transformers in `RANGES`."""
    for name, hint in get_type_hints(TrainingArguments).items():
        value = getattr(args, name)
        if hint in (bool, bool | None) and not isinstance(value, bool | None):  # a text such as "no" would be true
            raise TypeError(f"{name} must be True or False, got {type(value).__name__}: {value!r}")
    for name, allowed in allowed_values(type(args)).items():
        value: Any = getattr(args, name)
        if value is None and allowed.optional:
            continue
        types = _TYPES.get(allowed.type)
        if types and (not isinstance(value, types) or (isinstance(value, bool) and allowed.type is not bool)):
            raise TypeError(f"{name} must be of type {allowed.type.__name__}, got {type(value).__name__}: {value!r}")
        if allowed.values and not allowed.values.holds(value):
            raise ValueError(f"{name} must be {allowed.values.text}, got {value!r}")
