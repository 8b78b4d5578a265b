"""The tokenizer of the pretrained model."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from ..importing import benchmark


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    folder = benchmark("pretrained").model_folder()
    if not folder.is_dir():
        pytest.skip("the pretrained model is not there: make pretrained")
    return AutoTokenizer.from_pretrained(folder)
