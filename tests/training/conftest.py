"""Fixtures of the tests of training."""

from __future__ import annotations

from typing import Any

import pytest

from .buttons import ScriptedGenerator


def _refuse(request: Any) -> list[int]:
    raise AssertionError("something was generated")


@pytest.fixture
def silent() -> Any:
    """A generator that must get no request. The fixture checks this at the end."""
    generator = ScriptedGenerator(_refuse)
    yield generator
    assert generator.requests == []
