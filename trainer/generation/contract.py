"""The contract between a policy and an inference engine: tokens in, sampled ids and their log-probabilities out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedModel

from ...envs.tokens import Tokens
from .sampling import Sampling


class GenerationError(RuntimeError):
    """The engine could not answer. Its own error is the cause."""


@dataclass(slots=True, frozen=True)
class StopTexts:
    """Texts that end an answer, and the function that reads its tokens."""

    texts: tuple[str, ...]
    decode: Callable[[Sequence[int]], str] = field(compare=False)

    def end_with(self, token_ids: Sequence[int]) -> bool:
        """Return whether the last of these tokens completes one of the texts."""
        # A token of a text has at least one of its bytes. A few more, as a tokenizer may read the first one otherwise.
        tail = max(len(text.encode()) for text in self.texts) + 4
        read = self.decode(token_ids[-tail:])
        return any(text in read for text in self.texts)

    def cut(self, token_ids: list[int]) -> list[int] | None:
        """Return the tokens up to the first one that completes a text; None if no token does."""
        parts = (token_ids[:count] for count in range(1, len(token_ids) + 1))
        return next(filter(self.end_with, parts), None)


@dataclass(kw_only=True, slots=True, frozen=True)
class GenerationRequest:
    """A request for one answer."""

    prompt: Tokens  # all tokens so far
    max_tokens: int  # most tokens of the answer
    stop_ids: frozenset[int]  # any of them ends the answer, and is part of it
    seed: int  # not negative; the same seed gives the same answer in every batch, up to floating-point rounding
    sampling: Sampling
    stop_texts: StopTexts | None = None  # the token that completes one of them ends the answer, and is part of it
    session: object | None = field(default=None, compare=False)
    """The same object in all requests of a line, and alive as long, so that an engine can keep their common prefix.
    It can be referred to weakly."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Generation:
    """One answer.

    Raises:
        GenerationError: the answer is not complete, or there is not one finite log-probability for each token.
    """

    token_ids: list[int]  # (T,) as sampled; the stop token included
    logprobs: list[float]  # (T,) under the sampling distribution; for greedy decoding, at temperature 1
    finish: Literal["stop", "length"]  # a stop token or text came, or max_tokens was reached
    prompt_ids: list[int]  # as the engine saw them
    weight_version: int = 0  # optimiser steps that the weights had taken
    num_cached: int = 0  # prompt tokens that the engine found in its prefix cache
    waiting_seconds: float = field(default=0.0, compare=False)  # before the engine began; 0 if it does not tell

    def __post_init__(self) -> None:
        if self.finish not in ("stop", "length"):
            raise GenerationError(f"the engine ended an answer early: {self.finish}")
        if len(self.logprobs) != len(self.token_ids):
            raise GenerationError(
                f"a generation needs one log-probability for each of its {len(self.token_ids)} tokens, got "
                f"{len(self.logprobs)}"
            )
        if not all(map(math.isfinite, self.logprobs)):
            raise GenerationError("the model's logits are not finite: a sampled token has no finite log-probability")


class Generator(ABC):
    """An inference engine.

    Before a round the trainer calls `wake`, and `load_weights` if the weights have changed. After the round it calls
    `sleep`. During these calls no request is in flight.

    With `max_staleness` the trainer calls `sleep` only at the end, and changes the model's weights while requests are
    in flight. So the engine needs a copy of its own.
    """

    is_shared = False  # whether one engine serves all training processes: all call `load_weights`, and rank 0 sends

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer. Requests that are in flight together may share a forward pass.

        Raises:
            ValueError: `check_request` refuses the request.
            GenerationError: the engine failed or refused the request, no server was there in time, or it is closed.
        """

    @abstractmethod
    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Sample with this model's weights from now on. They have taken `version` optimiser steps."""

    def wake(self) -> None:  # noqa: B027
        """Take back the memory that `sleep` released."""

    def weights_will_change(self) -> None:  # noqa: B027
        """Do not read the model from now on, until the next `load_weights`; called with `max_staleness`."""

    def sleep(self) -> None:  # noqa: B027
        """Release resources that training may use meanwhile, such as the memory of a shared GPU."""

    @abstractmethod
    def close(self) -> None:
        """Release the engine. Unanswered requests fail."""


def check_request(request: GenerationRequest, vocab_size: int, *, takes_images: bool) -> None:
    """Raise a ValueError if a generator cannot take a request.

    On an accelerator a token outside the vocabulary would end the process.
    """
    prompt = request.prompt
    if not prompt or request.max_tokens < 1:
        raise ValueError(
            f"a request needs a prompt and max_tokens >= 1, got {len(prompt)} prompt tokens and "
            f"max_tokens={request.max_tokens}"
        )
    if prompt.images and not takes_images:
        raise ValueError(
            f"the prompt shows pictures ({len(prompt.images)}), but the generator was made without images=: "
            f"give it the ImageEncoder of the model's processor"
        )
    if not 0 <= min(prompt.ids) <= max(prompt.ids) < vocab_size:
        raise ValueError(f"the prompt has token {max(prompt.ids)}, but the model's vocabulary has {vocab_size}")


def settle(future: Future[Any], result: Any) -> None:
    """Resolve a future with a result or an exception, unless it was cancelled or is resolved already."""
    with suppress(InvalidStateError):
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
