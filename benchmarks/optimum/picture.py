"""Draws the curves of all runs beside the optimum and random play."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

COLOURS = {"grpo": "#0072b2", "rloo": "#e69f00"}  # distinguishable for colour-blind readers
ROWS = {"reward": "reward", "success": "success", "turns": "turns"}


def draw(games: dict[str, Any], path: Path) -> None:
    """One column for each game. A line is the mean of the seeds, and the band is their range.

    Thick lines are at temperature 0, thin ones at temperature 1.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(games), 7.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(ROWS), len(games), sharex="col", squeeze=False)
    for column, game in enumerate(games.values()):
        for row, name in enumerate(ROWS):
            _panel(panels[row][column], game, name)
        panels[0][column].set_title(game["title"], loc="left", fontweight="bold")
        panels[-1][column].set_xlabel("optimiser step")
    for row, label in enumerate(ROWS.values()):
        panels[row][0].set_ylabel(label)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path)


def _panel(axes: Any, game: dict[str, Any], name: str) -> None:
    for algorithm, colour in COLOURS.items():
        curves = [run["curve"] for run in game["runs"] if run["settings"]["algorithm"] == algorithm]
        if curves:
            steps = [point["step"] for point in curves[0]]
            greedy, sampled = (_by_step(curves, kind, name) for kind in ("greedy", "sampled"))
            axes.plot(steps, list(map(mean, greedy)), color=colour, linewidth=2, label=algorithm.upper())
            axes.fill_between(
                steps, list(map(min, greedy)), list(map(max, greedy)), color=colour, alpha=0.2, linewidth=0
            )
            axes.plot(
                steps, list(map(mean, sampled)), color=colour, linewidth=0.8, label=f"{algorithm.upper()}, sampled"
            )
    axes.axhline(game["optimum"][name], color="black", linestyle="--", linewidth=1, label="best policy (computed)")
    axes.axhline(game["random play"][name], color="0.4", linestyle=":", linewidth=1.2, label="random play (computed)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _by_step(curves: list[list[dict[str, Any]]], kind: str, name: str) -> list[list[float]]:
    """The values of all seeds at each step."""
    return [[point[kind][name] for point in points] for points in zip(*curves, strict=True)]
