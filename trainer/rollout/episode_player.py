"""EpisodePlayer: an engine and its policy behind one blocking call."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from ...envs.engine.rollout_engine import RolloutEngine, group_specs
from ...envs.episode import Episode, EpisodeSpec
from ...envs.runtime.threads import run_in_loop
from ..generation.contract import GenerationError
from ..models.contexts import evaluating
from ..models.sharding import is_sharded
from .token_policy import TokenPolicy

Result = TypeVar("Result")


@dataclass(eq=False)
class EpisodePlayer:
    """Plays episodes with the current weights of a model, which the policy's generator gets once after each change."""

    model: PreTrainedModel
    engine: RolloutEngine
    policy: TokenPolicy
    _: KW_ONLY
    seed: int  # of `play`
    step: Callable[[], int]  # returns how many optimiser steps the weights have seen
    _sent: tuple[int, ...] | None = None  # the state of the weights that the generator has
    _playing: asyncio.Task[Any] | None = None
    _cancelled: bool = False

    def __post_init__(self) -> None:
        self.generator = self.policy.generator

    def run(
        self,
        specs: Iterable[EpisodeSpec],
        *,
        temperature: float | None = None,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Play the episodes of these specs, at the training temperature by default.

        `on_episode` is called with each episode as soon as its reward is known. Raise an `asyncio.CancelledError` if
        `cancel` was called meanwhile; every environment is closed.
        """
        engine = self.engine
        if temperature is not None:
            engine = copy.copy(engine)
            engine.policy = self.policy.at(replace(self.policy.sampling, temperature=temperature))

        # The generator's thread restores the mode of the model when it stops decoding, perhaps after the last answer:
        # it must not find training mode, or the next forward pass may have dropout.
        with evaluating(self.model):
            try:
                self.generator.wake()
                self.send_weights()
                return run_in_loop(self._cancellable(lambda: engine.run(specs, on_episode)))
            finally:
                self.generator.sleep()

    @property
    def sends_together(self) -> bool:
        """Whether all processes must send together, because they share the generator or the weights.

        Then they must send in the main thread: other collective operations could begin in another order elsewhere.
        """
        return PartialState().num_processes > 1 and (self.generator.is_shared or is_sharded(self.model))

    def send_weights(self) -> None:
        """Load the weights into the generator, unless it has them; an error is raised in all that send together."""
        # PyTorch counts writes to a tensor, but misses those of some optimisers. The state is read before the weights:
        # if they change meanwhile, they must be loaded again.
        state = self.step(), sum(parameter._version for parameter in self.model.parameters())
        if not self._in_any_process(state != self._sent):
            return
        error: Exception | None = None
        try:
            self.generator.load_weights(self.model, version=state[0])
        except Exception as raised:
            error = raised
        # The processes wait for each other, and must learn if one failed.
        if self._in_any_process(error is not None):
            raise error or GenerationError("another training process could not load the weights; see its error")
        self._sent = state

    def _in_any_process(self, here: bool) -> bool:
        """Return whether `here` is True in any of the processes that send together."""
        return any(gather_object([here])) if self.sends_together else here

    def wait_for(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Await this in the engine's event loop; raise an `asyncio.CancelledError` if `cancel` was called meanwhile."""
        return run_in_loop(self._cancellable(work))

    async def _cancellable(self, work: Callable[[], Awaitable[Result]]) -> Result:
        self._playing = asyncio.current_task()
        try:
            if self._cancelled:
                raise asyncio.CancelledError
            return await work()
        finally:
            self._playing = None

    def play(
        self,
        rows: Sequence[Mapping[str, Any]],
        indices: Iterable[int] | None = None,
        *,
        count: int,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> list[Episode]:
        """Play `count` episodes of each row, or of the rows at these indices; a row that is no mapping is a TypeError.

        Seeds depend on a row's place among all rows, not on which of them are played here.
        """
        seed = self.seed if seed is None else seed
        specs: list[EpisodeSpec] = []
        for index in range(len(rows)) if indices is None else indices:
            specs += group_specs(f"eval-{index}", rows[index], group_size=count, seed=seed)
        return self.run(specs, temperature=temperature)

    def environment_of(self, episode: Episode) -> str | None:
        """Return the name of an episode's environment, where a dict of them was given."""
        try:
            return self.engine.source.choose(episode.spec.task.row)
        except ValueError:  # the row names none, so the episode has failed
            return None

    def cancel(self) -> None:
        """Cancel `play`, `run` or `wait_for`, also those that begin before `go_on`; safe from a signal handler."""
        self._cancelled = True  # first: they look at it as soon as there is a task
        task = self._playing
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def go_on(self) -> None:
        """End a cancellation: episodes may be played again."""
        self._cancelled = False
