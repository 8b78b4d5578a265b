"""LearningOptions: the options of sampling, batches and the objective."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..generation.sampling import Sampling
from ..learning.advantages import ALGORITHMS, ESTIMATORS, Scale
from ..learning.corrections import CORRECTIONS
from ..learning.credit import Credit
from ..learning.losses import LOSSES
from ..learning.settings import LearningSettings
from .fields import option, options_of
from .overlap import OverlapOptions


@dataclass
class LearningOptions(OverlapOptions):
    """The part of `AgentConfig` for sampling, batches and the loss."""

    algorithm = "grpo"
    use_bias_correction_kl = False  # an option of GRPOConfig alone, as in TRL

    # Sampling.
    temperature: float = option(1.0, "Sampling temperature in training.")
    top_p: float = option(1.0, "Nucleus sampling; 1 = off.")
    top_k: int = option(0, "Sample among this many tokens; 0 = all.")
    min_p: float = option(0.0, "Least probability, relative to the most probable token; 0 = off.")
    eval_temperature: float | None = option(None, "Sampling temperature in evaluation; 0 is greedy; None: temperature.")
    generator: str = option("transformers", "The generator: transformers, vllm (in this process), or vllm-server.")
    max_completion_length: int = option(256, "Most tokens of an episode after its prompt, tool results included.")

    # Batches. As in TRL, per_device_train_batch_size counts completions.
    max_tokens_per_batch: int | None = option(
        None, "Most tokens, padding included, in a micro-batch; larger batches are cut. None = no limit."
    )
    num_generations: int = option(8, "Episodes in a group: the same task from the same environment seed.")
    num_generations_eval: int | None = option(None, "Group size of evaluation; None: num_generations, or 1 if greedy.")
    steps_per_generation: int | None = option(
        None, "Batches that one round of episodes is cut into; gradient_accumulation_steps by default."
    )
    generation_batch_size: int | None = option(
        None, "Episodes in a round, over all processes; or give steps_per_generation."
    )
    num_iterations: int = option(1, "How many times each round is used.")
    shuffle_dataset: bool = option(True, "Play the tasks in a random order.")

    # The objective.
    loss_type: str = option("dapo", "One of trainer.LOSSES.")
    epsilon: float = option(0.2, "The ratio is clipped below at 1 - epsilon.")
    epsilon_high: float | None = option(None, "The ratio is clipped above at 1 + epsilon_high; epsilon by default.")
    delta: float | None = option(None, "The ratio of losses that clip is at most this (dual clip); None = no limit.")
    sapo_temperature_pos: float = option(1.0, "How fast `sapo` fades as the ratio leaves 1, for advantages above 0.")
    sapo_temperature_neg: float = option(1.05, "The same for the other advantages.")
    entropy_coef: float = option(0.0, "Weight of the entropy bonus; 0 = none.")
    top_entropy_quantile: float = option(1.0, "Share of loss tokens to learn from, those of highest entropy; 1 = all.")
    correction: str | None = option(
        None,
        "One of trainer.CORRECTIONS, of the mismatch between sampler and trainer; None: tis with vLLM and with "
        "max_staleness, else none.",
    )
    correction_min: float | None = option(None, "Lower bound of the correction; None: the default of the correction.")
    correction_max: float | None = option(None, "Upper bound of the correction; None: the default of the correction.")
    beta: float = option(0.0, "Weight of the divergence from the reference; 0 = no reference.")
    kl_in: str | None = option(
        None, "Where the divergence counts: loss or reward; None: loss in GRPOTrainer, reward in RLOOTrainer."
    )
    sync_ref_model: bool = option(False, "Move the reference towards the policy every ref_model_sync_steps steps.")
    ref_model_mixup_alpha: float = option(0.6, "How far the reference moves: ref = alpha * policy + (1 - alpha) * ref.")
    ref_model_sync_steps: int = option(512, "Optimiser steps between two moves of the reference.")
    advantage_estimator: str | None = option(None, "One of trainer.ESTIMATORS; None: grpo, or rloo in RLOOTrainer.")
    credit: Credit = option("episode", "Judge a token by the reward of its episode, or the return of its turn.")
    discount: float = option(1.0, "Weight of the next turn's return in the return of a turn, with credit='turn'.")
    scale_rewards: Scale | None = option(
        None, "Divide advantages by the standard deviation of: group, batch, or none; None: the estimator's default."
    )
    normalize_advantages: bool = option(
        False, "Whiten the advantages of a round: mean 0, standard deviation 1. reinforce++ always does."
    )

    @property
    def sampling(self) -> Sampling:
        """The distribution that training samples from."""
        return options_of(self, Sampling)

    @property
    def learning_settings(self) -> LearningSettings:
        """The options that scoring and the loss read."""
        return options_of(
            self,
            LearningSettings,
            own=self.own_options,
            samples_all_tokens=self.sampling.is_full_distribution,
            is_on_policy=self.num_iterations == 1 and self.gradient_accumulation_steps % self.parts_of_round == 0,
            epsilon_low=self.epsilon,
            epsilon_high=self.epsilon if self.epsilon_high is None else self.epsilon_high,
            advantage_estimator=self._estimator,
            scale_rewards=self._scale,
            normalize_advantages=self._whitens,
            correction=self._correction,
            correction_bounds=self._correction_bounds,
            use_bias_correction_kl=self.use_bias_correction_kl,
            kl_in=ALGORITHMS[self.algorithm].kl if self.kl_in is None else self.kl_in,
            truncated=self.treatments,
            rows_at_once=self.per_device_train_batch_size,
        )

    @property
    def _estimator(self) -> str:
        return self.advantage_estimator or ALGORITHMS[self.algorithm].estimator

    @property
    def _scale(self) -> Scale:
        return self.scale_rewards or ESTIMATORS[self._estimator].scale

    @property
    def _whitens(self) -> bool:
        return self.normalize_advantages or ESTIMATORS[self._estimator].whitens

    @property
    def _correction(self) -> str:
        if self.correction is not None:
            return self.correction
        differs = self.generator.startswith("vllm") or self.max_staleness > 0
        if not differs or not self.sampling.is_full_distribution:
            return "none"
        return "sequence_tis" if LOSSES[self.loss_type].is_of_sequence else "tis"

    @property
    def _correction_bounds(self) -> tuple[float, float]:
        least, largest = CORRECTIONS[self._correction].bounds
        return (
            least if self.correction_min is None else self.correction_min,
            largest if self.correction_max is None else self.correction_max,
        )

    @property
    def groups_per_process(self) -> int:
        """Groups that each process plays in a round."""
        return self.per_device_train_batch_size * self.parts_of_round // self.num_generations

    @property
    def parts_of_round(self) -> int:
        """Batches that a round is cut into: `steps_per_generation`, if that or `generation_batch_size` is given."""
        if self.generation_batch_size is not None:
            return self.generation_batch_size // (self.per_device_train_batch_size * self.world_size)
        return self.steps_per_generation or self.gradient_accumulation_steps

    @property
    def own_options(self) -> dict[str, Any]:
        """The options that a user's subclass adds, by name."""
        package = __name__.partition(".")[0]
        ours = next(each for each in type(self).__mro__ if each.__module__.partition(".")[0] == package)
        known = {each.name for each in fields(ours)}
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in known}

    def check_batches(self) -> None:
        """Check that a round can be cut into batches and groups.

        Raises:
            ValueError: one number is not a multiple of another; the message names both.
        """
        per_step = self.per_device_train_batch_size * self.world_size
        if self.generation_batch_size is not None and self.generation_batch_size % per_step:
            raise ValueError(
                f"generation_batch_size={self.generation_batch_size} must be a multiple of "
                f"per_device_train_batch_size x processes = {per_step}"
            )
        parts = self.parts_of_round
        if self.steps_per_generation not in (None, parts):
            raise ValueError(
                f"steps_per_generation={self.steps_per_generation} and generation_batch_size="
                f"{self.generation_batch_size} say different things: a batch of all processes has {per_step} episodes; "
                f"give one of the two, and None for the other"
            )
        per_process = self.per_device_train_batch_size * parts
        if per_process % self.num_generations:
            raise ValueError(
                f"a process plays per_device_train_batch_size x steps_per_generation = "
                f"{self.per_device_train_batch_size} x {parts} = {per_process} episodes in a "
                f"round, which is not a multiple of num_generations={self.num_generations}; change one of the three"
            )
