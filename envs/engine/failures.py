"""Failures of episodes: what to do about a failed episode, counts and a summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..core import StopReason
from ..episode import Episode


@dataclass(slots=True, frozen=True)
class OnFailure:
    """What to do with a failed episode.

    - `drop`: it leaves its group, and is counted.
    - `retry(n)`: it is played again up to n times with other samples from the same start, then dropped. If a reward
      function failed, only that function is called again.
    - `zero`: its reward is zero. An episode without a sampled token leaves its group all the same.
    - `raise`: it stops the run.
    """

    action: Literal["drop", "retry", "zero", "raise"]
    retries: int = 0

    @classmethod
    def parse(cls, text: str) -> OnFailure:
        """Read `drop`, `retry(2)`, `zero` or `raise`."""
        match = re.fullmatch(r"(drop|zero|raise)|(retry)\((\d+)\)", text.replace(" ", ""))
        if match is None or match[3] == "0":
            raise ValueError(f"on_failure must be 'drop', 'retry(n)' with n >= 1, 'zero' or 'raise', got {text!r}")
        return cls(match[1] or match[2], int(match[3] or 0))  # type: ignore[arg-type]


class EpisodeFailedError(RuntimeError):
    """An episode failed and `on_failure="raise"`; the message ends with the episode's own traceback."""

    def __init__(self, episode: Episode) -> None:
        assert episode.failure is not None
        super().__init__(
            f"episode {episode.spec.group}[{episode.spec.member}] failed: {episode.failure}\n\n"
            f"{episode.failure.traceback}"
        )
        self.episode = episode


def failure_counts(episodes: Iterable[Episode]) -> Counter[str]:
    """Count failed episodes by stage and exception, as in `{"reset: ConnectionError": 3}`.

    Episodes that `episode_timeout` truncated are not failures, but are counted too, as `"timeout"`.
    """
    counts: Counter[str] = Counter()
    for episode in episodes:
        if episode.failure is not None:
            counts[episode.failure.kind] += 1
        elif episode.stop is StopReason.TIMEOUT:
            counts["timeout"] += 1
    return counts


def failure_summary(episodes: Iterable[Episode]) -> str:
    """Return the counts in one line, with the last message of each kind; the empty string if nothing failed.

    Example: `5 x reset: ConnectionError (the database is down), 1 x timeout`.
    """
    episodes = list(episodes)
    last = {episode.failure.kind: episode.failure.message for episode in episodes if episode.failure}
    parts = []
    for reason, count in failure_counts(episodes).most_common():
        message = last.get(reason, "").strip().partition("\n")[0]
        parts.append(f"{count} x {reason}" + (f" ({message})" if message else ""))
    return ", ".join(parts)
