"""Trainings of the pretrained model: they run once, and give a row of a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from gymnast.trainer.models.precision import computes_bfloat16

from .pretrained import model_folder

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ["success_before_greedy", "success_before", "success_after_greedy", "success_after"]
HEAD = ["Seed", "Before, greedy", "Before, sampled", "After, greedy", "After, sampled", "Steps", "Minutes"]


def train(example: str, seed: int, folder: Path) -> Path:
    """Train once, unless that is done, and return the run's folder."""
    run = folder / f"{example.replace('_', '-')}-{model_folder().name}-seed{seed}"
    summary = run / "summary.json"
    if not summary.exists() or json.loads(summary.read_text())["interrupted"]:
        program = [sys.executable, str(ROOT / "examples" / f"{example}.py"), "--model", str(model_folder())]
        subprocess.run([*program, "--seed", str(seed), "--output-dir", str(folder)], check=True)
        if json.loads(summary.read_text())["interrupted"]:
            sys.exit("interrupted: the same command goes on")
    return run


def machine() -> dict[str, Any]:
    name = torch.cpu.get_capabilities().get("cpu_name", platform.machine())
    return {"processor": name, "cores": os.cpu_count(), "bfloat16": computes_bfloat16("cpu")}


def rewards(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["reward"] for line in lines if line.get("reward") is not None]


def row_of(summary: dict[str, Any]) -> list[str]:
    shares = [f"{100 * summary[name]:.0f} %" for name in SHOWN]
    return [str(summary["seed"]), *shares, str(summary["steps"]), f"{summary['seconds'] / 60:.0f}"]
