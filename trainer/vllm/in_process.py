"""VLLMGenerator: samples with vLLM in this process.

The engine starts with dummy weights. `load_weights` copies all weights of the model in training each time. With a LoRA
adapter that vLLM can compute, it copies the adapter each time and the base weights once.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import atexit
import copy
import logging
import os
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ...envs.core import ConfigurationError
from ...envs.tokens import Tokens
from ..generation.contract import Generation, GenerationRequest, Generator, check_request
from ..models.images import ImageEncoder
from ..models.named_weights import check_loadable, named_weights, whole_weights
from ..models.output_head import inner_model
from . import CPU_OPTIONS, check_vllm, sampling_options
from .engine_thread import EngineThread
from .lora import MERGED_WITH_PICTURES, base_version, load_adapter, lora_options, lora_rank
from .pictures import check_expansion, collapsed, media, probe
from .private_api import lend_processor, replace_weights, unchanged_process

GPU_MEMORY = 0.3  # vLLM's default share of the GPU's memory; training needs the rest
CPU_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # else the first request compiles a function: this takes 9 s and a C++ compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else vLLM pins this whole process to a few cores
}
OWN_OPTIONS = {  # users cannot set them
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enable_prefix_caching": True,
    "logprobs_mode": "processed_logprobs",  # under the distribution that is sampled from
    "disable_log_stats": True,
}
OPTIONS_WITH_IMAGES = {
    "skip_tokenizer_init": False,  # vLLM's processors need the tokenizer
    "mm_device_do_normalize": False,  # it would scale pixels by weights that load_format="dummy" leaves random
    "mm_processor_kwargs": None,  # the trainer's processor works with its own options
    "limit_mm_per_prompt": {"video": 0, "audio": 0},
}

logger = logging.getLogger(__name__)


class VLLMGenerator(Generator):
    """Samples with a vLLM engine in this process, with continuous batching and a prefix cache.

    The engine takes the architecture of the model; `load_weights` copies its weights.

    Args:
        dtype: The dtype vLLM computes in; by default the model's.
        seed: Seeds the engine; requests have seeds of their own.
        seeded: Whether each request has its own seed; without, the same request may get another answer.
        images: Makes the tokens of pictures; None for a model that is shown text only.
        engine_kwargs: Further options of `vllm.EngineArgs`, as are those that are not named here;
            `enable_lora=False` merges a LoRA adapter into the weights.

    Raises:
        ConfigurationError: vLLM is missing or too old, or it refuses the model or an option.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_model_len: int,
        dtype: str | None = None,
        max_num_seqs: int = 256,
        gpu_memory_utilization: float = GPU_MEMORY,
        enable_sleep_mode: bool = False,
        seed: int = 0,
        seeded: bool = True,
        images: ImageEncoder | None = None,
        engine_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_loadable(model)
        on_gpu = torch.cuda.is_available()
        options: dict[str, Any] = {
            "dtype": dtype or str(model.dtype).removeprefix("torch."),
            "max_num_seqs": max_num_seqs,
            "seed": seed,
        }
        of_gpu = {"gpu_memory_utilization": gpu_memory_utilization, "enable_sleep_mode": enable_sleep_mode}
        if on_gpu:
            # Small blocks: a prefix is cached in whole blocks, and the rest is computed again.
            options |= {"block_size": 16} | of_gpu
        else:
            defaults = {"gpu_memory_utilization": GPU_MEMORY, "enable_sleep_mode": False}
            if ignored := [name for name, value in of_gpu.items() if value != defaults[name]]:
                warnings.warn(f"{', '.join(ignored)}: no effect, because there is no GPU here", stacklevel=2)
            options |= CPU_OPTIONS
        rank = lora_rank(model) if (engine_kwargs or {}).get("enable_lora", True) else None
        if rank is not None and images is not None:
            logger.warning(MERGED_WITH_PICTURES)
            rank = None
        self._takes_adapters = rank is not None
        if rank is not None:
            options |= lora_options(rank)
        self._adapter: Any = None  # vLLM's request for the adapter that is loaded
        self._base: tuple[int, ...] | None = None  # version of the base weights
        self.weight_version = 0
        self._seeded = seeded
        self._image_id = None if images is None else images.placeholder_id
        self._processor = None if images is None else copy.deepcopy(images.processor)  # it has a thread of its own
        self._sleeps = enable_sleep_mode and on_gpu
        self._vocab_size = model.config.get_text_config().vocab_size
        engine = _make_engine(model, self._processor, max_model_len, options, engine_kwargs or {})
        self._engine = EngineThread(engine)
        self._finalizer = weakref.finalize(self, self._engine.close)  # also for a generator that nobody closes
        if images is not None:
            self._check_pictures(engine.renderer, probe(images))
        self.sleep()  # a resumed run may take an optimiser step before its first round

    async def generate(self, request: GenerationRequest) -> Generation:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        check_request(request, self._vocab_size, takes_images=self._image_id is not None)
        texts, kind = request.stop_texts, RequestOutputKind.FINAL_ONLY
        if texts is not None:  # vLLM has no tokenizer here, so the thread looks for them after each token
            kind = RequestOutputKind.CUMULATIVE
        params = SamplingParams(**sampling_options(request, seeded=self._seeded), output_kind=kind)
        prompt = request.prompt
        ids, pictures = collapsed(prompt, self._image_id), prompt.pictures
        output = await self._engine.ask(ids, params, pictures=pictures, adapter=self._adapter, stop_texts=texts)
        [answer] = output.outputs
        logprobs = [known[token].logprob for known, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        return Generation(
            token_ids=list(answer.token_ids),
            logprobs=logprobs,
            finish=answer.finish_reason if output.finished else "stop",
            prompt_ids=list(output.prompt_token_ids),
            weight_version=self.weight_version,
            num_cached=output.num_cached_tokens or 0,
        )

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Copy the model's weights into the engine, with LoRA only the changed ones, and empty its caches."""
        sends_adapter = self._takes_adapters and lora_rank(model) is not None
        base = base_version(model) if sends_adapter else None
        weights: Iterable[tuple[str, torch.Tensor]] | None = None
        if base is None or base != self._base:
            weights = named_weights(model, merge=False).items() if sends_adapter else whole_weights(model)

        def load(engine: Any) -> Any:
            if weights is not None:
                _replace_weights(engine, weights)
            adapter = load_adapter(engine, model) if sends_adapter else None
            if not engine.reset_prefix_cache():
                raise RuntimeError("vLLM still holds a prefix that was computed with the old weights")
            engine.reset_encoder_cache()  # the features of pictures, by the old vision tower
            _synchronize()  # before the optimiser changes the weights that are being copied
            return adapter

        _synchronize()  # the optimiser and the merging of adapters run in another stream than vLLM's
        self._adapter = self._engine.call(load)
        self._base = base
        self.weight_version = version

    def wake(self) -> None:
        if self._sleeps:
            self._engine.call(lambda engine: engine.wake_up() if engine.is_sleeping() else None)

    def sleep(self) -> None:
        if self._sleeps:
            self._engine.call(lambda engine: engine.sleep(level=1))

    def close(self) -> None:
        self._finalizer()

    def _check_pictures(self, renderer: Any, sent: Tokens) -> None:
        try:
            prompt = media(collapsed(sent, self._image_id), sent.pictures)
            [made] = renderer.render_cmpl([prompt], skip_mm_cache=True)  # the engine never gets these pictures
            found = made["prompt_token_ids"]
        except Exception as error:
            found = error
        try:
            check_expansion(sent, found, "vLLM")
        except ConfigurationError:
            self.close()
            raise


def _replace_weights(engine: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    from vllm.config import set_current_vllm_config

    config = engine.vllm_config
    with set_current_vllm_config(config):
        engine.apply_model(lambda target: replace_weights(target, config.model_config, weights))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _make_engine(
    model: PreTrainedModel,
    processor: Any,
    max_model_len: int,
    options: dict[str, Any],
    given: Mapping[str, Any],
) -> Any:
    own = OWN_OPTIONS | {"max_model_len": max_model_len}
    if processor is not None:
        own |= OPTIONS_WITH_IMAGES
    if taken := sorted({*own, "model"} & set(given)):
        raise ConfigurationError(f"vllm_engine_kwargs cannot set {', '.join(taken)}: gymnast sets them itself")
    several = [name for name in ("tensor_parallel_size", "pipeline_parallel_size") if given.get(name, 1) > 1]
    if several:
        raise ConfigurationError(
            f"vllm_engine_kwargs cannot set {several[0]}: the engine shares the GPU of the trainer; "
            f"use generator='vllm-server' for a model that needs several"
        )
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # keep the engine in this process, beside the weights
    if not torch.cuda.is_available():
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    check_vllm()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # this process is one of several
        options = {"distributed_executor_backend": "external_launcher"} | options
    options = options | own | dict(given)
    if not dist.is_initialized():
        atexit.register(_leave_group)
    with tempfile.TemporaryDirectory() as folder, unchanged_process():
        base: Any = inner_model(model)
        config = base.config.to_dict() | {"architectures": [type(base).__name__]}
        type(base.config).from_dict(config).save_pretrained(folder)
        if processor is not None:
            processor.tokenizer.save_pretrained(folder)
            lend_processor(folder, processor)
        try:
            return LLMEngine.from_engine_args(EngineArgs(model=folder, **options))
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            merge = "; merge its adapter with vllm_engine_kwargs={'enable_lora': False}"
            advice = merge if options.get("enable_lora") else ""
            raise ConfigurationError(f"vLLM cannot serve this model with {options}: {error}{advice}") from error


def _leave_group() -> None:
    """Leave the default process group that vLLM has made: NCCL complains of one that is left to the program's end."""
    if dist.is_initialized():
        dist.destroy_process_group()
