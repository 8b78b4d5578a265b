"""FailureTotals: everything that went wrong in a training, by type, for one line at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...envs.engine.failures import failure_counts
from ...envs.episode import Episode, Failure


@dataclass
class FailureTotals:
    """Counts under names such as `step: TimeoutError`, or `look: timeout` for a call of the tool `look`."""

    played: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # episodes that failed, or that episode_timeout cut
    retried: Counter[str] = field(default_factory=Counter)  # failures that were followed by another attempt
    unclosed: Counter[str] = field(default_factory=Counter)  # environments that did not close cleanly
    tools: Counter[str] = field(default_factory=Counter)  # calls that raised or timed out, not the model's mistakes

    def add(self, episodes: Sequence[Episode]) -> None:
        """Count the episodes of a round."""
        self.played += len(episodes)
        self.lost += failure_counts(episodes)
        self.retried += _kinds(failure for each in episodes for failure in each.retried)
        self.unclosed += _kinds(each.close_failure for each in episodes if each.close_failure is not None)
        calls = (record for each in episodes for record in each.tool_calls)
        self.tools += Counter(
            f"{each.name}: {each.outcome}" for each in calls if each.outcome in ("exception", "timeout")
        )

    @classmethod
    def of(cls, parts: Iterable[FailureTotals]) -> FailureTotals:
        """The sums over these parts, such as those of several processes."""
        total = cls()
        for part in parts:
            total.played += part.played
            total.lost += part.lost
            total.retried += part.retried
            total.unclosed += part.unclosed
            total.tools += part.tools
        return total

    def __str__(self) -> str:
        """One line; empty if nothing went wrong."""
        parts = {
            f"lost episodes: {self.lost.total()} of {self.played}": self.lost,
            f"failures tried again: {self.retried.total()}": self.retried,
            f"environments not closed cleanly: {self.unclosed.total()}": self.unclosed,
            f"broken tool calls: {self.tools.total()}": self.tools,
        }
        return "; ".join(f"{text} ({_listed(counts)})" for text, counts in parts.items() if counts)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(
        f"{count} x {kind}" for kind, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )


def _kinds(failures: Iterable[Failure]) -> Counter[str]:
    return Counter(failure.kind for failure in failures)
