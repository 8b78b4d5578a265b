"""What has to be seen to when weights are loaded into one of vLLM's models."""

# pyright: reportMissingImports=false
# vLLM is an extra, and imported where it is needed.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def all_loaded(model: Any) -> Iterator[None]:
    """See to it that what is loaded into one of vLLM's models are all of its weights; vLLM itself goes on without.

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
    """What is to be loaded; ask before loading begins, while tied weights are one."""
    return {name for name, _ in model.named_parameters()}


def check_complete(wanted: set[str], loaded: set[str] | None) -> None:
    """Raises: ValueError: some weights were not loaded (some of vLLM's models do not tell)."""
    missing = set() if loaded is None else wanted - loaded
    if missing:
        raise ValueError(f"the trainer's model lacks weights of vLLM's: {', '.join(sorted(missing))}")


def pack_tied_head(model: Any) -> None:
    """On a CPU vLLM computes logits with a packed copy of the embeddings, which reloading them leaves as it was."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
