"""The private parts of vLLM that gymnast uses exist, with the signatures that gymnast expects."""

# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("place", "parameters"),
    [
        ("vllm.v1.engine.llm_engine:LLMEngine.from_engine_args", {"engine_args"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.add_request", {"request_id", "prompt", "params"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.abort_request", {"request_ids"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.step", {"self"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.apply_model", {"func"}),
        ("vllm.v1.engine.async_llm:AsyncLLM.add_lora", {"lora_request"}),
        ("vllm.lora.request:LoRARequest", {"lora_name", "lora_int_id", "lora_path", "load_inplace"}),
        ("vllm.config.lora:LoRAConfig", {"max_lora_rank"}),
        ("vllm.config.parallel:ParallelConfig", {"_api_process_count"}),
        ("vllm.config:set_current_vllm_config", {"vllm_config"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.reset_prefix_cache", {"self"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.reset_encoder_cache", {"self"}),
        ("vllm.renderers.base:BaseRenderer.render_cmpl_async", {"prompts"}),
        ("vllm.renderers.base:BaseRenderer.get_mm_processor", {"self"}),
        ("vllm.renderers.base:set_default_torch_num_threads", set[str]()),
        ("vllm.transformers_utils.processor:cached_get_processor", {"processor_name"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.sleep", {"level"}),
        ("vllm.v1.engine.llm_engine:LLMEngine.wake_up", {"self"}),
        ("vllm.v1.engine.core:cleanup_dist_env_and_memory", set[str]()),
        ("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm", {"layer", "remove_weight"}),
        ("vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead", set[str]()),
        ("vllm.model_executor.model_loader.reload:initialize_layerwise_reload", {"model"}),
        ("vllm.model_executor.model_loader.reload:finalize_layerwise_reload", set[str]()),
        ("vllm.distributed.weight_transfer.base:WeightTransferEngine", set[str]()),
        ("vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory.register_engine", {"name"}),
        ("vllm.distributed.weight_transfer.factory:WeightTransferTrainerFactory.trainer_init", {"client", "source"}),
        ("vllm.distributed.weight_transfer.base:ParamMeta", {"name", "dtype", "shape"}),
        ("vllm.distributed.weight_transfer.nccl_engine:NCCLTrainerInitInfo", {"rank", "master_port", "world_size"}),
        ("vllm.utils.network_utils:get_open_port", set[str]()),
        ("vllm.entrypoints.cli.main:main", set[str]()),
    ],
)
def test_private_parts_of_vllm(place: str, parameters: set[str]) -> None:
    module, _, path = place.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    assert parameters <= set(inspect.signature(found).parameters)


def test_ending_an_engine_replaces_a_function_that_vllm_calls_by_this_name() -> None:
    """`end_engine` works only as long as vLLM looks the function up where we replace it."""
    assert "cleanup_dist_env_and_memory()" in inspect.getsource(import_module("vllm.v1.engine.core"))


def test_a_servers_adapters_are_in_a_table_by_the_model_of_a_request() -> None:
    serving = import_module("vllm.entrypoints.serve.engine.serving")
    assert "return self.models.lora_requests[request.model]" in inspect.getsource(serving)
    assert "state.openai_serving_models = " in inspect.getsource(
        import_module("vllm.entrypoints.launchers.api_server.app_state")
    )
