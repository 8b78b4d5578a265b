"""RayVLLMServers with real vLLM servers, on a Ray cluster of this machine."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gymnast.cluster import RayVLLMServers

from ..training.buttons import make_trainer
from ..training.buttons import model as buttons_model
from .ray_cluster import cluster as cluster  # a fixture

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_training_with_servers_on_the_cluster(tmp_path: Path) -> None:
    buttons_model().save_pretrained(tmp_path / "model")
    arguments = ["--dtype=float32", "--max-model-len=1024"]
    with RayVLLMServers(str(tmp_path / "model"), gpus=0, arguments=arguments) as servers:
        options = {"generator": "vllm-server", "vllm_server_urls": servers.urls, "max_model_len": 1024}
        trainer = make_trainer(tmp_path / "run", max_steps=2, **options)
        try:
            trainer.train()
        finally:
            trainer.player.generator.close()
        [url] = servers.urls
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert [(logs["tokens/drift"], logs["episodes/failed"]) for logs in logged] == [(0, 0)] * 2
    assert max(logs["sampling/sampling_logp_difference/max"] for logs in logged) < 1e-3
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=5)
