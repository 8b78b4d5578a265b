"""Two training processes that share vLLM servers: `launch` starts them, and this program is what they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def launch(folder: Path, urls: Sequence[str]) -> list[dict[str, Any]]:
    """What both processes report, started as torchrun does."""
    from ..buttons import subprocess_environment
    from .serving import free_ports

    shared = subprocess_environment() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONWARNINGS": "default",  # torch.distributed has some of its own
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), *urls],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]


def main(folder: Path, urls: list[str]) -> None:
    """Train two steps."""
    import torch
    from buttons import ROWS, make_trainer

    trainer = make_trainer(
        folder,
        generator="vllm-server",
        vllm_server_urls=urls,
        max_model_len=1024,
        max_steps=2,
        per_device_train_batch_size=4,
        ddp_backend="gloo",
        rows=ROWS,
    )
    versions: list[list[int | None]] = []

    def record(episodes: Any) -> None:
        versions.append(sorted({turn.weight_version for each in episodes for turn in each.turns}))

    trainer.on_episodes = record  # type: ignore[method-assign]
    trainer.train()
    trainer.player.generator.close()
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    report = {
        "versions": versions,
        "failed": sum(logs["episodes/failed"] for logs in logged),
        "difference": max(logs["sampling/sampling_logp_difference/max"] for logs in logged),
    }
    (folder / f"report-{os.environ['RANK']}.json").write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
