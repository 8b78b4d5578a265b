"""Two processes that train together."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .buttons import subprocess_environment


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_two(folder: Path, program: str, *arguments: str, timeout: float = 240) -> list[tuple[int, str]]:
    """Run a program in two processes, as torchrun does; return their exit statuses and standard errors."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = run_command_twice(["-c", program, str(folder), *arguments], timeout=timeout)
    return [(each.returncode, each.stderr) for each in ended]


def run_command_twice(arguments: Sequence[str], *, timeout: float = 240) -> list[subprocess.CompletedProcess[str]]:
    """Run Python with these arguments in two processes that find each other, as torchrun does."""
    shared = subprocess_environment() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONWARNINGS": "default",  # torch.distributed causes warnings of its own
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, out, error)
        for process, (out, error) in zip(processes, texts, strict=True)
    ]


def launch(folder: Path, program: str, *arguments: str) -> list[Any]:
    """The contents of `report-<rank>.json`, which two processes of a program wrote to the folder."""
    ended = run_two(folder, program, *arguments)
    assert [status for status, _ in ended] == [0, 0], "\n".join(error for _, error in ended)
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]
