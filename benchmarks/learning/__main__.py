"""Trains the calculator agent for three seeds with both trainers, one after the other.

    python -m benchmarks.learning

prints a table and writes benchmarks/results/learning.json. It takes about 20 minutes on two cores, so `make bench`
leaves it out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parents[1] / "results" / "learning.json"
COLUMNS = {
    "success_before": "start",
    "success_after": "end",
    "success_after_greedy": "greedy",
    "seconds": "seconds",
    "steps": "steps",
}


def train(algorithm: str, seed: int, options: list[str]) -> dict[str, Any]:
    """Train once and return the run's summary."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, str(ROOT / "examples" / "calculator.py")]
        choice = ["--algorithm", algorithm, "--seed", str(seed), "--output-dir", folder]
        subprocess.run([*program, *choice, *options], check=True, stdout=subprocess.DEVNULL)
        return json.loads((Path(folder) / f"calculator-{algorithm}-seed{seed}" / "summary.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--algorithms", nargs="+", default=["grpo", "rloo"])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments, options = parser.parse_known_args()  # the rest goes to the example

    print("algorithm  seed" + "".join(f"{column:>9}" for column in COLUMNS.values()))
    runs = []
    for algorithm in arguments.algorithms:
        for seed in arguments.seeds:
            summary = train(algorithm, seed, options)
            print(f"{algorithm:<9}{seed:>6}" + "".join(f"{_shown(summary[name]):>9}" for name in COLUMNS), flush=True)
            kept = ("algorithm", "seed", *COLUMNS, "drift_tokens", "versions")
            runs.append({name: summary[name] for name in kept})
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(runs, indent=2) + "\n")


def _shown(value: float) -> str:
    return f"{value:.1%}" if isinstance(value, float) and value <= 1 else f"{value:.0f}"


if __name__ == "__main__":
    main()
