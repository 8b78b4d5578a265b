"""A benchmark's table: figures with their targets and the peers' values from the same run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Values = dict[str, float | str]  # the values of a measurement; a text says why there is no number


@dataclass(kw_only=True, frozen=True)
class Figure:
    """One line of the table."""

    key: str  # in the values of the measurements
    name: str
    unit: str
    target: float | None  # None for figures that the others are compared with
    at_least: bool = False  # the target is a minimum, not a maximum
    peers: bool = True  # False if the peers have nothing comparable

    def met(self, value: float | str) -> bool | None:
        if self.target is None:
            return None
        return not isinstance(value, str) and (value >= self.target if self.at_least else value <= self.target)

    def ratio(self, value: float | str, peers: dict[str, float | str | None]) -> float | None:
        """Return how many times better than the best peer the figure is, or None without a peer."""
        numbers = [peer for peer in peers.values() if isinstance(peer, float)]
        if self.unit not in ("ms", "s", "1/s") or isinstance(value, str) or not numbers:
            return None
        return value / max(numbers) if self.at_least else min(numbers) / value


def entry(figure: Figure, ours: Values, theirs: dict[str, Values]) -> dict[str, Any]:
    """A line of the table as JSON."""
    value = ours[figure.key]
    peers = {peer: values[figure.key] if figure.peers else None for peer, values in theirs.items()}
    ratio = figure.ratio(value, peers)
    return {
        "name": figure.name,
        "value": value if isinstance(value, str) else round(value, 3),
        "unit": figure.unit,
        "target": figure.target,
        "target_is": "at least" if figure.at_least else "at most",
        "met": figure.met(value),
        "peers": peers,
        "times_the_best_peer": None if ratio is None else round(ratio, 1),
    }


def rounded(values: Values) -> Values:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def print_table(entries: list[dict[str, Any]], peers: list[str]) -> None:
    """Print the table, notes for figures without a number, and how many targets were met."""
    width = max(len(_title(entry)) for entry in entries) + 2
    print(f"\n{'':<{width}}{'here':>9} {'target':>9} met" + "".join(f"{peer:>13}" for peer in peers) + "  best peer")
    notes: list[str] = []
    for entry in entries:
        title = _title(entry)
        here = _cell(entry["value"], title, notes)
        cells = "".join(f"{_cell(entry['peers'][peer], f'{title}, {peer}', notes):>13}" for peer in peers)
        ratio = entry["times_the_best_peer"]
        shown = "" if ratio is None else f"{ratio:>9,.{0 if ratio >= 10 else 1}f} x"
        sign = ">=" if entry["target_is"] == "at least" else "<="
        target = "-" if entry["target"] is None else f"{sign} {entry['target']:g}"
        met = {True: "yes", False: "NO", None: "-"}[entry["met"]]
        print(f"{title:<{width}}{here:>9} {target:>9} {met:>3}{cells}{shown}")
    print("".join(f"{note}\n" for note in notes), end="")
    met = [entry["met"] for entry in entries if entry["met"] is not None]
    print(f"{sum(met)} of {len(met)} targets met")


def _title(entry: dict[str, Any]) -> str:
    return f"{entry['name']}{', ' + entry['unit'] if entry['unit'] else ''}"


def _cell(value: float | str | None, title: str, notes: list[str]) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        notes.append(f"({len(notes) + 1}) {title.strip()}: {value}")
        return f"({len(notes)})"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
