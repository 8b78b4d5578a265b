"""TeachingOptions: which of the episodes that were played teach, and the penalty of long ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from transformers import TrainingArguments

from ...envs.core import StopReason
from ..learning.groups import TREATMENTS, Treatment, Treatments
from .fields import option


@dataclass
class TeachingOptions(TrainingArguments):
    """The part of `AgentConfig` that decides which episodes of a round are learned from."""

    truncated: dict[str, str] | str | None = option(
        None,
        "The treatment of truncated episodes: teach, mask (it counts in the baseline and has no loss) or leave; one "
        "for all, or a dict by stop reason. The default is leave for timeout, and teach for other stop reasons.",
    )
    overlong_buffer: int = option(0, "The last tokens of max_completion_length, in which the reward falls; 0 = none.")
    overlong_penalty: float = option(
        1.0, "The reward that an episode of max_completion_length loses, with overlong_buffer."
    )

    max_refills: int = option(
        0, "How many times in a round groups of equal rewards may be replaced by groups of other tasks."
    )

    @property
    def treatments(self) -> Treatments:
        """The treatment of each kind of truncated episode.

        Raises:
            TypeError, ValueError: `truncated` is not of the form that its help text says.
        """
        return parse_treatments(self.truncated)

    def check_teaching(self, max_completion_length: int) -> None:
        """Check these options.

        Raises:
            TypeError, ValueError: one is wrong, or has no effect; the message says which.
        """
        _ = self.treatments
        if self.overlong_buffer > max_completion_length:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} must be at most "
                f"max_completion_length={max_completion_length}: it is the last part of it"
            )
        if self.overlong_buffer and not self.overlong_penalty:
            raise ValueError(
                f"overlong_penalty=0 switches overlong_buffer={self.overlong_buffer} off: set overlong_buffer=0"
            )
        if self.overlong_penalty != 1.0 and not self.overlong_buffer:
            raise ValueError(
                f"overlong_penalty={self.overlong_penalty} needs overlong_buffer=n: the reward falls in the last n "
                f"tokens before max_completion_length"
            )


def parse_treatments(given: Any) -> Treatments:
    """The treatment of each kind of truncated episode, from the option `truncated`.

    Raises:
        TypeError: it is neither a name nor a dict.
        ValueError: a treatment or a stop reason does not exist; the message lists those that do.
    """
    if given is None:
        return TREATMENTS
    if isinstance(given, str):
        given = dict.fromkeys(TREATMENTS, given)
    if not isinstance(given, Mapping):
        raise TypeError(
            f"truncated must be 'teach', 'mask', 'leave', or a dict such as {{'max_turns': 'mask'}}, got {given!r}"
        )
    reasons = [reason.value for reason in TREATMENTS]
    chosen = dict(TREATMENTS)
    for reason, treatment in given.items():
        if reason not in reasons:
            raise ValueError(f"truncated has no stop reason {reason!r}; known are {', '.join(reasons)}")
        if treatment not in get_args(Treatment):
            raise ValueError(
                f"truncated[{str(reason)!r}] must be one of {', '.join(get_args(Treatment))}, got {treatment!r}"
            )
        chosen[StopReason(reason)] = treatment
    return chosen
