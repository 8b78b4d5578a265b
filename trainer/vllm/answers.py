"""Checks of vLLM's answers, from the engine in this process and from servers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..generation.contract import GenerationError

LEAST_LOGPROB = -9999.0  # a server sends this for a log-probability that is not finite


def check_answer(finish_reason: str | None, logprobs: Sequence[float]) -> None:
    """Check that an answer is complete and that its log-probabilities are finite.

    Raises:
        GenerationError: vLLM ended the answer early, or the model's logits are not finite.
    """
    if finish_reason not in ("stop", "length"):
        raise GenerationError(f"vLLM ended an answer early: {finish_reason}")
    if not all(LEAST_LOGPROB < each < math.inf for each in logprobs):  # false for NaN, too
        raise GenerationError("the model's logits are not finite: vLLM has no log-probability for a token")
