"""The page that shows one training step names functions that exist."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import gymnast.envs
import gymnast.trainer.trainer
from gymnast.trainer import learning


def names() -> list[str]:
    """The names in the right column; a name without a dot belongs to the class of the name before it."""
    assert learning.__doc__ is not None
    found: list[str] = []
    for line in learning.__doc__.splitlines():
        column = line[68:].strip() if line.startswith("    ") else ""
        for name in filter(None, column.split(", ")):
            found.append(name if "." in name else f"{found[-1].rpartition('.')[0]}.{name}")
    return [name.partition("[")[0] for name in found if not name.startswith("transformers.")]


@pytest.mark.parametrize("name", names())
def test_the_functions_of_a_step_exist(name: str) -> None:
    if name.startswith("trainer."):
        owner: object = gymnast.trainer.trainer
        name = name.removeprefix("trainer.")
    elif name.startswith("envs."):
        owner = importlib.import_module("gymnast")
    else:
        owner = gymnast.trainer
    assert pkgutil.resolve_name(f"{owner.__name__}:{name}") is not None  # type: ignore[attr-defined]


def test_every_line_of_a_step_is_read() -> None:
    assert len(names()) > 20
