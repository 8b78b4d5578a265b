"""Training with `max_staleness` and vLLM: each turn is sampled with one version of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gymnast.envs import Episode

from ..training.buttons import make_trainer
from ..training.buttons import model as buttons_model
from .serving import ServerProcess, start_servers

TOLERANCE = 1e-3  # nats a token, in float32
STEPS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server") / "model"
    buttons_model().save_pretrained(folder)
    [server] = start_servers(folder, 1, ["--dtype=float32", "--max-model-len=1024"])
    yield server
    server.stop()


@pytest.mark.parametrize("generator", ["vllm", "vllm-server"])
def test_each_turn_is_sampled_with_one_version_of_the_weights(
    generator: str, server: ServerProcess, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"generator": generator, "max_model_len": 1024}
    if generator == "vllm-server":
        options["vllm_server_urls"] = [server.url]
    trainer = make_trainer(
        tmp_path, max_staleness=2, max_steps=STEPS, save_strategy="steps", save_steps=1, learning_rate=0.01, **options
    )
    rounds: list[list[Episode]] = []
    trainer.on_episodes = rounds.append  # type: ignore[method-assign,assignment]
    try:
        trainer.train()
    finally:
        trainer.player.generator.close()
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert len(logged) == len(rounds) == STEPS
    assert all(logs["tokens/drift"] == 0 and logs["episodes/failed"] == 0 for logs in logged)
    episodes = [episode for item in rounds for episode in item]
    versions = {turn.weight_version for episode in episodes for turn in episode.turns}
    assert {0} < versions <= set(range(STEPS))
    assert max(logs["staleness/max"] for logs in logged) >= 1
    for version in versions:
        weights = tmp_path / f"checkpoint-{version}"
        model = AutoModelForCausalLM.from_pretrained(weights) if version else buttons_model()
        assert max(differences(model, episodes, version)) < TOLERANCE
        others = versions - {version}  # equal rewards may leave the weights of two versions the same
        assert any(max(differences(model, episodes, other)) > 10 * TOLERANCE for other in others), "the weights differ"


def differences(model: Any, episodes: list[Episode], version: int | None) -> list[float]:
    """How far the log-probabilities of the turns of this version are from those of this model."""
    found: list[float] = []
    for episode in episodes:
        [trace] = episode.traces
        of_token = [turn.weight_version for turn in episode.turns for _ in range(turn.num_tokens)]
        if version not in of_token:
            continue
        ids = torch.tensor([trace.ids])
        with torch.no_grad():
            logits = model.eval()(input_ids=ids).logits[0, len(trace.prompt_ids) - 1 : -1].float()
        known = logits.log_softmax(-1).gather(1, torch.tensor(trace.completion_ids)[:, None])[:, 0].tolist()
        sampled = [pair for *pair, mask in zip(known, trace.logprobs, trace.mask, strict=True) if mask]
        assert len(sampled) == len(of_token)
        found += [abs(mine - theirs) for (mine, theirs), item in zip(sampled, of_token, strict=True) if item == version]
    return found
