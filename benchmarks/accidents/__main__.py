"""Three famous accidents of reinforcement learning for language models, with and without the remedy, three seeds each.

    python -m benchmarks.accidents [--accidents NAME ...] [--seeds 1 2 3] [--quick]

trains 18 tiny models, two at a time, in less than five minutes on two cores. It prints a table, writes it into
docs/evidence.md, draws docs/accidents.png and writes benchmarks/results/accidents.json. Each finished run is kept in
runs/accidents/ and not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from ..evidence import Curve, draw_panel, make_figure, save, smooth, spread, write_table
from .runs import ACCIDENTS, Run, train_all

ROOT = Path(__file__).resolve().parents[2]
ROUNDS_AT_END = 10  # the table has the mean of these last steps


def summary(runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """The curves of these runs, by accident and arm."""
    found: dict[str, Any] = {}
    for run in runs:
        accident = ACCIDENTS[run.accident]
        about = {"measured": accident.measured, "steps": run.steps, "arms": {}}
        arms = found.setdefault(run.accident, about)["arms"]
        result = json.loads(run.path(folder).read_text())
        arm = arms.setdefault(run.arm, {"seeds": [], "end": [], "processor_seconds": [], "curves": []})
        arm["seeds"].append(run.seed)
        arm["end"].append(round(fmean(result["curve"][-ROUNDS_AT_END:]), 3))
        arm["processor_seconds"].append(result["processor_seconds"])
        arm["curves"].append([round(value, 4) for value in result["curve"]])
    return found


def table(found: dict[str, Any]) -> list[list[str]]:
    """The measure at the end of each arm, as a table with a header row."""
    head = ["Accident", "Measure", "With the mistake", "With the remedy", "Seeds"]
    return [head] + [
        [
            ACCIDENTS[name].title,
            accident["measured"],
            *(f"{arm}: {spread(values['end'])}" for arm, values in accident["arms"].items()),
            ", ".join(map(str, next(iter(accident["arms"].values()))["seeds"])),
        ]
        for name, accident in found.items()
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    figure, panels = make_figure(len(found))
    for axes, (name, accident) in zip(panels, found.items(), strict=True):
        curves = [
            Curve(
                name=arm,
                x_ST=[list(range(len(curve))) for curve in values["curves"]],
                y_ST=[smooth(curve, 5) for curve in values["curves"]],
            )
            for arm, values in accident["arms"].items()
        ]
        draw_panel(axes, curves, title=ACCIDENTS[name].title, xlabel="step", ylabel=accident["measured"])
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--accidents", nargs="+", choices=ACCIDENTS, default=list(ACCIDENTS))
    parser.add_argument("--quick", action="store_true", help="two steps a run: figures that mean nothing")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "accidents", help="of the finished runs")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "accidents.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "accidents.png")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "evidence.md", help="where the table is written")
    arguments = parser.parse_args()
    runs = [
        Run(
            accident=name,
            arm=arm,
            seed=seed,
            warm_up_steps=2 if arguments.quick else accident.warm_up_steps,
            steps=2 if arguments.quick else accident.steps,
        )
        for name, accident in ACCIDENTS.items()
        if name in arguments.accidents
        for arm in accident.arms
        for seed in arguments.seeds
    ]
    train_all(runs, arguments.folder, arguments.workers)
    found = summary(runs, arguments.folder)
    for row in table(found):
        print("   ".join(row))
    draw(found, arguments.picture)
    if not arguments.quick:
        write_table(arguments.page, "accidents", table(found))
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    versions = {name: version(name) for name in ("torch", "transformers")}
    arguments.output.write_text(json.dumps({"machine": machine, "versions": versions, "accidents": found}) + "\n")


if __name__ == "__main__":
    main()
