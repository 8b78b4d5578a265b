"""vLLM plays a real pretrained model, in this process and on a server: a prompted tool, exact tokens, new weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ..importing import benchmark
from ..with_pretrained.test_pretrained import trainer_of
from .serving import start_servers
from .test_vllm_training import logprobs_off_by

FOLDER = benchmark("pretrained").model_folder()
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the pretrained model is not there: make pretrained")

ROWS = [{"country": "France", "people": True}]
CONTEXT = 512
TOLERANCE = 1e-3  # nats, over whole episodes in float32; seen: 5e-5


@pytest.fixture(params=["vllm", "vllm-server"])
def generator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The options of a trainer whose answers come from vLLM."""
    options = {"generator": request.param, "max_model_len": CONTEXT}
    if request.param == "vllm":
        yield options
        return
    (tmp_path / "model").symlink_to(FOLDER)
    server_options = ["--max-model-len", str(CONTEXT), "--kv-cache-memory-bytes", str(256 << 20), "--dtype", "float32"]
    [server] = start_servers(tmp_path / "model", 1, server_options)
    try:
        yield options | {"vllm_server_urls": [server.url]}
    finally:
        server.stop()


def test_training_with_vllm(generator: dict[str, Any], tmp_path: Path) -> None:
    options = {"max_completion_length": 80, "temperature": 2.0, "learning_rate": 1e-4}  # two answers that differ
    trainer = trainer_of(tmp_path / "run", ROWS, **options, **generator)
    with closing(trainer.player.generator):
        [before] = trainer.rollout(ROWS, temperature=0.0)
        assert [(call.name, call.outcome) for call in before.tool_calls] == [("population", "ok")], before.traces
        assert " has 68  million <|im_end|>" in trainer.processing_class.decode(before.traces[0].ids)
        assert logprobs_off_by(trainer.model, [before]) < TOLERANCE
        trainer.train()
        logs = trainer.state.log_history[0]
        assert logs["tokens/drift"] == logs["episodes/failed"] == logs["steps/nonfinite"] == 0
        assert logs["grad_norm"] > 0
        [after] = trainer.rollout(ROWS, temperature=0.0)
        assert after.traces[0].logprobs != before.traces[0].logprobs
        assert logprobs_off_by(trainer.model, [after]) < TOLERANCE  # vLLM samples with the new weights
        assert sum(trace.drift for trace in before.traces + after.traces) == 0
