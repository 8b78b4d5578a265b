"""Alarms of a run, each with its cause and an episode that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...envs.line_files import skipped
from ..files.episodes import EpisodeRow
from ..files.run import Run
from .metric_alarms import (
    MANY_FLAT,
    MANY_TRUNCATED,
    REPEATED,
    alike,
    flat_share,
    gap_growth,
    has_converged,
    length_growth,
    low_sample_size,
    rejected_share,
    shifts,
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Alarm:
    """One thing that is wrong."""

    kind: str
    title: str  # what happened, in one line
    cause: str  # the likeliest reason, or the remedy
    step: int | None = None
    episode: int | None = None  # an example: its place in `Run.episodes`
    detail: str | None = None  # a traceback


def alarms(run: Run) -> list[Alarm]:
    """The alarms of a run, the worst first."""
    return [alarm for check in CHECKS for alarm in check(run)]


def _broken_lines(run: Run) -> Iterator[Alarm]:
    if run.broken:
        cause = "A killed process, or a full disk, leaves such a line."
        yield Alarm(kind="broken lines", title=skipped(run.broken), cause=cause)


def latest_episodes(run: Run) -> list[EpisodeRow]:
    """The episodes of the last recorded step."""
    *_, (_, rows) = [(0, []), *run.steps()]
    return rows


def spread(rows: Sequence[EpisodeRow]) -> tuple[int, int]:
    """The number of groups whose rewards differ, and of groups with two rewards or more."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.reward is not None:
            groups.setdefault(row.group, []).append(row.reward)
    compared = [rewards for rewards in groups.values() if len(rewards) >= 2]
    return sum(max(rewards) - min(rewards) > 1e-8 for rewards in compared), len(compared)


def _failures(run: Run) -> Iterator[Alarm]:
    kinds = Counter(_kind(row) for row in run.episodes if row.failure)
    for kind, count in kinds.most_common(3):
        place, first = next(
            (place, row) for place, row in enumerate(run.episodes) if row.failure and _kind(row) == kind
        )
        yield Alarm(
            kind="failures",
            title=f"{count} of {len(run.episodes)} episodes failed: {first.failure}",
            cause="A failed episode has no reward and leaves its group.",
            step=first.step,
            episode=place,
            detail=first.traceback,
        )


def _kind(row: EpisodeRow) -> str:
    return ":".join((row.failure or "").split(":")[:2])


def _repeated_errors(run: Run) -> Iterator[Alarm]:
    found = [(place, row, error) for place, row in enumerate(run.episodes) for error in row.errors]
    counts = Counter((error.tool, error.outcome, alike(error.message)) for _, _, error in found)
    calls = Counter(tool for row in run.episodes for tool in row.tools)
    for (tool, outcome, message), count in counts.most_common(3):
        if count < REPEATED:
            continue
        place, row, first = next(
            each
            for each in found
            if (each[2].tool, each[2].outcome, alike(each[2].message)) == (tool, outcome, message)
        )
        cause = {
            "exception": "The tool raises this exception, which may be a bug; the model sees it as a message.",
            "refused": "The tool tells the model of its mistake by a ValueError; the prompt may have to say it first.",
            "timeout": "The tool takes longer than its timeout.",
            "unknown": "There is no tool of this name: the prompt or the demonstrations may promise it.",
            "bad_arguments": "The model passes arguments that the signature refuses; see the tool's docstring.",
        }[outcome]
        yield Alarm(
            kind="tool errors",
            title=f"{count} of {calls[tool]} calls of {tool} end with the same error: {first.message}",
            cause=cause,
            step=row.step,
            episode=place,
            detail=first.traceback,
        )


def _no_spread(run: Run) -> Iterator[Alarm]:
    share = flat_share(run.metrics)
    with_spread, groups = spread(rows := latest_episodes(run))
    if share is None and groups:
        share = 1 - with_spread / groups
    if share is not None and share > MANY_FLAT and not has_converged(run.metrics):
        rewards = {row.reward for row in rows if row.reward is not None}
        cause = f"All rewards of the last recorded step are {min(rewards):g}." if len(rewards) == 1 else ""
        yield Alarm(
            kind="no spread",
            title=f"{share:.0%} of the latest groups have equal rewards, so they teach nothing",
            cause=cause or "Tasks are too easy or too hard; max_refills replaces such groups.",
            step=rows[0].step if rows else None,
            episode=run.episodes.index(rows[0]) if rows else None,
        )


def _truncation(run: Run) -> Iterator[Alarm]:
    rows = latest_episodes(run)
    cut = [row for row in rows if row.is_truncated]
    if rows and len(cut) / len(rows) > MANY_TRUNCATED:
        [(stop, count)] = Counter(row.stop for row in cut).most_common(1)
        yield Alarm(
            kind="truncation",
            title=f"a limit cut {len(cut) / len(rows):.0%} of the episodes of step {cut[0].step}, most often {stop}",
            cause=f"{count} episodes stopped by {stop}: raise the limit, or let the prompt ask for shorter answers.",
            step=cut[0].step,
            episode=run.episodes.index(cut[0]),
        )


def _shifts(run: Run) -> Iterator[Alarm]:
    for reason, before, after in shifts(run.metrics):
        yield Alarm(
            kind="stop reasons",
            title=f"{reason} went from {before:.0%} to {after:.0%} of the episodes",
            cause="The policy ends its episodes in another way than at the beginning; compare the same task.",
            step=run.metrics[-1]["step"],
        )


def _gap(run: Run) -> Iterator[Alarm]:
    if (growth := gap_growth(run.metrics)) is not None:
        before, after = growth
        yield Alarm(
            kind="gap",
            title=f"the generator's log-probabilities differ from the trainer's by {after:.3g}; it was {before:.3g}",
            cause="Precision, kernels or stale weights differ: colour the tokens by gap to see where.",
            step=run.metrics[-1]["step"],
        )
    if (size := low_sample_size(run.metrics)) is not None:
        yield Alarm(
            kind="gap",
            title=f"the effective sample size is {size:.2f}",
            cause="Most of the gradient comes from few tokens; use a correction that masks, such as 'icepop'.",
            step=run.metrics[-1]["step"],
        )


def _rejections(run: Run) -> Iterator[Alarm]:
    if (share := rejected_share(run.metrics)) is not None:
        yield Alarm(
            kind="rejected",
            title=f"the correction removed {share:.0%} of the latest episodes, so they teach nothing",
            cause="The policy is too far from the sampler: widen correction_min and correction_max, or use 'tis'.",
            step=run.metrics[-1]["step"],
        )


def _lengths(run: Run) -> Iterator[Alarm]:
    if (growth := length_growth(run.metrics)) is not None:
        before, after = growth
        yield Alarm(
            kind="length",
            title=f"answers grow: {before:.0f} tokens at the beginning, {after:.0f} now",
            cause="Look at the longest episodes. Their reward may not depend on length, or a tool repeats itself.",
            step=run.metrics[-1]["step"],
        )


CHECKS: Sequence[Callable[[Run], Iterator[Alarm]]] = (
    *(_broken_lines, _failures, _repeated_errors, _no_spread, _truncation, _shifts, _gap, _rejections, _lengths),
)
