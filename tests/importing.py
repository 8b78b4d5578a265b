"""Imports from the folders that tests run and that are no packages."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def benchmark(name: str) -> ModuleType:
    """Return a module of `benchmarks/`. The root is on the path only meanwhile: see tests/conftest.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module(f"benchmarks.{name}")
