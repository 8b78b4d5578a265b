"""EpisodeRow: what a list shows of one episode."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ...envs.core import StopReason
from ...envs.episode import Episode
from ...envs.runtime.message_text import named_text
from .tail import Place

PREVIEW = 160
"""Characters of a task that a list shows."""


@dataclass(kw_only=True, slots=True)
class EpisodeRow:
    """One episode in brief; the episode itself stays in its file."""

    place: Place
    step: int  # that it was played for, from 1 as in `metrics.jsonl`; of an evaluation, the steps before it
    evaluation: str | None  # the title of the evaluation that played it; None: a round of the training
    group: str
    member: int
    task: str
    question: str  # the beginning of the last message of the prompt
    reward: float | None
    success: float | None  # the environment's metric
    stop: str
    seconds: float
    turns: int
    tokens: int  # that the model sampled
    tools: list[str]  # the tool of each call, in order
    errors: list[ToolError]
    has_tools: bool  # whether the model was shown any
    failure: str | None  # such as `step: TimeoutError: ...`
    traceback: str | None  # of the failure
    learning: list[Place] = field(default_factory=list)  # its lines in `learning.jsonl`
    vote: str | None = None  # None: not known
    pull: float = 0.0  # sum over its tokens of |derivative of the loss by the log-probability|
    cut: int = 0  # tokens that were clipped, or cut by a correction

    @property
    def is_truncated(self) -> bool:
        return self.stop in TRUNCATIONS

    @property
    def is_overlong(self) -> bool:
        """Whether the prompt was longer than the context."""
        return self.stop == StopReason.CONTEXT_OVERFLOW and not self.turns

    @property
    def kind_of_failure(self) -> str:
        """Stage and exception of its failure, as in `step: TimeoutError`."""
        return ":".join((self.failure or "").split(":")[:2])


@dataclass(kw_only=True, slots=True, frozen=True)
class ToolError:
    """A tool call that failed."""

    tool: str
    outcome: str
    message: str  # its first line
    traceback: str | None


TRUNCATIONS = frozenset(str(reason) for reason in StopReason if reason.is_truncation)
"""Stop reasons at which a limit cut the episode."""


def rows_of(episodes: Sequence[Episode]) -> list[EpisodeRow]:
    """Return the rows of episodes that are in no file."""
    nowhere = Place(Path(os.devnull), 0, 0, 0)
    return [row_of(nowhere, {"step": 0, "episode": from_json(episode.to_json())}) for episode in episodes]


def row_of(place: Place, line: Mapping[str, Any]) -> EpisodeRow:
    """Return the row of an episode's line; a KeyError or TypeError if it is no such line."""
    episode = line["episode"]
    spec, prompt, turns, failure = (episode[name] for name in ("spec", "prompt", "turns", "failure"))
    calls = [call for turn in turns for outer in turn["tool_calls"] for call in (outer, *outer.get("inside", ()))]
    return EpisodeRow(
        place=place,
        step=line["step"] + ("title" not in line),
        evaluation=line.get("title"),
        group=spec["group"],
        member=spec["member"],
        task=spec["task"]["id"],
        question=" ".join(named_text(prompt[-1]).split())[:PREVIEW] if prompt else "",
        reward=None if episode["reward"] is None else float(episode["reward"]),  # infinity and NaN are strings
        success=None if (success := episode["metrics"].get("success")) is None else float(success),
        stop=episode["stop"],
        seconds=episode["seconds"],
        turns=len(turns),
        tokens=sum(turn["num_tokens"] for turn in turns),
        tools=[call["name"] for call in calls],
        errors=[_error(call) for call in calls if call["outcome"] not in ("ok", "not_run")],
        has_tools=bool(episode["tools"]),
        failure=_first_line(f"{failure['stage']}: {failure['type']}: {failure['message']}") if failure else None,
        traceback=failure["traceback"] if failure else None,
    )


def add_learning(row: EpisodeRow, place: Place, line: Mapping[str, Any]) -> None:
    """Add a line of `learning.jsonl` about this episode."""
    row.learning.append(place)
    if "vote" in line:
        row.vote = line["vote"]
    if "update" in line:
        row.pull += sum(abs(value) for value in line["gradient"] if value is not None)
        row.cut += len({*line.get("clipped", ()), *line.get("cut", ())})


def _error(call: Mapping[str, Any]) -> ToolError:
    message = _first_line(call["error"] or call["outcome"])
    return ToolError(tool=call["name"], outcome=call["outcome"], message=message, traceback=call["traceback"])


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
