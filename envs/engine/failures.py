"""Failures of episodes: the stage of an exception, what to do about a failed episode, counts and a summary."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..core import StopReason
from ..episode import Episode, Stage
from ..runtime.user_calls import being_cancelled


class Broken(Exception):
    """An exception of the environment or the policy, and the stage at which it was raised."""

    def __init__(self, stage: Stage, error: BaseException) -> None:
        super().__init__(stage)
        self.stage: Stage = stage
        self.error = error


class at_stage:  # read as `with at_stage("step"):`
    """Turns every exception in the block into `Broken`, `SystemExit` included: user code must not end training.

    Only a cancellation of this task passes unchanged, and a `Broken`, whose stage is known. It is a class because each
    turn enters it three times, and a generator-based context manager is slower.
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: Stage) -> None:
        self._stage: Stage = stage

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, GeneratorExit | Broken):
            return
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            return
        raise Broken(self._stage, error) from error


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
