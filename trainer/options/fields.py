"""Options as fields of dataclasses."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Literal

OnNonFinite = Literal["skip", "stop"]
"""An optimiser step whose loss or gradient is not finite: skip it and go on, or stop training."""


def option(default: Any, text: str) -> Any:
    """A field with a help text, as `transformers.HfArgumentParser` shows it."""
    return field(default=default, metadata={"help": text})


def options_of(config: Any, kind: Any, **others: Any) -> Any:
    """A dataclass of options: each field is one of `others`, or the option of the same name."""
    return kind(**others, **{each.name: getattr(config, each.name) for each in fields(kind) if each.name not in others})
