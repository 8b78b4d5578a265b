"""Two processes that train together."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env

from .buttons import make_trainer, subprocess_environment


def for_deepspeed() -> dict[str, str]:
    """The environment variables of a program that trains with DeepSpeed; the test is skipped without it."""
    folder = Path(__file__).parents[2] / ".deepspeed"
    installed = importlib.util.find_spec("deepspeed") is not None
    if not installed and not (folder / "deepspeed").is_dir():
        pytest.skip("DeepSpeed is not installed: make .deepspeed/.stamp")
    return {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *([] if installed else [str(folder)])]),
        "ACCELERATE_USE_CPU": "false",  # accelerate would not use DeepSpeed
        "DS_ACCELERATOR": "cpu",
    }


def deepspeed_variables(file: Path) -> dict[str, str]:
    """The environment variables that `accelerate launch` sets for DeepSpeed."""
    command = ["--config_file", str(file), "train.py"]
    defaults: Any
    arguments, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    assert arguments.use_deepspeed
    arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    _, environment = prepare_deepspeed_cmd_env(arguments)
    return {name: value for name, value in environment.items() if name.startswith("ACCELERATE_")}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_two(
    folder: Path, program: str, *arguments: str, timeout: float = 240, variables: Mapping[str, str] | None = None
) -> list[tuple[int, str]]:
    """Run a program in two processes, as torchrun does; return their exit statuses and standard errors."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = subprocess_environment() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONWARNINGS": "default",  # torch.distributed causes warnings of its own
        **(variables or {}),
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
        errors = [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def launch(folder: Path, program: str, *arguments: str, variables: Mapping[str, str] | None = None) -> list[Any]:
    """The contents of `report-<rank>.json`, which two processes of a program wrote to the folder."""
    ended = run_two(folder, program, *arguments, variables=variables)
    assert [status for status, _ in ended] == [0, 0], "\n".join(error for _, error in ended)
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]


def alone(folder: Path, agent: Any, steps: int) -> Any:
    """A trainer that has trained in one process, with twice the batch of the tests of two processes."""
    shared: dict[str, Any] = {"scale_rewards": "batch", "beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1}
    trainer = make_trainer(folder, agent=agent, max_steps=steps, per_device_train_batch_size=8, **shared)
    trainer.train()
    return trainer
