"""Rollouts that overlap with updates: the time of a step, and whether old samples teach.

    python -m benchmarks.overlap [--bounds 0 1 2 4] [--steps 24] [--tasks calculator questions] [--seeds 1 2 3]

prints two tables and writes benchmarks/results/overlap.json; a part of the measurements is written to
runs/overlap/overlap.json instead. The times take about ten minutes, in which the processor mostly sleeps. The trainings
(24 of them) take about an hour on two quiet cores. Each finished training is kept in runs/overlap/ and not repeated;
`--tasks` without a name leaves them out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..evidence import spread
from .learning import TASKS, Run, train_all
from .speed import speeds

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "overlap.json"
ARMS = ((0, True), (2, True), (4, True), (4, False))
"""Each arm of the trainings: the bound of staleness, and whether samples are corrected (at 0 nothing is to correct)."""
TARGET = 1.1  # of the longer part of a step, for bounds above 0


def trainings(runs: Sequence[Run], folder: Path) -> list[dict[str, Any]]:
    """The results of the runs that are finished, by arm."""
    found: dict[tuple[str, int, bool], list[float]] = {}
    for run in runs:
        if run.path(folder).exists():
            result = json.loads(run.path(folder).read_text())["result"]
            found.setdefault((run.task, run.max_staleness, run.corrected), []).append(result)
    return [
        {"task": task, "max_staleness": bound, "corrected": corrected, "results": results}
        for (task, bound, corrected), results in found.items()
    ]


def show(times: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> None:
    names = (
        "max_staleness",
        "seconds a step",
        "time/update",
        "ratio",
        "staleness/mean",
        "idle/trainer",
        "idle/generator",
    )
    if times:
        print("   ".join(names))
    for row in times:
        print("   ".join(f"{row.get(name, 0):>{len(name)}}" for name in names))
    if times:
        met = all(row["ratio"] <= TARGET for row in times if row["max_staleness"])
        print(f"each step with overlap takes at most {TARGET} x max(rollout, update): {met}")
    for row in results:
        correction = "" if row["corrected"] else ", no correction"
        print(f"{row['task']}, max_staleness={row['max_staleness']}{correction}: {spread(row['results'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bounds", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of each measurement of time (default: %(default)s)"
    )
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "overlap", help="of the finished trainings")
    arguments = parser.parse_args()
    whole = parser.parse_args([])
    is_whole = all(getattr(arguments, name) == getattr(whole, name) for name in ("bounds", "steps", "tasks", "seeds"))
    output = RESULTS if is_whole else arguments.folder / RESULTS.name
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of groups whose rewards are all equal, and of samples that no model made
    times = speeds(arguments.bounds, steps=arguments.steps) if arguments.bounds else []
    runs = [
        Run(task=task, max_staleness=bound, corrected=corrected, seed=seed, steps=TASKS[task][1])
        for task in arguments.tasks
        for seed in arguments.seeds
        for bound, corrected in ARMS
    ]
    train_all(runs, arguments.folder, arguments.workers)
    results = trainings(runs, arguments.folder)
    show(times, results)
    about = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(about | {"times": times, "trainings": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
