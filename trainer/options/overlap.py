"""OverlapOptions: rollouts that overlap with updates."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option
from .teaching import TeachingOptions


@dataclass
class OverlapOptions(TeachingOptions):
    """The part of `AgentConfig` that lets episodes be played while the model trains."""

    max_staleness: int = option(
        0, "Optimiser steps that episodes may start before the step that trains on them; 0 = play, then train."
    )

    def check_overlap(self, correction: str, *, may_correct: bool, sleeps: bool) -> None:
        """Check these options.

        Args:
            correction: The name of the correction.
            may_correct: Whether the sampler's log-probabilities can be compared with the trainer's.
            sleeps: Whether the generator releases its memory while the model trains.

        Raises:
            ValueError: two options contradict each other; the message names both.
        """
        if not self.max_staleness:
            return
        given = f"max_staleness={self.max_staleness}"
        if correction == "none":
            remedy = "leave correction out, or set it to 'tis'" if may_correct else "switch off top_p, top_k and min_p"
            raise ValueError(
                f"{given} trains on samples of older weights, which is wrong without a correction, and correction is "
                f"'none': {remedy}, or set max_staleness=0"
            )
        if self.max_refills:
            raise ValueError(
                f"max_refills={self.max_refills} replaces groups of a round, and with {given} the groups of the next "
                f"rounds are in flight already: set one of the two to 0"
            )
        if sleeps:
            raise ValueError(
                f"vllm_enable_sleep_mode=True lets the generator sleep while the model trains, and with {given} it "
                f"generates meanwhile: set one of the two to its default"
            )
