"""One optimiser step beside TRL's: the same model, the same episodes, the same losses.

    python -m benchmarks.update [--quick]

30 M parameters and 32 episodes of which 70 % are tool results, some groups without spread; and 11 M parameters and 16
episodes whose lengths are log-normal, up to 3,000 tokens, also row by row. Each step is taken in a process of its own
with one thread; times are processor time. It prints a table and the targets, and writes
benchmarks/results/update.json. It fails if losses or gradients differ, or a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .one_step import SHAPES

RESULTS = Path(__file__).parents[1] / "results" / "update.json"
CHILD = Path(__file__).with_name("one_step.py")
TIME_TARGETS = {0.0: 0.5, 0.6: 0.25}  # of TRL's, for each share of groups without spread
MEMORY_TARGET = 0.5  # of TRL's
ROW_BY_ROW_TARGETS = {"processor_seconds": 1.1, "megabytes": 1.3}  # of the same step with a forward pass for each row
ROW_BY_ROW = "here, row by row"
VARIANTS = {"TRL": ["trl"], ROW_BY_ROW: ["ours", "--max-tokens", "1"], "here": ["ours"]}


def run(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(CHILD), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(shape: str, without_spread: float) -> list[dict[str, Any]]:
    """A line for each variant, with ratios to TRL's."""
    rows: list[dict[str, Any]] = []
    for name, how in VARIANTS.items():
        if name == ROW_BY_ROW and SHAPES[shape].longest is None:
            continue
        found = run([*how, "--shape", shape, "--without-spread", str(without_spread)])
        row = {
            "name": name,
            "shape": shape,
            "without_spread": without_spread,
            "processor_seconds": round(min(found["processor_seconds"]), 2),
            "megabytes": round(found["megabytes"]),
            "loss": found["loss"],
            "gradient": found["gradient"],
        }
        reference = rows[0] if rows else row
        row["time_of_trl"] = round(row["processor_seconds"] / reference["processor_seconds"], 3)
        row["memory_of_trl"] = round(row["megabytes"] / reference["megabytes"], 3)
        rows.append(row)
        print(
            f"{shape:<19} {without_spread:>4.0%}  {name:<17} {row['processor_seconds']:>7.2f} s "
            f"{row['megabytes']:>6} MB  {row['time_of_trl']:>5.2f} {row['memory_of_trl']:>5.2f}",
            flush=True,
        )
    return rows


def complaints(rows: list[dict[str, Any]]) -> list[str]:
    """Everything that is not as it should be; print the ratios to the step row by row."""
    reference, *others = rows
    found = []
    for row in others:
        place = f"{row['shape']}, {row['without_spread']:.0%} without spread, {row['name']}"
        found += [
            f"{place}: {name} {row[name]:.7f}, TRL's is {reference[name]:.7f}"
            for name in ("loss", "gradient")
            if not math.isclose(row[name], reference[name], rel_tol=1e-5, abs_tol=1e-5)
        ]
        target = TIME_TARGETS[row["without_spread"]]
        if row["time_of_trl"] > target:
            found.append(f"{place}: {row['time_of_trl']:.2f} of TRL's time, the target is {target}")
        if row["memory_of_trl"] > MEMORY_TARGET:
            found.append(f"{place}: {row['memory_of_trl']:.2f} of TRL's memory, the target is {MEMORY_TARGET}")
        if row is rows[-1] and len(rows) == len(VARIANTS):
            for name, target in ROW_BY_ROW_TARGETS.items():
                share = row[f"{name}_of_row_by_row"] = round(row[name] / rows[-2][name], 3)
                print(f"{'':>19} {name} of row by row: {share:.2f}, the target is {target}")
                if share > target:
                    found.append(f"{place}: {share:.2f} of the {name} row by row, the target is {target}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="without the large vocabulary, and no file")
    arguments = parser.parse_args()
    print(f"{'':<19} same  {'':<17} {'processor':>9} {'memory':>9}  {'of TRL':>11}")
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for name, shape in SHAPES.items():
        if arguments.quick and shape.vocabulary > 100_000:
            continue
        for without_spread in TIME_TARGETS if shape.longest is None else [0.0]:
            found = compare(name, without_spread)
            wrong += complaints(found)
            rows += found
    print(f"targets: {TIME_TARGETS} of TRL's time by the share of groups without spread, {MEMORY_TARGET} of its memory")
    if not arguments.quick:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        versions = {name: version(name) for name in ("trl", "torch", "transformers")}
        result = {"machine": machine, "versions": versions, "results": rows}
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
