"""GRPOConfig and RLOOConfig: `transformers.TrainingArguments` and the options for agents.

Names that TRL users know keep TRL's meaning.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Self

from transformers import TrainingArguments

from ...envs.engine.failures import OnFailure
from ...envs.engine.play_episode import EpisodeLimits
from ...envs.rewards import Rewards
from ..rollout.budgets import TokenBudgets
from ..rollout.settings import PlaySettings
from ..rollout.token_policy import OverlongPrompts
from .checks import (
    check_refused,
    check_values,
    options_without_effect,
    unknown_names,
    warn_of_equal_episodes,
)
from .fields import OnNonFinite, option
from .generators import check_generator_options
from .learning import LearningOptions
from .objective import check_objective

READ_BY_EVALUATION = ("eval_temperature", "num_generations_eval", "success_reward")
"""gymnast's options that each evaluation reads, so they may change while a trainer exists."""

READ_ONCE = ("per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed", "output_dir")
"""transformers' options that parts of gymnast take when they are made, so they may not."""


@dataclass
class AgentConfig(LearningOptions):
    """The options of both trainers; use `GRPOConfig` or `RLOOConfig`."""

    _is_checked = False  # since the last assignment
    _is_frozen = False

    learning_rate: float = option(1e-6, "Initial learning rate.")
    remove_unused_columns: bool = option(False, "Must stay False: environments read the columns.")
    ddp_find_unused_parameters: bool | None = option(
        False, "Whether DDP looks for weights without a gradient in each step; None: as in transformers."
    )
    logging_steps: float = option(10, "Log every so many optimiser steps (as in TRL).")
    model_init_kwargs: dict[str, Any] | None = option(
        None, "Passed to from_pretrained when the model is given by name; dtype is float32 by default."
    )

    # Chat template.
    chat_template_kwargs: dict[str, Any] | None = option(None, "Passed to the chat template.")
    chat_template_date: str = option("2025-01-01", "The date that chat templates get when they ask for today's.")

    # Generation.
    generation_rows: int = option(256, "The most requests that the generator decodes together.")
    vllm_gpu_memory_utilization: float = option(0.3, "Share of the GPU's memory for vLLM; the rest is for training.")
    vllm_enable_sleep_mode: bool = option(False, "Let vLLM give its GPU memory back while the model is trained.")
    vllm_engine_kwargs: dict[str, Any] | None = option(None, "Further options of vLLM's engine in this process.")
    vllm_request_seeds: bool = option(
        True, "Give each request to vLLM a seed of its own; False is faster on GPUs, and no answer can be repeated."
    )
    vllm_server_urls: list[str] | None = option(None, "Addresses of the vLLM servers; None: port 8000 of this machine.")
    vllm_server_timeout: float = option(240.0, "Seconds to wait for a server that is starting, or starting again.")
    vllm_group_port: int = option(0, "Port of this machine where servers fetch new weights; 0 = any free.")

    # Budgets. None = no limit of its own.
    max_model_len: int | None = option(None, "Most tokens in the context; by default the limit in the model's config.")
    max_turn_tokens: int | None = option(None, "Most tokens in one answer.")
    max_observation_tokens: int | None = option(None, "Most tokens in one observation; a longer one is cut.")
    max_turns: int | None = option(None, "Most turns in an episode.")
    max_tool_calls: int | None = option(None, "Most tool calls in an episode; a final answer is never refused.")
    episode_timeout: float | None = option(None, "Seconds; a longer episode is cut, with stop reason timeout.")
    step_timeout: float | None = option(600.0, "Seconds; an episode whose reset or step takes longer fails.")
    reward_timeout: float | None = option(600.0, "Seconds; a call of a reward function that takes longer fails.")
    overlong_prompts: OverlongPrompts = option(
        "fail",
        "The treatment of prompts longer than the context: fail = the episode fails; drop = it is left out "
        "and is not a failure; raise = the run stops.",
    )

    # Failures.
    max_concurrency: int = option(256, "Most episodes in flight in each process.")
    on_failure: str = option("drop", "The treatment of a failed episode: drop, retry(n), zero or raise.")
    max_failure_rate: float = option(0.5, "Share of failed episodes in ten rounds above which training stops.")
    stall_warning: float | None = option(
        300.0, "Seconds without progress before a warning names what the run waits for."
    )
    on_nonfinite: OnNonFinite = option("skip", "If the loss or gradient of an update is not finite: skip it, or stop.")

    # Rewards.
    reward_weights: list[float] | None = option(None, "One weight for each of reward_funcs; 1 by default.")

    success_reward: float | None = option(
        None, "Least reward that counts as a success in pass@k, for environments without a metric `success`."
    )

    # Records.
    log_episodes_steps: int = option(0, "Append the episodes of a round to episodes.jsonl every n steps; 0 = never.")

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Check the names: the error of a dataclass suggests no other name."""
        known = [each.name for each in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise unknown_names(cls.__name__, unknown, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._check_single_options()
        ignored = options_without_effect(self)  # first, since transformers then changes some itself
        if self.metric_for_best_model is None and self.needs_best_metric:
            self.metric_for_best_model = "reward"  # transformers' default is a loss, and evaluation has no loss
        super().__post_init__()
        self._check_together(ignored)

    def __setattr__(self, name: str, value: Any) -> None:
        now = getattr(self, name, value)
        changes = name in self.__dataclass_fields__ and value != now
        if changes and self._is_frozen and name in self._fixed_options:
            raise ValueError(
                f"{name}={value!r} cannot be set any more: a trainer has taken {name}={now!r}, and parts of it would "
                f"keep that. Make another trainer, with args=dataclasses.replace(args, {name}={value!r})"
            )
        super().__setattr__(name, value)
        if changes:
            self.__dict__["_is_checked"] = False

    def __getstate__(self) -> dict[str, Any]:
        """No trainer has taken a copy."""
        return {name: value for name, value in vars(self).items() if name != "_is_frozen"}

    def check(self) -> None:
        """Check the options again, if one has been assigned since they were checked.

        Raises:
            TypeError, ValueError: as the constructor.
        """
        if not self._is_checked:
            self._check_single_options()
            self._check_together(options_without_effect(self))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Refuse to change these options from now on, but for those of transformers and of evaluation.

        A trainer makes itself within this context, because its parts take the options. If it fails, they are free.
        """
        before, self.__dict__["_is_frozen"] = self._is_frozen, True
        try:
            yield
        except BaseException:
            self.__dict__["_is_frozen"] = before
            raise

    @property
    def _fixed_options(self) -> set[str]:
        own = {each.name for each in fields(self)} - {each.name for each in fields(TrainingArguments)}
        return own.difference(READ_BY_EVALUATION).union(READ_ONCE)

    def _check_single_options(self) -> None:
        if isinstance(self.scale_rewards, bool):  # as in TRL
            self.scale_rewards = "group" if self.scale_rewards else "none"
        check_values(self)

    def _check_together(self, ignored: list[str]) -> None:
        if ignored:
            warnings.warn(f"these options have no effect in {type(self).__name__}: {', '.join(ignored)}", stacklevel=4)
        check_refused(self)
        if self.lr_scheduler_type == "reduce_lr_on_plateau":
            # torch's default takes a growing reward for a growing loss
            mode = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": mode, **(self.lr_scheduler_kwargs or {})}  # type: ignore[dict-item]
        warn_of_equal_episodes(self.num_generations_eval, self.eval_temperature, stacklevel=5)
        self.check_batches()
        check_objective(self)
        self.check_teaching(self.max_completion_length)
        sleeps, may_correct = self.vllm_enable_sleep_mode, self.sampling.is_full_distribution
        self.check_overlap(self.learning_settings.correction, may_correct=may_correct, sleeps=sleeps)
        check_generator_options(self)
        # Their constructors check the ranges of sampling, budgets, limits and on_failure.
        _ = self.play_settings(max_model_len=self.max_model_len or 1)
        _ = OnFailure.parse(self.on_failure), Rewards(timeout=self.reward_timeout)
        self.__dict__["_is_checked"] = True

    @property
    def needs_best_metric(self) -> bool:
        """Whether `metric_for_best_model` is read."""
        return (
            self.load_best_model_at_end
            or self.save_strategy == "best"
            or self.lr_scheduler_type == "reduce_lr_on_plateau"
        )

    @property
    def template_date(self) -> datetime.date:
        """Today's date in chat templates: always the same, so that a run does not depend on its day."""
        try:
            return datetime.date.fromisoformat(self.chat_template_date)
        except (TypeError, ValueError):
            given = self.chat_template_date
            raise ValueError(f"chat_template_date must be a date such as 2025-01-01, got {given!r}") from None

    def play_settings(self, *, max_model_len: int) -> PlaySettings:
        """Return the options that playing needs, with a known context length."""
        return PlaySettings(
            budgets=TokenBudgets(
                max_completion_length=self.max_completion_length,
                max_model_len=max_model_len,
                max_turn_tokens=self.max_turn_tokens,
                max_observation_tokens=self.max_observation_tokens,
            ),
            sampling=self.sampling,
            limits=EpisodeLimits(
                max_turns=self.max_turns,
                max_tool_calls=self.max_tool_calls,
                episode_timeout=self.episode_timeout,
                step_timeout=self.step_timeout,
            ),
            overlong_prompts=self.overlong_prompts,
            max_concurrency=self.max_concurrency,
            on_failure=self.on_failure,
            seed=self.seed,
            chat_template_kwargs=self.chat_template_kwargs,
            today=self.template_date,
        )


@dataclass
class GRPOConfig(AgentConfig):
    """Options of `GRPOTrainer`."""

    use_bias_correction_kl: bool = option(True, "Multiply the divergence at a token by its ratio, with kl_in='loss'.")


@dataclass
class RLOOConfig(AgentConfig):
    """Options of `RLOOTrainer`."""

    algorithm = "rloo"

    beta: float = option(0.05, "Weight of the divergence from the reference; 0 = no reference.")
    loss_type: str = option("rloo", "One of trainer.LOSSES.")
