"""Draws what each of many episodes does over time.

- `Timeline`: records when each episode generated and when its tools ran.
- `WatchedGenerator`: our generator, which records the time of its rows.
- `draw`: several timelines, one above the other, on one time axis.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gymnast.trainer.generation.contract import Generation, GenerationRequest
from gymnast.trainer.generation.transformers_generator import TransformersGenerator

Kind = Literal["generation", "tool"]

EPISODE: ContextVar[Hashable] = ContextVar("EPISODE")  # the one that the code here works for; threads inherit it
COLOURS: dict[Kind, str] = {"generation": "#0072b2", "tool": "#e69f00"}  # which colour-blind eyes tell apart
WAITING = "#d9d9d9"
MAGNIFIED = 0.4  # a timeline that is this much shorter than the axis is shown once more, stretched


@dataclass(slots=True, frozen=True)
class Span:
    kind: Kind
    start: float  # seconds since the timeline's start
    end: float


class Timeline:
    """The spans of each episode; methods may be called from any thread."""

    def __init__(self) -> None:
        self.episodes: defaultdict[Hashable, list[Span]] = defaultdict(list)
        self.seconds = 0.0  # from start to stop
        self._origin = math.nan

    def start(self) -> None:
        self._origin = time.perf_counter()

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._origin

    def add(self, episode: Hashable, kind: Kind, start: float, end: float) -> None:
        """Record an episode's activity between two readings of `time.perf_counter`."""
        self.episodes[episode].append(Span(kind, start - self._origin, end - self._origin))

    def sleep(self, seconds: float) -> None:
        """Sleep, as a tool of the current episode."""
        started = time.perf_counter()
        time.sleep(seconds)
        self.add(EPISODE.get(), "tool", started, time.perf_counter())

    def count(self, kind: Kind) -> int:
        """How many spans there are of a kind."""
        return sum(span.kind == kind for spans in self.episodes.values() for span in spans)

    def rows(self) -> list[list[Span]]:
        """The episodes, the first to end first."""
        return sorted(self.episodes.values(), key=_end)


class WatchedGenerator(TransformersGenerator):
    """Notes for each answer when its batch began and when the episode had it; the time before that was waiting."""

    def __init__(self, timeline: Timeline, model: Any, *, pad_id: int) -> None:
        super().__init__(model, pad_id=pad_id)
        self._timeline = timeline

    async def generate(self, request: GenerationRequest) -> Generation:
        EPISODE.set(asyncio.current_task())  # an episode is a task, and its tools' threads inherit the variable
        asked = time.perf_counter()
        answer = await super().generate(request)
        self._timeline.add(EPISODE.get(), "generation", asked + answer.waiting_seconds, time.perf_counter())
        return answer


def draw(timelines: Mapping[str, Timeline], path: Path) -> None:
    """Draw timelines, by name, one above the other on one axis of seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    longest = max(timeline.seconds for timeline in timelines.values())
    figure = Figure(figsize=(9, 1.1 + 2.9 * len(timelines)), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(timelines), sharex=True, squeeze=False)[:, 0]
    for axes, (name, timeline) in zip(panels, timelines.items(), strict=True):
        _panel(axes, timeline)
        count = len(timeline.episodes)
        title = f"{name}: {count} episodes in {timeline.seconds:.1f} s, {count / timeline.seconds:.1f} a second"
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        if timeline.seconds < MAGNIFIED * longest:
            _magnify(axes, timeline, longest)
    panels[-1].set(xlim=(0, longest))
    _legend(figure)
    figure.savefig(path)


def _panel(axes: Any, timeline: Timeline) -> None:
    """One line for each episode, the first to end at the top."""
    rows = timeline.rows()
    axes.barh(range(len(rows)), [_end(spans) for spans in rows], height=1, color=WAITING, linewidth=0)
    for kind, colour in COLOURS.items():
        bars = [(y, span) for y, spans in enumerate(rows) for span in spans if span.kind == kind]
        axes.barh(
            [y for y, _ in bars],
            [span.end - span.start for _, span in bars],
            left=[span.start for _, span in bars],
            height=0.75,
            color=colour,
            linewidth=0,
        )
    axes.set(ylim=(len(rows) - 0.5, -0.5), yticks=[], ylabel=f"{len(rows)} episodes")
    axes.xaxis.set_major_formatter("{x:g} s")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _magnify(axes: Any, timeline: Timeline, longest: float) -> None:
    """Show the panel once more in its own empty part, stretched in time."""
    narrow = timeline.seconds / longest  # of the panel's width, which is 1 here, as is its height
    left, right, bottom, top = narrow + 0.06, 1.0, 0.12, 1.0
    corners = [(narrow, 1), (left, top), (left, bottom), (narrow, 0)]
    axes.fill(*zip(*corners, strict=True), color="0.95", transform=axes.transAxes, linewidth=0)
    inset = axes.inset_axes((left, bottom, right - left, top - bottom))
    _panel(inset, timeline)
    inset.set(xlim=(0, timeline.seconds), ylabel="")
    words = f"the same, {(right - left) / narrow:.0f} times as wide"
    inset.text(1, 0.97, words, transform=inset.transAxes, ha="right", va="top")


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    names = {"generating": COLOURS["generation"], "running its tool": COLOURS["tool"], "waiting": WAITING}
    handles = [Patch(color=colour, label=name) for name, colour in names.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)


def _end(spans: list[Span]) -> float:
    return max(span.end for span in spans)
