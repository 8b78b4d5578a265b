"""TurnGate: lets the weights of a generator change between turns, while episodes are played."""

from __future__ import annotations

import time
from dataclasses import replace

from accelerate import PartialState
from transformers import PreTrainedModel

from ....envs.runtime.threads import run_in_loop
from ...generation.contract import Generation, GenerationRequest, Generator
from .changes import Changes


class TurnGate(Generator):
    """A generator whose requests wait while its weights change.

    `load_weights` may be called at any time. It lets the turns in progress finish, loads, and then lets the waiting
    turns begin. So each turn is sampled with one version of the weights, and the generator behind the gate never has a
    request in flight while its weights change. During a training `sleep` does nothing, because other episodes may be in
    flight.
    """

    def __init__(self, inner: Generator) -> None:
        self.inner = inner
        self.is_shared = inner.is_shared
        self.version: int | None = None  # optimiser steps that the weights have taken; None: no weights yet
        self.stays_awake = False
        self._is_open = False
        self._in_flight = 0
        self._changes = Changes()
        self._busy_seconds = 0.0
        self._busy_since = 0.0

    async def generate(self, request: GenerationRequest) -> Generation:
        asked = time.perf_counter()
        await self._changes.until(lambda: self._is_open)
        waited = time.perf_counter() - asked
        if self._in_flight == 0:
            self._busy_since = time.perf_counter()
        self._in_flight += 1
        try:
            generation = await self.inner.generate(request)
            return replace(generation, waiting_seconds=waited + generation.waiting_seconds)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._busy_seconds += time.perf_counter() - self._busy_since
            self._changes.tell()

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        run_in_loop(self._shut_and_wait())
        try:
            if self.is_shared and PartialState().num_processes > 1:
                PartialState().wait_for_everyone()  # rank 0 sends to engines that answer the other processes, too
            self.inner.load_weights(model, version)
            self.version = version
        finally:
            run_in_loop(self._open_again())

    def weights_will_change(self) -> None:
        self.inner.weights_will_change()

    def wake(self) -> None:
        self.inner.wake()

    def sleep(self) -> None:
        if not self.stays_awake:
            self.inner.sleep()

    def close(self) -> None:
        self.inner.close()

    def shut(self) -> None:
        """Let no turn begin until `open`; called in the event loop."""
        self._is_open = False

    def open(self) -> None:
        """Let turns begin; called in the event loop."""
        self._is_open = self.version is not None
        self._changes.tell()

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one turn was in progress, since the beginning."""
        return self._busy_seconds + (time.perf_counter() - self._busy_since if self._in_flight else 0.0)

    async def _shut_and_wait(self) -> None:
        self.shut()
        await self._changes.until(lambda: not self._in_flight)

    async def _open_again(self) -> None:
        self.open()
