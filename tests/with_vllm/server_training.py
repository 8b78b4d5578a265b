"""Two training processes that share vLLM servers: `launch_training` starts them, and they run this file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def launch_training(folder: Path, urls: Sequence[str], *, sharded: bool = False) -> list[dict[str, Any]]:
    """Return the reports of both processes."""
    from ..training.launching import launch  # it cannot be imported where this file is the program

    return launch(folder, Path(__file__).read_text(), "sharded" if sharded else "whole", *urls)


def main(folder: Path, weights: str, urls: list[str]) -> None:
    """Train two steps."""
    import torch
    from buttons import ROWS, SHARDED, make_trainer

    trainer = make_trainer(
        folder,
        generator="vllm-server",
        vllm_server_urls=urls,
        max_model_len=1024,
        max_steps=2,
        per_device_train_batch_size=4,
        ddp_backend="gloo",
        rows=ROWS,
        **(SHARDED if weights == "sharded" else {}),
    )
    versions: list[list[int | None]] = []

    def record(episodes: Any) -> None:
        versions.append(sorted({turn.weight_version for each in episodes for turn in each.turns}))

    trainer.on_episodes = record  # type: ignore[method-assign]
    trainer.train()
    trainer.player.generator.close()
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    report = {
        "model": type(trainer.model).__name__,
        "losses": [logs["loss"] for logs in logged],
        "versions": versions,
        "failed": sum(logs["episodes/failed"] for logs in logged),
        "difference": max(logs["sampling/sampling_logp_difference/max"] for logs in logged),
    }
    (folder / f"report-{os.environ['RANK']}.json").write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
