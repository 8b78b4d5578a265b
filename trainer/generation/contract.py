"""The contract between a policy and an inference engine: token ids in, sampled ids and their log-probabilities out.

- `Generator`: the class that an engine implements, with `GenerationRequest` and `Generation`.
- `GenerationError`: the engine could not answer.
- `check_request`: the checks that every engine makes before it begins.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from .sampling import Sampling


class GenerationError(RuntimeError):
    """The engine could not answer; its own error is the cause."""


@dataclass(kw_only=True, slots=True, frozen=True)
class GenerationRequest:
    """A request for one answer."""

    prompt_ids: Sequence[int]  # all tokens so far
    max_tokens: int  # most tokens of the answer
    stop_ids: frozenset[int]  # any of them ends the answer, and is part of it
    seed: int  # not negative; the same seed gives the same answer in every batch, up to floating-point rounding
    sampling: Sampling


@dataclass(kw_only=True, slots=True, frozen=True)
class Generation:
    """One answer.

    Raises:
        ValueError: there is not one finite log-probability for each token.
    """

    token_ids: list[int]  # (T,) as sampled; the stop token included
    logprobs: list[float]  # (T,) under the sampling distribution; for greedy decoding, at temperature 1
    finish: Literal["stop", "length"]  # a stop token came, or max_tokens was reached
    prompt_ids: list[int]  # the prompt as the engine saw it
    weight_version: int = 0  # optimiser steps that the weights had taken
    num_cached: int = 0  # prompt tokens that the engine found in its prefix cache

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids) or not all(map(math.isfinite, self.logprobs)):
            odd = [each for each in self.logprobs if not math.isfinite(each)]
            raise ValueError(
                f"a generation needs one finite log-probability for each of its {len(self.token_ids)} tokens, got "
                f"{len(self.logprobs)}, {len(odd)} of them not finite"
            )


class Generator(ABC):
    """An inference engine.

    Before a round the trainer calls `wake`, and `load_weights` if the weights have changed; after it, `sleep`. During
    these calls no request is in flight.
    """

    is_shared = False  # one engine serves all training processes: all call `load_weights`, and the first one sends

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer; requests that are in flight together may share a batch."""

    @abstractmethod
    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Sample with this model's weights from now on; they have taken `version` optimiser steps."""

    def wake(self) -> None:  # noqa: B027
        """Take back the memory that `sleep` released."""

    def sleep(self) -> None:  # noqa: B027
        """Release resources that training may use meanwhile, such as the memory of a shared GPU."""

    @abstractmethod
    def close(self) -> None:
        """Release the engine; requests without an answer fail."""


def check_request(request: GenerationRequest, vocab_size: int) -> None:
    """Check a request: on an accelerator, a token that the model does not know ends the process.

    Raises:
        ValueError: there is nothing to continue, no token may be generated, or a token is not in the vocabulary.
    """
    if not request.prompt_ids or request.max_tokens < 1:
        raise ValueError(
            f"a request needs a prompt and max_tokens >= 1, got {len(request.prompt_ids)} prompt tokens and "
            f"max_tokens={request.max_tokens}"
        )
    if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocab_size:
        raise ValueError(f"the prompt has token {max(request.prompt_ids)}, but the model's vocabulary has {vocab_size}")
