"""Whole trainings beside TRL's: the same warm checkpoint, the same tools and reward function, three seeds.

    python -m benchmarks.beside_trl [--seeds 1 2 3] [--steps 80]

trains each seed's checkpoint here and with TRL's GRPOTrainer, one after the other, each in a process of its own. It
takes less than ten minutes on two cores, prints a table, writes it into docs/evidence.md, draws docs/beside_trl.png
(reward against episodes and against seconds) and writes benchmarks/results/beside_trl.json. Each finished training is
kept in runs/beside_trl/ and not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from ..evidence import Curve, draw_panel, make_figure, save, smooth, spread, write_table
from .one_side import SHARED

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("one_side.py")
SIDES = {"trl": "TRL", "ours": "gymnast"}
STEPS_AT_END = 10  # the table has the mean of these last steps


def child(*arguments: object) -> str:
    done = subprocess.run([sys.executable, str(CHILD), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def train(side: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """The rewards and times of one training, from its file if there is one."""
    path = folder / f"{side}-seed{seed}-steps{steps}.json"
    if not path.exists():
        checkpoint = folder / f"checkpoint-seed{seed}"
        if not (checkpoint / "tokenizer.json").exists():  # written last
            child("warm", "--seed", seed, "--checkpoint", checkpoint)
        output = child(side, "--seed", seed, "--steps", steps, "--checkpoint", checkpoint)
        path.write_text(output.splitlines()[-1] + "\n")
    return json.loads(path.read_text())


def table(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """The reward at the end and the time of each side, as a table with a header row."""
    head = ["", f"Reward, last {STEPS_AT_END} steps", "Seconds", "Processor seconds"]
    return [head] + [
        [
            SIDES[side],
            spread([run["end"] for run in runs]),
            f"{fmean(run['seconds'][-1] for run in runs):.0f}",
            f"{fmean(run['processor_seconds'] for run in runs):.0f}",
        ]
        for side, runs in found.items()
    ]


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    figure, (by_episodes, by_seconds) = make_figure(2, width=5.5)
    episodes = SHARED["per_device_train_batch_size"]
    rewards = {side: [smooth(run["rewards"], 5) for run in runs] for side, runs in found.items()}
    curves = {
        "episodes": [
            Curve(
                name=SIDES[side],
                x_ST=[[episodes * (step + 1) for step in range(len(y_T))] for y_T in y_ST],
                y_ST=y_ST,
            )
            for side, y_ST in rewards.items()
        ],
        "seconds": [
            Curve(name=SIDES[side], x_ST=[run["seconds"] for run in found[side]], y_ST=y_ST)
            for side, y_ST in rewards.items()
        ],
    }
    draw_panel(by_episodes, curves["episodes"], title="By episodes", xlabel="episodes", ylabel="reward")
    draw_panel(by_seconds, curves["seconds"], title="By time", xlabel="seconds", ylabel="reward")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=80, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "beside_trl", help="of the finished runs")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "beside_trl.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "beside_trl.png")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "evidence.md", help="where the table is written")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    print(f"{'':<10}{'seed':>5}{'start':>9}{'end':>9}{'seconds':>9}{'processor':>11}")
    for seed in arguments.seeds:
        for side, name in SIDES.items():
            run = train(side, seed, arguments.steps, arguments.folder)
            run = {"seed": seed, **run, "end": fmean(run["rewards"][-STEPS_AT_END:])}
            found[side].append(run)
            figures = f"{run['rewards'][0]:>9.2f}{run['end']:>9.2f}{run['seconds'][-1]:>9.0f}"
            print(f"{name:<10}{seed:>5}{figures}{run['processor_seconds']:>11.0f}", flush=True)
    draw(found, arguments.picture)
    write_table(arguments.page, "beside_trl", table(found))
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    versions = {name: version(name) for name in ("trl", "torch", "transformers")}
    result = {"machine": machine, "versions": versions, "options": SHARED, "steps": arguments.steps, "runs": found}
    arguments.output.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
