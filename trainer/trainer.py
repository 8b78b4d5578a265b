"""AgentTrainer: plays rounds of episodes, and gives `transformers.Trainer` their batches and their loss."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, TrainOutput

from ..envs.engine.compaction import Compact
from ..envs.episode import Episode
from ..envs.registry import EnvironmentLike
from ..envs.rewards import Rewards
from ..records.alarms.alarms import alarm_metrics, warn_of_alarms
from ..records.files.episode_log import EpisodeLog
from ..records.metrics.missing_metrics import MissingMetrics
from .chat.by_environment import GivenFormats
from .generation.contract import Generator
from .learning.losses import StepCounts
from .learning.objective import objective
from .learning.samples import MicroBatch
from .loop.checkpoints import check_plan, read_unlogged, write_plan, write_unlogged
from .loop.nonfinite import NonFiniteError, NonFiniteSteps, mean_of_taken, spread_nonfinite
from .loop.playing import PlayingTrainer
from .loop.transformers_hooks import use_one_gpu
from .loop.watchdog import Watchdog
from .models.distributed import Processes
from .models.file_bars import file_bars
from .models.output_head import OutputHead
from .models.reference import Reference, check_stays
from .models.reward_model import RewardLike, as_reward_functions
from .options.algorithms import GRPOConfig, RLOOConfig
from .options.checks import unknown_names
from .options.config import AgentConfig
from .options.derived import learning_settings, play_settings
from .options.sharding import has_master_weights
from .rollout.failure_totals import FailureTotals
from .rollout.failures import FailureWatch, RolloutError
from .rollout.rounds import Rounds
from .rollout.schedule import Rows
from .run_log.learning_log import LearningLog
from .run_log.metrics import Metrics
from .run_log.progress import rich_displays
from .run_log.tables import report_episodes
from .setup.assembly import make_reference_sync, make_round_source, make_schedule, make_scorer
from .setup.generator_choice import check_model_can_be_sharded, check_sharding, generator_maker
from .setup.player import context_length, make_player, padding_id
from .setup.startup_checks import check_before_loading, check_best_metric, load_model, load_tokenizer, warn_of_low_rate

logger = logging.getLogger(__name__)


class AgentTrainer(PlayingTrainer):
    """Trains a model on the episodes that it plays; use `GRPOTrainer` or `RLOOTrainer`.

    Args:
        model: A causal language model with a chat template, or its name.
        environment: An environment, a class, a factory, a Gymnasium id, or a dict of these that the row's
            `environment` column chooses from.
        args: The configuration.
        train_dataset: The tasks: a sequence of rows, such as a list of dicts or a `datasets.Dataset`.
        eval_dataset: The tasks of `evaluate()`; or a dict of such data sets.
        processing_class: The tokenizer; the model's own by default.
        reward_funcs: Further rewards, TRL-style: `f(completions=..., **columns) -> list`; or a reward model, which is a
            sequence classifier with one label, or its name.
        reward_processing_classes: The tokenizers of the reward models, one for each of `reward_funcs` and None for a
            function; by default each reward model's own.
        tool_format: How the model writes tool calls, if its chat template does not show it; or, for a dict of
            environments, a dict of tool formats by their names.
        chat_templates: For a dict of environments: chat templates by their names, in place of the tokenizer's.
        generator: Samples the answers; by default the one that the configuration names.
        peft_config: Trains a new adapter on the model, such as `peft.LoraConfig(...)` or a dict of its
            arguments; the model's weights stay.
        compact: Rewrites the messages of an episode that fill the model's context: `f(messages) -> messages`; or
            `EveryTurn(f)`.
        callbacks: As in `transformers.Trainer`; or a single one.
        optimizers: As in `transformers.Trainer`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument, a row, or a combination of options is wrong; nothing has been generated yet.
    """

    config_class: ClassVar[type[AgentConfig]] = AgentConfig
    reference: Reference | None = None
    _has_read_weights = False
    _skipped = False  # whether the latest update was not finite

    def __init__(
        self,
        model: str | PreTrainedModel,
        environment: EnvironmentLike | None = None,
        args: AgentConfig | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        reward_funcs: RewardLike | Sequence[RewardLike] = (),
        reward_processing_classes: Any = None,
        tool_format: GivenFormats = None,
        chat_templates: Mapping[str, str] | None = None,
        generator: Generator | None = None,
        peft_config: Any = None,
        compact: Compact | None = None,
        callbacks: TrainerCallback | Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        **unknown: Any,
    ) -> None:
        if unknown:
            known = inspect.signature(AgentTrainer.__init__).parameters
            raise unknown_names(type(self).__name__, unknown, known, config=self.config_class)
        if environment is None:
            raise TypeError(f"{type(self).__name__} needs environment=..., a class with @tool methods")
        check_before_loading(environment, train_dataset, eval_dataset, tool_format, chat_templates)
        args = args if args is not None else self.config_class(output_dir="runs/agent")
        if not isinstance(args, self.config_class):
            raise TypeError(f"args must be a {self.config_class.__name__}, got {type(args).__name__}")
        args.check()
        check_best_metric(args, eval_dataset)
        use_one_gpu(args)
        check_sharding(args, generator)
        precision = {
            "gradient_checkpointing": args.gradient_checkpointing,
            "has_master_weights": has_master_weights(args),
        }
        with file_bars(shown=not args.disable_tqdm):
            rewards = as_reward_functions(reward_funcs, reward_processing_classes, args.device)
            model = load_model(model, args.model_init_kwargs, peft_config, **precision)
        if optimizers[0] is None:
            warn_of_low_rate(model, args)
        check_model_can_be_sharded(args, model)
        tokenizer = load_tokenizer(model, processing_class, args.model_init_kwargs)
        self.player = make_player(
            model,
            tokenizer,
            environment,
            play_settings(args, max_model_len=context_length(model, args.max_model_len)),
            make_generator=generator_maker(model, args, generator),
            rewards=Rewards(rewards, args.reward_weights, timeout=args.reward_timeout),
            data_sets=(train_dataset, eval_dataset),
            tool_format=tool_format,
            chat_templates=chat_templates,
            compact=compact,
            step=lambda: self.state.global_step,
        )
        with args.frozen():  # callbacks see them, and parts of the trainer have taken their options
            super().__init__(
                model=model,
                args=args,
                train_dataset=train_dataset,  # type: ignore[arg-type]
                eval_dataset=eval_dataset,  # type: ignore[arg-type]
                processing_class=tokenizer,
                callbacks=[callbacks] if isinstance(callbacks, TrainerCallback) else callbacks or (),
                optimizers=optimizers,
            )
        self.processes = Processes(self.accelerator)
        self.processes.waiting = self.waiting
        process = f" in process {self.processes.index}" if self.processes.count > 1 else ""
        self.watchdog = Watchdog(args.stall_warning, self.player.engine.whereabouts, process=process)
        self.config = args  # `args` with its own type
        self.model_accepts_loss_kwargs = True  # num_items_in_batch is the number of loss tokens, see next_batches
        # `policy_loss` has the divisor of the whole step. What a subclass adds has not: transformers takes the mean.
        self.loss_is_scaled_for_ga = type(self).compute_loss is AgentTrainer.compute_loss
        self.missing_metrics = MissingMetrics(warns=self.processes.index == 0)
        self._metrics = Metrics(self.missing_metrics)
        folder, every = args.output_dir or ".", args.log_episodes_steps
        self._episode_log = EpisodeLog(folder, every=every, suffix=self.processes.suffix)
        self._learning_log = LearningLog(
            *(self._episode_log.learning_path, learning_settings(args), lambda token: str(tokenizer.decode([token]))),
            reward_weights=self.player.engine.rewards.weights_by_name,
        )
        self._displays = rich_displays(self, self.player.engine.whereabouts.describe)
        self.pad_id = padding_id(tokenizer, self.player.policy.chat)
        self.scorer = make_scorer(model, args, self.processes, pad_id=self.pad_id)
        self.scorer.on_scored = self._learning_log.add_scored
        if not self.processes.in_lockstep:
            self.wrapped()  # the model is on its device now

    def wrapped(self) -> None:
        if self._has_read_weights:
            return
        model, head = self.scorer.model, OutputHead.of(self.scorer.model)
        self.reference = Reference(model, head, in_place=self.processes.in_lockstep) if self.config.beta else None
        self._reference_sync = make_reference_sync(self.reference, self.config, self.processes)
        self.scorer.reference, self.scorer.head = self.reference, head
        self._has_read_weights = True

    @contextmanager
    def _playing_round(self) -> Iterator[None]:
        if self.was_interrupted and self.processes.count == 1:  # between two rounds of a step
            raise asyncio.CancelledError
        with self.playing():
            yield

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        """Called with the episodes of each round; by default they are written down as `log_episodes_steps` says."""
        recorded = self._episode_log.add(self.state.global_step, episodes)
        self._learning_log.begin_round(self.state.global_step, episodes if recorded else ())
        report_episodes(self, episodes if recorded else ())

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        if self.train_dataset is None:
            raise ValueError("train() needs a train_dataset")
        self.config.check()
        if self.deepspeed is not None:
            raise RuntimeError("DeepSpeed trains once: to go on, make a new trainer, and resume from a checkpoint")
        self.schedule = make_schedule(len(self.train_dataset), self.config, self.processes)  # type: ignore[arg-type]
        self._metrics, self.processes.all_failed = Metrics(self.missing_metrics), False
        self._failures = FailureWatch(self.config.max_failure_rate, self.scorer.settings.truncated)
        progress = lambda: (self.state.global_step, self.state.max_steps)  # noqa: E731
        source = make_round_source(self.player, self.schedule, self.config, self.processes, progress=progress)
        self.alone = source.alone
        self._rounds = Rounds(
            self.train_dataset,  # type: ignore[arg-type]
            source,
            self.scorer,
            self.processes,
            metrics=self._metrics,
            failures=self._failures,
            environment_of=self.player.environment_of,
            playing=self._playing_round,
            on_episodes=self.on_episodes,
        )
        self._nonfinite = NonFiniteSteps(self.config.on_nonfinite, self.processes, self.accelerator.scaler)
        self._resumed_loss: tuple[float, int] | None = None
        totals = self._failures.totals
        try:
            with self.watchdog:
                output = super().train(*args, **kwargs)
            totals = FailureTotals.of(self.processes.in_first(totals))
            return output._replace(training_loss=output.metrics["train_loss"])
        finally:
            source.close()
            self.alone = nullcontext
            for display in self._displays:
                display.stop()  # an exception calls no callback, and a live display would hide its message
            if str(totals):
                logger.warning("failures of this training: %s", totals)

    train.__doc__ = PlayingTrainer.train.__doc__

    def weights_will_be_loaded(self) -> None:
        self._rounds.player.close()

    def fails_everywhere(self, error: Exception) -> bool:
        # These errors follow from counts over all processes.
        known = isinstance(error, RolloutError | NonFiniteError)
        return super().fails_everywhere(error) or self.processes.all_failed or known

    def begin(self) -> None:
        self.missing_metrics.restore(self.state.log_history)
        self._episode_log.begin(self.state.global_step)
        self._learning_log.begin()
        self._rounds.player.begin(self._rounds.rows, self.state.global_step)
        if self._resumed_loss is not None:
            self.restore_unlogged_loss(*self._resumed_loss)

    def before_update(self) -> None:
        self._update_began += self._rounds.player.before_update()  # the wait is no part of the update
        # Momentum and weight decay would move the weights, so optimisers must find no gradient at all.
        skipped = self._nonfinite.skips(self.state.global_step + 1, self.step_loss, self.grad_norm)
        if skipped or not float(self._counts.loss_tokens):
            self.model.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        self._skipped = skipped
        if skipped:
            self.forget_loss()
        if self.processes.index == 0:  # all processes skip the same steps
            self._metrics.add({"steps/nonfinite": float(skipped)})

    def after_update(self) -> None:
        self.watchdog.moved()
        self._metrics.add({"time/update": time.perf_counter() - self._update_began})
        self._metrics.finish_step()
        self._learning_log.finish_step(self.state.global_step, skipped=self._skipped)
        if self._reference_sync is not None:
            self._reference_sync.after_step(self.state.global_step)

    def batches_per_epoch(self) -> int:
        return self.schedule.batches_per_epoch

    def next_batches(self, count: int, device: torch.device) -> tuple[list[list[MicroBatch]], Tensor]:
        first = self.schedule.batches_before(self.state.global_step)
        batches = self.unless_interrupted(lambda: self._rounds.batches(first, count)) or []
        for display in self._displays:
            display.latest_failure = self._failures.latest
        counts = torch.tensor([sum(each.loss_tokens for each in batches), sum(each.sequences for each in batches)])
        counts = counts.float().to(device)
        loss_tokens, sequences = (self.processes.sum(counts) if batches else counts).unbind()
        self._counts = StepCounts(
            loss_tokens=loss_tokens,
            sequences=sequences,
            batch_loss_tokens=0,  # each batch has its own
            batches=len(batches),
            processes=self.processes.count,
        )
        self._update_began = time.perf_counter()
        return [each.micro_batches for each in batches], loss_tokens

    def save_more(self, folder: Path) -> None:
        if self.is_world_process_zero():
            write_plan(folder, self.schedule.describe(self.train_dataset))  # type: ignore[arg-type]
        if self._reference_sync is not None and (self.is_world_process_zero() or self.processes.share_weights):
            self._reference_sync.save(folder)
        write_unlogged(folder, self.processes.suffix, self.unlogged_loss, self._metrics.pending())
        self._rounds.save(folder, batches=self.schedule.batches_before(self.state.global_step))

    def load_more(self, folder: Path) -> None:
        check_plan(folder, self.schedule.describe(self.train_dataset))  # type: ignore[arg-type]
        if self._reference_sync is not None:
            self._reference_sync.load(folder)
        elif self.reference is not None:
            check_stays(folder)
        unlogged = read_unlogged(folder, self.processes.suffix)
        self._resumed_loss = unlogged["loss"]
        self._metrics.restore(unlogged["metrics"])
        self._rounds.load(folder)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a micro-batch; a subclass may add a term: `super().compute_loss(...) + 0.1 * term`.

        The loss of a step is the mean over its micro-batches, so that a term counts once in each step.
        """
        loss, metrics = objective(
            model,
            inputs,
            self.scorer.settings,
            self._counts,
            head=self.scorer.head,
            with_entropy=self._is_logged,
            watch=self._learning_log.watch(inputs),
        )
        for weight, part in metrics:
            self._metrics.add(part, weight=weight)
        self.watchdog.moved()
        if self.is_deepspeed_enabled:
            loss = spread_nonfinite(loss)
        if not self.loss_is_scaled_for_ga:
            loss = loss * self.micro_batches
        return (loss, {}) if return_outputs else loss

    @property
    def _is_logged(self) -> bool:
        """Whether metrics are logged after this step, as far as that is known now."""
        step, every = self.state.global_step + 1, self.state.logging_steps
        return self.args.logging_strategy != IntervalStrategy.STEPS or step % every == 0 or step == 1

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs or "train_loss" in logs:  # a training step's, or the summary after the last one
            if self.did_nothing:  # a summary of no step
                return
            logs |= self._metrics.flush(self.processes.gather)
            if "train_loss" in logs:
                counts = self._nonfinite.steps, self._nonfinite.skipped
                logs["train_loss"] = mean_of_taken(logs["train_loss"], *counts)
            if "loss" in logs:
                logs["loss"] = mean_of_taken(logs["loss"], self.steps_of_log, logs["steps/nonfinite"])
                logs |= alarm_metrics(self.state.log_history, logs)
                if self.processes.index == 0:
                    settings = self.scorer.settings
                    shown = {"correction": settings.correction, "correction_bounds": settings.correction_bounds}
                    warn_of_alarms(self.state.log_history, logs, shown)
        super().log(logs, start_time)


class GRPOTrainer(AgentTrainer):
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300); see `AgentTrainer`."""

    config_class = GRPOConfig


class RLOOTrainer(AgentTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740); see `AgentTrainer`."""

    config_class = RLOOConfig
