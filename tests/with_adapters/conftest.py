"""Rules of the tests that need packages which do not fit beside the others: make test-adapters."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")  # these packages warn
