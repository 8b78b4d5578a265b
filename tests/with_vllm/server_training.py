"""Two training processes that share vLLM servers: `launch_training` starts them, and they run this file."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def launch_training(folder: Path, urls: Sequence[str], weights: str = "whole") -> list[dict[str, Any]]:
    """Return the reports of both processes.

    Their weights are whole, or sharded by "fsdp2" or "zero3"; or they train an "adapter", or a "sharded adapter".
    """
    from ..training.launching import for_deepspeed, launch  # it cannot be imported where this file is the program

    variables = for_deepspeed() if weights == "zero3" else None
    return launch(folder, Path(__file__).read_text(), weights, *urls, variables=variables)


def main(folder: Path, weights: str, urls: list[str]) -> None:
    """Train a few steps."""
    import torch
    from buttons import ROWS, SHARDED, adapted, make_trainer, zero

    if weights == "zero3":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled; gloo does as well
    adapter: dict[str, Any] = {
        "agent": adapted(),
        "learning_rate": 0.05,
        "max_steps": 5,
    }  # an equal group shows no difference
    kinds: dict[str, dict[str, Any]] = {
        "whole": {},
        "fsdp2": SHARDED,
        "zero3": {"deepspeed": zero(3)},
        "adapter": adapter,
        "sharded adapter": adapter | SHARDED,
    }
    options: dict[str, Any] = {"max_steps": 2} | kinds[weights]
    trainer = make_trainer(
        folder,
        generator="vllm-server",
        vllm_server_urls=urls,
        max_model_len=1024,
        per_device_train_batch_size=4,
        ddp_backend="gloo",
        rows=ROWS,
        **options,
    )
    versions: list[list[int | None]] = []

    def record(episodes: Any) -> None:
        versions.append(sorted({turn.weight_version for episode in episodes for turn in episode.turns}))

    trainer.on_episodes = record  # type: ignore[method-assign]
    trainer.train()
    trainer.player.generator.close()
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    report = {
        "weights": _kind(trainer.model),
        "losses": [logs["loss"] for logs in logged],
        "versions": versions,
        "failed": sum(logs["episodes/failed"] for logs in logged),
        "difference": max(logs["sampling/sampling_logp_difference/max"] for logs in logged),
    }
    (folder / f"report-{os.environ['RANK']}.json").write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


def _kind(model: Any) -> str:
    if type(model).__name__.startswith("FSDP"):
        return "fsdp2"
    return "zero3" if hasattr(next(model.parameters()), "ds_tensor") else "whole"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
