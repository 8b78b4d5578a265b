"""Alarms that several logs in a row raise."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

LEAST_SAMPLE_SIZE = 0.5
LOGS_IN_A_ROW = 3


class MismatchAlarm:
    """Warns once when the effective sample size stays low.

    Args:
        generator: The name of the generator, for the message.
    """

    def __init__(self, generator: str) -> None:
        self._generator = generator
        self._low_logs = 0

    def add(self, sample_size: float) -> None:
        """Judge `mismatch/ess` of one more log."""
        self._low_logs = self._low_logs + 1 if sample_size < LEAST_SAMPLE_SIZE else 0
        if self._low_logs == LOGS_IN_A_ROW:
            logger.warning(
                "the effective sample size is %.2f, and was below %.1f in %d logs in a row: the log-probabilities of "
                "generator=%r are far from the trainer's. Compare the precision of both (dtype, bf16, quantisation). "
                "Check that the generator has the weights in training: mismatch/kl of the first step is then near 0. "
                "Use a correction that masks, such as correction='icepop'.",
                sample_size,
                LEAST_SAMPLE_SIZE,
                LOGS_IN_A_ROW,
                self._generator,
            )
