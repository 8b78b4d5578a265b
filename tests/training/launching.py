"""Two processes that train together."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .buttons import subprocess_environment


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(folder: Path, program: str, *arguments: str) -> list[Any]:
    """What two processes of a program, started as torchrun does, wrote to `report-<rank>.json` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = subprocess_environment() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONWARNINGS": "default",  # torch.distributed has some of its own
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder), *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=150)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]
