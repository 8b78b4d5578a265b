"""Generation: token ids in, sampled token ids and their log-probabilities out.

- `Generator`: the contract between a policy and an inference engine, with `GenerationRequest` and `Generation`.
- `TransformersGenerator`: the model in this process; requests that come while others are decoded join their batch.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from .decoding import Batch, Generation, GenerationRequest, Row, evaluating
from .sampling import Sampling

QUIET_SECONDS = 0.003  # a batch starts once no request has come for this long ...
GATHER_SECONDS = 0.05  # ... or after this long at most
JOIN_STEPS = 8  # of the running batch at least from one prefill to the next, which costs its rows about a step
IDLE_SECONDS = 10.0  # the decoding thread ends after this long without work, so a forgotten close() leaks nothing


__all__ = ["Generation", "GenerationError", "GenerationRequest", "Generator", "Sampling", "TransformersGenerator"]


class GenerationError(RuntimeError):
    """The engine could not answer; its own error is the cause."""


class Generator(ABC):
    """An inference engine.

    Before a round the trainer calls `wake`, and `load_weights` if they have changed; after it, `sleep`. No request is
    in flight then.
    """

    is_shared = False  # one engine serves all training processes: all call `load_weights`, and the first one sends

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer; requests that are in flight together may share a batch."""

    @abstractmethod
    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Sample with this model's weights from now on, which have seen `version` optimiser steps."""

    def wake(self) -> None:  # noqa: B027
        """Take back what `sleep` released."""

    def sleep(self) -> None:  # noqa: B027
        """Release what training may use meanwhile, such as the memory of a GPU that is shared."""

    @abstractmethod
    def close(self) -> None:
        """Release the engine; requests that still wait fail."""


def check_request(request: GenerationRequest, vocab_size: int) -> None:
    """Check what would end an engine: on an accelerator, a token that the model does not know ends the process.

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


class TransformersGenerator(Generator):
    """Samples with a transformers model in this process; training and sampling share its weights.

    One thread decodes. Requests that wait when it is free become its next batch, and those that come later join it
    after a few steps, so episodes need not march in step; an answer is handed out as soon as it is complete. Requests
    with another `Sampling`, and all where the model's cache does not allow joining (sliding windows, recurrent
    states), wait until the batch has ended.

    Args:
        model: A decoder-only model with a key-value cache (or recurrent states).
        pad_id: Fills rows on the left; never attended to.
        max_batch_size: Requests that are decoded together.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int = 0, max_batch_size: int = 256) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
        self.model = model
        self.pad_id = pad_id
        self.max_batch_size = max_batch_size
        self.weight_version = 0
        self._waiting: list[Row] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer.

        Raises:
            ValueError: there is nothing to continue, no token may be generated, or a token is not in the vocabulary.
            GenerationError: the model failed, or the generator is closed.
        """
        check_request(request, self.model.config.get_text_config().vocab_size)
        row = Row(
            request,
            future=asyncio.get_running_loop().create_future(),
            random=np.random.Generator(np.random.Philox(key=request.seed)),
        )
        self._submit(row)
        try:
            return await row.future
        finally:
            row.settled = True  # on cancellation the row is dropped from its batch

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Note the version: the weights are the model's own.

        Raises:
            ValueError: it is another model.
        """
        if model is not self.model:
            raise ValueError("a TransformersGenerator samples with the model that it was made for; make a new one")
        self.weight_version = version

    def close(self) -> None:
        """End the decoding thread; requests that it has not answered fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _submit(self, row: Row) -> None:
        with self._changed:
            if self._closed:
                raise GenerationError("the generator is closed")
            self._waiting.append(row)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gymnast-generator", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # the interpreter must not end under a thread that is inside PyTorch

    # The decoding thread.

    def _work(self) -> None:
        while rows := self._next_batch():
            self._decode(rows)

    def _next_batch(self) -> list[Row]:
        """The requests that wait, once they have stopped coming; empty when the thread is to end."""
        with self._changed:
            while self._gather():
                if batch := self._take(self.max_batch_size):
                    return batch
            _fail_closed(self._waiting)
            self._waiting = []
            self._thread = None  # after an idle time, the next request starts a new one
            atexit.unregister(self.close)
            return []

    def _gather(self) -> bool:
        """Wait for requests; False when the generator is closed or has been idle for long."""
        while not self._waiting and not self._closed:
            if not self._changed.wait(IDLE_SECONDS) and not self._waiting:
                return False
        deadline = time.monotonic() + GATHER_SECONDS
        while not self._closed and len(self._waiting) < self.max_batch_size and time.monotonic() < deadline:
            if not self._changed.wait(QUIET_SECONDS):
                break
        return not self._closed

    def _take(self, count: int, sampling: Sampling | None = None) -> list[Row]:
        """Take requests that wait, with the sampling distribution of the first; none if another one is asked for."""
        self._waiting = [row for row in self._waiting if not row.settled]  # the others were cancelled
        first = self._waiting[0].request.sampling if self._waiting else None
        if sampling is not None and sampling != first:
            return []  # also if others would fit: nobody is overtaken for ever
        taken = [row for row in self._waiting if row.request.sampling == first][:count]
        ids = set(map(id, taken))
        self._waiting = [row for row in self._waiting if id(row) not in ids]
        return taken

    def _decode(self, rows: list[Row]) -> None:
        """Decode them, and those that join them, until none is left."""
        batch = None
        try:
            with evaluating(self.model), torch.no_grad():
                batch = self._prefill(rows)
                steps = 0
                while batch.rows and not self._closed:
                    if steps >= JOIN_STEPS and self._join(batch):
                        steps = 0
                    else:
                        batch.step()
                        steps += 1
                _fail_closed(batch.rows)
        except BaseException as error:
            _fail(rows if batch is None else batch.rows, error)

    def _join(self, batch: Batch) -> bool:
        """Let requests that wait join the batch; False if there are none, or their prefill failed."""
        rows = self._joining(batch)
        if not rows:
            return False
        try:
            joining = self._prefill(rows)
        except BaseException as error:
            _fail(rows, error)  # the others go on
            return False
        try:
            batch.join(joining)
        except BaseException as error:
            _fail(rows, error)
            raise
        return True

    def _joining(self, batch: Batch) -> list[Row]:
        """The requests that wait and may join this batch."""
        if not self._waiting or not batch.can_join or batch.weight_version != self.weight_version:
            return []
        with self._changed:
            return self._take(self.max_batch_size - len(batch.rows), batch.sampling)

    def _prefill(self, rows: list[Row]) -> Batch:
        """A batch of rows that have waited, after its first step."""
        batch = Batch(self.model, rows, self.pad_id, self.weight_version)
        batch.step()
        return batch


def _fail(rows: Sequence[Row], error: BaseException) -> None:
    """Fail the rows that are not answered: every episode that waits must hear of it."""
    for row in rows:
        failure = GenerationError(f"the model failed while decoding: {type(error).__name__}: {error}")
        failure.__cause__ = error
        row.settle(failure)


def _fail_closed(rows: Sequence[Row]) -> None:
    for row in rows:
        row.settle(GenerationError("the generator was closed before it had answered"))
