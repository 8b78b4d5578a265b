"""VLLMServerGenerator with a server that takes adapters: the base weights are sent once, and the adapter each time."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from gymnast.trainer.vllm.servers import VLLMServerGenerator

from ..training.buttons import adapted, make_trainer, tokenizer
from ..training.buttons import model as buttons_model
from .server_training import launch_training
from .serving import ServerProcess, answers, ask, error, start_servers, until

CONTEXT = 1024
OPTIONS = ["--max-model-len", str(CONTEXT), "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(64 << 20)]
OPTIONS += ["--enable-lora", "--max-lora-rank", "8"]
TOLERANCE = 1e-4  # nats, in float32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("serving") / "model"
    buttons_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    [started] = start_servers(folder, 1, OPTIONS)
    yield started
    started.stop()


@pytest.fixture
def agent() -> Any:
    """A model with an adapter, whose base weights are not those of the server's folder."""
    made = adapted()
    move(made.get_base_model().lm_head.weight)
    return made


@pytest.fixture
def generator(server: ServerProcess) -> Iterator[VLLMServerGenerator]:
    made = VLLMServerGenerator([server.url], max_model_len=CONTEXT, timeout=60)
    yield made
    made.close()


@torch.no_grad()
def move(weight: torch.Tensor) -> None:
    weight += 0.2 * torch.randn_like(weight)


def change(agent: Any) -> None:
    """Change the adapter, as an optimiser step would."""
    for parameter in agent.parameters():
        if parameter.requires_grad:
            move(parameter)


def base_updates(server: ServerProcess) -> float:
    """Return how often base weights were sent to it."""
    lines = server.get("metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if 'requests_total{handler="/update_weights"' in line)


async def worst_error(agent: Any, generator: VLLMServerGenerator, version: int) -> float:
    """Return the largest difference to PEFT's log-probabilities."""
    found = await answers(generator, [ask(seed=seed) for seed in range(4)])
    assert {answer.weight_version for answer in found} == {version}
    return max(error(agent, answer) for answer in found)


async def load(generator: VLLMServerGenerator, agent: Any, version: int) -> None:
    await asyncio.to_thread(generator.load_weights, agent, version)


async def test_only_the_adapter_is_sent_after_a_step(
    agent: Any, generator: VLLMServerGenerator, server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    before = base_updates(server)
    with caplog.at_level(logging.INFO, "gymnast"):
        await load(generator, agent, 0)
    assert "get the adapter as an adapter" in caplog.text
    assert await worst_error(agent, generator, 0) < TOLERANCE
    for version in (1, 2):
        change(agent)
        assert await worst_error(agent, generator, version - 1) > 0.1
        await load(generator, agent, version)
        assert await worst_error(agent, generator, version) < TOLERANCE
    assert base_updates(server) == before + 1
    move(agent.get_base_model().lm_head.weight)
    await load(generator, agent, 3)
    assert await worst_error(agent, generator, 3) < TOLERANCE
    assert base_updates(server) == before + 2
    copied = pickle.loads(pickle.dumps(generator))  # as for a rollout worker
    copied.follow(generator.weights)
    assert await worst_error(agent, copied, 3) < TOLERANCE
    copied.close()


async def test_a_damaged_adapter_is_refused_and_the_old_one_stays(
    agent: Any, generator: VLLMServerGenerator, server: ServerProcess
) -> None:
    change(agent)
    await load(generator, agent, 0)
    async with httpx2.AsyncClient() as client:
        refused = await client.post(f"{server.url}/gymnast/adapter", content=b"no archive")
    assert refused.status_code == 500
    assert "ReadError" in refused.json()["error"]["message"]
    assert await worst_error(agent, generator, 0) < TOLERANCE


def test_training(tmp_path: Path, server: ServerProcess) -> None:
    options: dict[str, Any] = {"generator": "vllm-server", "vllm_server_urls": [server.url], "max_model_len": CONTEXT}
    before = base_updates(server)
    trainer = make_trainer(tmp_path, agent=adapted(), max_steps=3, learning_rate=0.05, **options)
    try:
        trainer.train()
    finally:
        trainer.player.generator.close()
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert all(logs["tokens/drift"] == 0 and logs["episodes/failed"] == 0 for logs in logged)
    assert max(logs["sampling/sampling_logp_difference/max"] for logs in logged) < 1e-3
    assert base_updates(server) == before + 1


@pytest.mark.parametrize("weights", ["adapter", "sharded adapter"])
def test_training_in_two_processes(weights: str, tmp_path: Path, server: ServerProcess) -> None:
    """Both sample with the adapter that rank 0 has loaded. Sharded, it is merged."""
    before = base_updates(server)
    reports = launch_training(tmp_path, [server.url], weights)
    assert all(report["failed"] == 0 for report in reports)
    assert max(report["difference"] for report in reports) < 1e-3
    assert base_updates(server) == before + (1 if weights == "adapter" else 5)


async def test_a_server_gets_its_base_again_after_another_run(
    agent: Any, generator: VLLMServerGenerator, server: ServerProcess
) -> None:
    await load(generator, agent, 0)
    before = base_updates(server)
    async with httpx2.AsyncClient() as client:
        await client.post(f"{server.url}/update_weight_version", json={"new_version": "other-0"})
    change(agent)
    await load(generator, agent, 1)
    assert base_updates(server) == before + 1
    assert await worst_error(agent, generator, 1) < TOLERANCE


async def test_a_server_that_returns_gets_base_and_adapter(
    agent: Any, generator: VLLMServerGenerator, server: ServerProcess
) -> None:
    """It does not know the adapter at first, and must not answer without it."""
    change(agent)
    await load(generator, agent, 5)
    server.kill()
    server.start_again()
    await asyncio.to_thread(server.wait)
    assert generator.servers_present == [server.url]  # nothing was asked meanwhile
    assert await worst_error(agent, generator, 5) < TOLERANCE
    assert base_updates(server) == 1
    change(agent)
    await load(generator, agent, 6)
    assert await worst_error(agent, generator, 6) < TOLERANCE
    assert base_updates(server) == 1
    await until(lambda: generator.servers_present == [server.url])
