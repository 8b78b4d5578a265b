"""Fixtures of the tests that need vLLM: a tiny model, and an engine for each module."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")  # vLLM and its dependencies warn
    config.addinivalue_line("filterwarnings", "ignore:.*reduce_op:FutureWarning")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tiny_tokenizer(["x"], vocab_size=280)


@pytest.fixture
def model(tokenizer: Any) -> Any:
    """Each test's own model. Its weights are so large that tokens differ in probability."""
    return copy.deepcopy(make_tiny_model(tokenizer))


@pytest.fixture(scope="module")
def engine(tokenizer: Any) -> Iterator[Any]:
    """A generator without weights. Each test loads the weights of its model."""
    from gymnast.trainer.vllm.in_process import VLLMGenerator

    generator = VLLMGenerator(make_tiny_model(tokenizer), max_model_len=512)
    yield generator
    generator.close()
