"""Draws the curves of all runs beside the optimum and random play."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

COLOURS = {"grpo": "#0072b2", "rloo": "#e69f00"}  # which colour-blind eyes tell apart
ROWS = {"reward": "reward", "success": "success", "turns": "turns"}


def draw(games: dict[str, Any], path: Path) -> None:
    """One column for each game; the line is the mean of the seeds, the band their range."""
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
    figure.legend(handles, labels, loc="outside upper right", ncols=len(handles), frameon=False)
    figure.savefig(path)


def _panel(axes: Any, game: dict[str, Any], name: str) -> None:
    for algorithm, colour in COLOURS.items():
        curves = [run["curve"] for run in game["runs"] if run["settings"]["algorithm"] == algorithm]
        if curves:
            steps = [point["step"] for point in curves[0]]
            values_of_step = [[point[name] for point in points] for points in zip(*curves, strict=True)]
            axes.plot(steps, list(map(mean, values_of_step)), color=colour, label=algorithm.upper())
            low, high = [min(values) for values in values_of_step], [max(values) for values in values_of_step]
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(game["optimum"][name], color="black", linestyle="--", linewidth=1, label="best policy (computed)")
    axes.axhline(game["random play"][name], color="0.4", linestyle=":", linewidth=1.2, label="random play (computed)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
