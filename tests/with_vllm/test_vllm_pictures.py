"""vLLM with pictures: exact tokens and log-probabilities, in process and by a server, and training."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import copy
import importlib.util
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from vllm.renderers.base import BaseRenderer

from gymnast.cluster import RayRolloutWorkers
from gymnast.envs import ConfigurationError
from gymnast.trainer import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, Sampling
from gymnast.trainer.generation.contract import GenerationRequest, Generator
from gymnast.trainer.learning.samples import Sample
from gymnast.trainer.models.images import ImageEncoder
from gymnast.trainer.vllm.in_process import VLLMGenerator
from gymnast.trainer.vllm.servers import VLLMServerGenerator

from ..vision.families import FAMILIES, make
from ..vision.test_exact_tokens import PICTURES, converse, family, scores, user
from ..vision.test_training import Gallery, config
from .ray_cluster import cluster as cluster  # a fixture
from .serving import ServerProcess, start_servers

TOLERANCE = 1e-5  # nats, in float32
VIDEOS: dict[str, Any] = {"qwen3_vl": Qwen3VLVideoProcessor, "qwen2_5_vl": Qwen2VLVideoProcessor}


async def check_exact(name: str, model: Any, generator: Generator) -> None:
    """Play conversations with pictures in first messages, results of tools, and side by side; then from the cache."""
    traces = await asyncio.gather(*[converse(name, generator, count) for count in (0, 1, 2, 5)])
    assert scores(name, [Sample.of(trace) for trace in traces], model=model).abs().max() < TOLERANCE
    _, _, images, chat = family(name)
    prompt = chat.prompt_tokens([user("hello ", *PICTURES[:5], " what")], [])
    sampling = Sampling(forbidden=images.token_ids)
    request = GenerationRequest(prompt=prompt, max_tokens=200, stop_ids=frozenset(), seed=0, sampling=sampling)
    answer = await generator.generate(request)
    assert answer.prompt_ids == prompt.ids
    assert answer.num_cached >= 64
    assert not images.token_ids.intersection(answer.token_ids)


def change(name: str, model: Any) -> None:
    """Change all weights, those of the vision tower too, and make the tokens of images likely."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.abs().mean() * torch.randn_like(parameter)
        model.get_output_embeddings().weight[sorted(family(name)[2].token_ids)] *= 3


@pytest.mark.parametrize("name", ["idefics3", "qwen3_vl", "qwen2_5_vl"])
async def test_pictures_are_sampled_from_exactly_also_after_new_weights(name: str) -> None:
    if name != "idefics3" and importlib.util.find_spec("torchvision") is None:
        pytest.skip("vLLM's classes for Qwen-VL import torchvision")
    model = copy.deepcopy(family(name)[1])
    generator = VLLMGenerator(model, max_model_len=512, images=family(name)[2])
    try:
        for version in range(2):
            generator.load_weights(model, version)
            await check_exact(name, model, generator)
            change(name, model)
    finally:
        generator.close()


async def test_a_picture_of_a_cancelled_request_is_shown_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, images, _ = family("idefics3")
    generator = VLLMGenerator(model, max_model_len=512, images=images)
    plain = BaseRenderer.render_cmpl_async

    async def cancelling(*args: Any, **options: Any) -> Any:
        made = await plain(*args, **options)
        cancelled.cancel()
        await asyncio.sleep(0)
        return made

    try:
        generator.load_weights(model, 0)
        with monkeypatch.context() as patch:
            patch.setattr(BaseRenderer, "render_cmpl_async", cancelling)
            cancelled = asyncio.ensure_future(converse("idefics3", generator, 5))
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        await check_exact("idefics3", model, generator)
    finally:
        generator.close()


def test_a_family_whose_pictures_vllm_expands_otherwise_is_refused() -> None:
    _, model, images, _ = family("gemma3")
    with pytest.raises(ConfigurationError, match=r"vLLM .* a picture.*generator='transformers'"):
        VLLMGenerator(model, max_model_len=512, images=images)


def test_a_family_whose_weights_vllm_names_otherwise_is_refused_with_the_first_weights() -> None:
    _, model, images, _ = family("llava")
    generator = VLLMGenerator(model, max_model_len=512, images=images)
    try:
        with pytest.raises(ConfigurationError, match=r"vLLM's LlavaForConditionalGeneration: .*'transformers'"):
            generator.load_weights(model, 0)
    finally:
        generator.close()


def serve(name: str, folder: Path, *options: str) -> ServerProcess:
    for part in make(name):
        part.save_pretrained(folder / "model")
    [started] = start_servers(folder / "model", 1, options)
    return started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    # By default vLLM takes torchvision where it is there; the processor of these tests makes its pixels with Pillow.
    started = serve("idefics3", tmp_path_factory.mktemp("serving"), '--mm-processor-kwargs={"backend": "pil"}')
    yield started
    started.stop()


async def check_served(name: str, server: ServerProcess) -> None:
    _, model, images, _ = family(name)
    generator = VLLMServerGenerator([server.url], max_model_len=512, images=images)
    copied = pickle.loads(pickle.dumps(generator))
    try:
        generator.load_weights(model, 0)
        copied.follow(generator.weights)
        await check_exact(name, model, copied)
    finally:
        generator.close()
        copied.close()


async def test_a_server_shows_pictures_exactly_also_to_a_copy_of_the_generator(server: ServerProcess) -> None:
    await check_served("idefics3", server)


@pytest.mark.parametrize("name", VIDEOS)
async def test_a_server_shows_pictures_exactly_to_the_families_of_qwen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processor of videos, which vLLM reads although no video comes, exists for torchvision only."""

    def with_torchvision() -> tuple[Any, Any]:
        processor, model = FAMILIES[name]()
        processor.image_processor.save_pretrained(tmp_path)
        processor.image_processor = AutoImageProcessor.from_pretrained(tmp_path, backend="torchvision")
        return processor, model

    monkeypatch.setitem(FAMILIES, f"{name} with torchvision", with_torchvision)
    VIDEOS[name](patch_size=8, merge_size=2, temporal_patch_size=1).save_pretrained(tmp_path / "model")
    started = serve(f"{name} with torchvision", tmp_path, '--limit-mm-per-prompt={"video": 0}')
    try:
        await check_served(f"{name} with torchvision", started)
    finally:
        started.stop()


def test_a_server_that_makes_other_pixels_is_refused(server: ServerProcess) -> None:
    processor, _ = make("idefics3")
    processor.image_processor = AutoImageProcessor.from_pretrained(server.model, backend="torchvision")
    with pytest.raises(ConfigurationError, match=r"'pil', and the trainer with 'torchvision', .*--mm-processor-kwargs"):
        VLLMServerGenerator([server.url], max_model_len=512, images=ImageEncoder(processor))


@pytest.mark.parametrize(("kind", "trainer"), [(GRPOConfig, GRPOTrainer), (RLOOConfig, RLOOTrainer)])
def test_training_with_pictures(kind: Any, trainer: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """GRPO in process, RLOO by a server and workers on Ray; the second step has a new vision tower, too."""
    options: dict[str, Any] = {"generator": "vllm"}
    with ExitStack() as stack:
        environment: Any = Gallery()
        if trainer is RLOOTrainer:
            options = {"generator": "vllm-server", "vllm_server_urls": [request.getfixturevalue("server").url]}
            request.getfixturevalue("cluster")
            environment = stack.enter_context(RayRolloutWorkers(environment, 1))
        processor, model = make("idefics3")
        args, rows = config(kind, tmp_path, **options), [{"number": number} for number in range(4)]
        agent = trainer(model, environment, args, rows, processing_class=processor)
        stack.callback(agent.player.generator.close)
        agent.train()
    steps = [step for step in agent.state.log_history if "loss" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["tokens/drift"] == step["episodes/failed"] == 0
        assert step["sampling/sampling_logp_difference/max"] < TOLERANCE
        assert step["tokens/cached"] > 0
