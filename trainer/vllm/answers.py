"""What holds for each of vLLM's answers, from this process or from a server."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .generation import GenerationError

LEAST_LOGPROB = -9999.0  # how a server writes that there is none


def check_answer(finish_reason: str | None, logprobs: Sequence[float]) -> None:
    """Check that vLLM's answer is whole and can be learned from.

    Raises:
        GenerationError: it was cut, or the model's logits are not finite.
    """
    if finish_reason not in ("stop", "length"):
        raise GenerationError(f"vLLM ended an answer early: {finish_reason}")
    if not all(LEAST_LOGPROB < each < math.inf for each in logprobs):  # false for NaN, too
        raise GenerationError("the model's logits are not finite: vLLM has no log-probability for a token")
