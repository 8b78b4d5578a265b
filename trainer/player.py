"""Player: everything that playing episodes takes, behind one blocking call."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..envs.core import ConfigurationError
from ..envs.episode import Episode, EpisodeSpec
from ..envs.registry import EnvironmentLike
from ..envs.rewards import RewardFunction, Rewards
from ..envs.rollout import RolloutEngine, group_specs
from ..envs.threads import run_in_loop
from .chat import ChatFormat
from .config import AgentConfig
from .custom_formats import ToolParser
from .decoding import evaluating
from .generation import Generator, Sampling
from .generators import make_generator
from .token_policy import TokenPolicy
from .tool_formats import ToolFormat
from .weight_sync import WeightSync


class Player:
    """A model, an environment and reward functions, ready to play.

    `step` tells how many optimiser steps the model's weights have seen; the other arguments are the trainer's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        environment: EnvironmentLike,
        args: AgentConfig,
        *,
        reward_funcs: RewardFunction | Sequence[RewardFunction],
        tool_format: str | ToolFormat | ToolParser | None,
        generator: Generator | None,
        step: Callable[[], int],
    ) -> None:
        self.args = args
        self.model = model
        self.rewards = Rewards([reward_funcs] if callable(reward_funcs) else reward_funcs, args.reward_weights)
        self.chat = ChatFormat(
            tokenizer,
            tool_format=tool_format,
            end_token_ids=_end_token_ids(model),
            template_kwargs=args.chat_template_kwargs,
            today=args.template_date,
        )
        pad_id = tokenizer.pad_token_id
        self.pad_id = pad_id if isinstance(pad_id, int) else self.chat.end_id
        self.budgets = args.budgets(max_model_len=_context_length(model, args.max_model_len))
        self.generator = generator or make_generator(
            model, args, pad_id=self.pad_id, max_model_len=self.budgets.max_model_len
        )
        self._sync = WeightSync(model, self.generator, step)
        self.engine = RolloutEngine(
            environment,
            self.policy(args.sampling),
            limits=args.limits,
            max_concurrency=args.max_concurrency,
            on_failure=args.on_failure,
        )
        self._playing: asyncio.Task[Any] | None = None
        self._cancelled = False

    def policy(self, sampling: Sampling) -> TokenPolicy:
        """The policy that samples from this distribution."""
        return TokenPolicy(
            self.chat,
            self.generator,
            sampling=sampling,
            budgets=self.budgets,
            overlong_prompts=self.args.overlong_prompts,
        )

    def play(self, specs: Iterable[EpisodeSpec], *, temperature: float | None = None) -> list[Episode]:
        """Play these episodes, at the training temperature unless told otherwise, and add the reward functions.

        Raises:
            asyncio.CancelledError: `cancel` was called meanwhile; every environment is closed.
        """
        engine = self.engine
        if temperature is not None:
            args = self.args
            engine = copy.copy(engine)
            engine.policy = self.policy(
                Sampling(temperature=temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p)
            )

        async def play_and_score() -> list[Episode]:
            self._playing = asyncio.current_task()
            try:
                if self._cancelled:  # before there was a task
                    raise asyncio.CancelledError
                episodes = await engine.run(specs)
                await self.rewards.score(episodes)
                return episodes
            finally:
                self._playing = None

        self._cancelled = False

        # The generator's thread restores what it found when it stops decoding, which may be after the last answer has
        # come: it must not find a model in training mode, or the next forward pass may meet dropout.
        with evaluating(self.model):
            try:
                self.generator.wake()
                self._sync()
                return run_in_loop(play_and_score())
            finally:
                self.generator.sleep()

    def play_rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        indices: Iterable[int] | None = None,
        *,
        count: int,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> list[Episode]:
        """Play `count` episodes of each row, or of the rows at these indices.

        Seeds depend on a row's place among all rows, not on which of them are played here.
        """
        seed = self.args.seed if seed is None else seed
        specs: list[EpisodeSpec] = []
        for index in range(len(rows)) if indices is None else indices:
            specs += group_specs(f"eval-{index}", rows[index], group_size=count, seed=seed)
        return self.play(specs, temperature=temperature)

    def cancel(self) -> None:
        """Cancel what `play` is playing; safe from a signal handler."""
        self._cancelled = True  # first: `play` looks at it as soon as there is a task
        task = self._playing
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)


def _end_token_ids(model: PreTrainedModel) -> list[int]:
    """Every end-of-turn id of the model's generation config."""
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _context_length(model: PreTrainedModel, given: int | None) -> int:
    """Tokens of the context: as given, or as the model's config tells.

    Raises:
        ConfigurationError: neither says it, or more is given than the model has.
    """
    length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if given is None:
        if length is None:
            raise ConfigurationError("the model's config does not tell its context length; set max_model_len")
        return length
    if length is not None and given > length:
        raise ConfigurationError(f"max_model_len={given} is more than the model's context of {length} tokens")
    return given
