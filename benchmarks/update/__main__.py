"""One optimiser step beside TRL's: the same model of 30 M parameters, the same 32 episodes, the same losses.

    python -m benchmarks.update [--quick]

70 % of the completions' tokens are tool results. Each step is taken in a process of its own, ours and TRL's in turn. It
prints a table and writes benchmarks/results/update.json. It fails if losses or gradients differ, or a target is missed.
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

from .one_step import EPISODES, HIDDEN

RESULTS = Path(__file__).parents[1] / "results" / "update.json"
CHILD = Path(__file__).with_name("one_step.py")
TIME_TARGETS = {0.0: 0.5, 0.6: 0.25}  # of TRL's, for each share of groups without spread
MEMORY_TARGET = 0.5  # of TRL's
MAX_TOKENS = 1200
VARIANTS: dict[str, list[str]] = {
    "TRL": ["trl"],
    "here": ["ours"],
    f"here, max_tokens_per_batch={MAX_TOKENS}": ["ours", "--max-tokens", str(MAX_TOKENS)],
}


def run(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(CHILD), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(vocabulary: int, without_spread: float) -> list[dict[str, Any]]:
    """A line for each variant, with ratios to TRL's."""
    rows: list[dict[str, Any]] = []
    for name, how in VARIANTS.items():
        found = run([*how, "--vocabulary", str(vocabulary), "--without-spread", str(without_spread)])
        row = {
            "name": name,
            "vocabulary": vocabulary,
            "without_spread": without_spread,
            "seconds": round(min(found["seconds"]), 2),
            "processor_seconds": round(min(found["processor_seconds"]), 2),
            "megabytes": round(found["megabytes"]),
            "loss": found["loss"],
            "gradient": found["gradient"],
        }
        reference = rows[0] if rows else row
        row["time_of_trl"] = round(row["seconds"] / reference["seconds"], 3)
        row["memory_of_trl"] = round(row["megabytes"] / reference["megabytes"], 3)
        rows.append(row)
        print(
            f"{vocabulary:>8,} {without_spread:>5.0%}  {name:<36} {row['seconds']:>7.2f} s {row['megabytes']:>6} MB  "
            f"{row['time_of_trl']:>5.2f} {row['memory_of_trl']:>5.2f}",
            flush=True,
        )
    return rows


def complaints(rows: list[dict[str, Any]]) -> list[str]:
    """Everything that is not as it should be."""
    reference, *others = rows
    found = []
    for row in others:
        place = f"vocabulary {row['vocabulary']:,}, {row['without_spread']:.0%} without spread, {row['name']}"
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
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="the small vocabulary only, and no file")
    arguments = parser.parse_args()
    print(f"{'words':>8} {'same':>5}  {'':<36} {'step':>9} {'memory':>9}  {'of TRL':>11}")
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for vocabulary in sorted(HIDDEN)[:1] if arguments.quick else sorted(HIDDEN):
        for without_spread in TIME_TARGETS:
            found = compare(vocabulary, without_spread)
            rows += found
            wrong += complaints(found)
    if not arguments.quick:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        versions = {name: version(name) for name in ("trl", "torch", "transformers")}
        result = {"machine": machine, "versions": versions, "episodes": EPISODES, "results": rows}
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
