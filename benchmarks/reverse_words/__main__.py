"""Trains SmolLM2-135M-Instruct on a task of reasoning-gym, without tools.

    make bench-reverse-words

runs examples/reverse_words.py in runs/reverse-words/, where a training that is over is not repeated: a quarter of an
hour on two cores. It writes the table of docs/evidence.md, and benchmarks/results/reverse_words.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..evidence import write_table
from ..pretrained import fetch, model_folder
from ..pretrained_runs import HEAD, ROOT, machine, rewards, row_of, train

RESULTS = ROOT / "benchmarks" / "results" / "reverse_words.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "reverse-words")
    arguments = parser.parse_args()
    fetch(model_folder())
    folder = train("reverse_words", 1, arguments.folder)
    result = {"machine": machine(), **json.loads((folder / "summary.json").read_text())}
    RESULTS.write_text(json.dumps({**result, "reward_by_step": rewards(folder)}, indent=2) + "\n")
    for row in (HEAD, row_of(result)):
        print("".join(f"{cell:>17}" for cell in row))
    write_table(ROOT / "docs" / "evidence.md", "reverse_words", [HEAD, row_of(result)])


if __name__ == "__main__":
    main()
