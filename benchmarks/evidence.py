"""Pictures and tables of docs/evidence.md.

- `draw_panel`: the curves of several runs, a thin line for each seed and a thick line for their mean.
- `write_table`: a Markdown table between two markers of the page.
- `spread`: the mean of some numbers, with the lowest and the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

COLOURS = ("#d55e00", "#0072b2")  # distinguishable for colour-blind readers


@dataclass(kw_only=True, frozen=True)
class Curve:
    """The runs of one way to train, one for each seed."""

    name: str
    x_ST: Sequence[Sequence[float]]
    y_ST: Sequence[Sequence[float]]


def make_figure(panels: int, *, width: float = 4.5, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure with panels side by side; not pyplot's, whose figures are global."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def draw_panel(axes: Any, curves: Sequence[Curve], *, title: str, xlabel: str, ylabel: str) -> None:
    """Draw curves into one panel; the mean is computed at 100 points of the range that all seeds cover."""
    for curve, colour in zip(curves, COLOURS[: len(curves)], strict=True):
        for x_T, y_T in zip(curve.x_ST, curve.y_ST, strict=True):
            axes.plot(x_T, y_T, color=colour, linewidth=0.8, alpha=0.4)
        first, last = max(x_T[0] for x_T in curve.x_ST), min(x_T[-1] for x_T in curve.x_ST)
        places = np.linspace(first, last, 100)
        mean = np.mean([np.interp(places, x_T, y_T) for x_T, y_T in zip(curve.x_ST, curve.y_ST, strict=True)], axis=0)
        axes.plot(places, mean, color=colour, linewidth=2.2, label=curve.name)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(-0.03, 1.03))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def smooth(values: Sequence[float], width: int) -> list[float]:
    """The moving mean of each value and the `width - 1` values before it."""
    windows = [values[max(0, place + 1 - width) : place + 1] for place in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def write_table(page: Path, name: str, rows: Sequence[Sequence[str]]) -> None:
    """Replace the table of this name; the first row is its header.

    Raises:
        ValueError: the page does not have the table's two markers.
    """
    begin, end = f"<!-- {name}: written by its program -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} must have the lines {begin.strip()!r} and {end.strip()!r}")
    head, *others = rows
    table = "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *others])
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}")
