"""Trains SmolLM2-135M-Instruct on word problems, for three seeds, one after the other.

    python -m benchmarks.word_problems

runs examples/word_problems.py in runs/word-problems/, where trainings that are over are not repeated: half an hour
for each seed on two cores. It writes benchmarks/results/word_problems.json, and the table and the picture of
docs/evidence.md. With `--seeds 3`, the results of other seeds in that file stay as they are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..evidence import Curve, draw_panel, make_figure, save, smooth, write_table
from ..pretrained import fetch, model_folder
from ..pretrained_runs import HEAD, ROOT, machine, rewards, row_of, train

RESULTS = ROOT / "benchmarks" / "results" / "word_problems.json"
PICTURE = ROOT / "docs" / "word_problems.png"


def draw(curves_ST: list[list[float]]) -> None:
    figure, [axes] = make_figure(1, width=6.0)
    steps_ST = [list(range(1, len(curve) + 1)) for curve in curves_ST]
    smoothed_ST = [smooth(curve, 5) for curve in curves_ST]
    curve = Curve(name="SmolLM2-135M-Instruct, GRPO", x_ST=steps_ST, y_ST=smoothed_ST)
    title = f"Word problems, seeds: {len(curves_ST)}"
    draw_panel(axes, [curve], title=title, xlabel="step of 64 episodes", ylabel="right answers in training")
    save(figure, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "word-problems")
    arguments = parser.parse_args()
    fetch(model_folder())
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in arguments.seeds:
        folder = train("word_problems", seed, arguments.folder)
        summary = json.loads((folder / "summary.json").read_text())
        found[str(seed)] = {"machine": machine(), **summary, "reward_by_step": rewards(folder)}
    runs = [found[seed] for seed in sorted(found, key=int)]
    rows = [HEAD, *map(row_of, runs)]
    for row in rows:
        print("".join(f"{cell:>17}" for cell in row))
    draw([run["reward_by_step"] for run in runs])
    RESULTS.write_text(json.dumps({str(run["seed"]): run for run in runs}, indent=2) + "\n")
    write_table(ROOT / "docs" / "evidence.md", "word_problems", rows)


if __name__ == "__main__":
    main()
