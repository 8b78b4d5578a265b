"""Trains on games whose optimum is known, and draws how close each run comes to it.

    python -m benchmarks.optimum [--quick]

There are three games, two algorithms and three seeds, so 18 runs, one after the other. Each run is written to
runs/optimum/ when it is over, and a finished run is not repeated: start the program again to continue. At the end it
writes benchmarks/results/optimum.json and draws docs/optimum.png; if some of the 18 runs were left out, both go to
runs/optimum/. It fails if a run is below 95 % of the optimum at temperature 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .dynamic_programming import best_value, random_value
from .games import GAMES, Game
from .recipes import settings_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "optimum.json"
PICTURE = ROOT / "docs" / "optimum.png"
REQUIRED = 0.95  # of the optimum's reward, at temperature 0, where the value is exact
ALGORITHMS = ["grpo", "rloo"]
SEEDS = [1, 2, 3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first seed only")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, help="rounds of episodes; by default those of each game's recipe")
    parser.add_argument("--runs", type=Path, default=Path("runs", "optimum"), help="folder of the runs (%(default)s)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are too small for more; read when PyTorch is loaded
    seeds = arguments.seeds[:1] if arguments.quick else arguments.seeds

    print(f"{'game':<12}{'algorithm':<11}{'seed':>4}{'greedy':>10}{'sampled':>10}{'of optimum':>12}{'processor s':>13}")
    games: dict[str, Any] = {}
    for name in arguments.games:
        games[name] = known_values(GAMES[name]) | {"runs": []}
        for algorithm, seed in itertools.product(arguments.algorithms, seeds):
            settings = settings_of(name, algorithm, seed, arguments.rounds)
            run = finished_run(arguments.runs / f"{name}-{algorithm}-seed{seed}.json", GAMES[name], settings)
            run["share_of_optimum"] = run["greedy"]["reward"] / games[name]["optimum"]["reward"]
            games[name]["runs"].append(run)
            print(line(run), flush=True)

    is_whole = (arguments.games, arguments.algorithms, seeds, arguments.rounds) == (
        list(GAMES),
        ALGORITHMS,
        SEEDS,
        None,
    )
    write(games, *((RESULTS, PICTURE) if is_whole else (arguments.runs / RESULTS.name, arguments.runs / PICTURE.name)))
    if low := [run for game in games.values() for run in game["runs"] if run["share_of_optimum"] < REQUIRED]:
        sys.exit(f"below {REQUIRED:.0%} of the optimum:\n" + "\n".join(map(line, low)))


def known_values(game: Game) -> dict[str, Any]:
    """The values of the best policy and of random play, by dynamic programming."""
    values = {"optimum": best_value(game.start), "random play": random_value(game.start)}
    named = {
        name: {field: float(number) for field, number in value._asdict().items()} for name, value in values.items()
    }
    return {"title": game.title, **named}


def finished_run(path: Path, game: Game, settings: dict[str, Any]) -> dict[str, Any]:
    """The run of this file if it had these settings; otherwise train, and write the file."""
    if path.exists():
        run = json.loads(path.read_text())
        if run["settings"] == settings:
            return run
    from .training import train  # here, since PyTorch takes seconds to load

    run = train(game, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")  # so that a killed process leaves no incomplete file under this name
    partial.write_text(json.dumps(run, indent=2) + "\n")
    partial.replace(path)
    return run


def line(run: dict[str, Any]) -> str:
    settings = run["settings"]
    rewards = f"{run['greedy']['reward']:>10.3f}{run['sampled']['reward']:>10.3f}{run['share_of_optimum']:>12.1%}"
    name = f"{settings['game']:<12}{settings['algorithm']:<11}{settings['seed']:>4}"
    return f"{name}{rewards}{run['processor_seconds']:>13.0f}"


def write(games: dict[str, Any], results: Path, picture: Path) -> None:
    from .picture import draw

    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    versions = {name: version(name) for name in ("torch", "transformers")}
    results.write_text(json.dumps({"machine": machine, "versions": versions, "games": games}, indent=2) + "\n")
    draw(games, picture)
    print(f"{results} and {picture} are written")


if __name__ == "__main__":
    main()
