"""AgentTrainer: plays rounds of episodes, and gives `transformers.Trainer` their batches and their loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import TrainOutput

from ..envs.engine.compaction import Compact
from ..envs.episode import Episode
from ..envs.registry import EnvironmentLike
from ..records.metrics.missing_metrics import MissingMetrics
from ..sandbox.keywords import named_parameters
from .chat.by_environment import GivenFormats
from .generation.contract import Generator
from .loop.checkpoints import newest_whole_checkpoint
from .loop.evaluation import evaluated
from .loop.model_cards import WritesModelCard
from .loop.training_loop import TrainingLoop
from .loop.transformers_hooks import use_one_gpu
from .loop.watchdog import Watchdog
from .models.distributed import Processes
from .models.reference import Reference, ReferenceSync
from .models.reward_model import RewardLike
from .models.sharding import is_sharded
from .options.algorithms import GRPOConfig, RLOOConfig
from .options.config import AgentConfig
from .rollout.schedule import Rows
from .rollout.stream import RowStream
from .run_log.progress import rich_displays
from .run_log.run_folder import RunFolder, with_records
from .setup.parts import checked, make_parts, schedule_of
from .setup.processing import Processing
from .setup.startup_checks import check_is_rows


class AgentTrainer(WritesModelCard):
    """Trains a model on the episodes that it plays; use `GRPOTrainer` or `RLOOTrainer`.

    Args:
        model: A causal language model with a chat template, which may take images; or its name.
        environment: An environment, a class, a factory, a Gymnasium id, or a dict of these that the row's
            `environment` column chooses from.
        args: The configuration.
        train_dataset: The tasks: a sequence of rows, such as a list of dicts or a `datasets.Dataset`; or a stream of
            rows, such as a `datasets.IterableDataset`, for a training of `max_steps`.
        eval_dataset: The tasks of `evaluate()`; or a dict of such data sets.
        processing_class: The tokenizer, or the processor of a model that takes images; the model's own by default.
        reward_funcs: Further rewards, TRL-style: `f(completions=..., **columns) -> list`; or a reward model, which is a
            sequence classifier with one label, or its name.
        reward_processing_classes: The tokenizers of the reward models, one for each of `reward_funcs` and None for a
            function; by default each reward model's own.
        tool_format: How the model writes tool calls, if its chat template does not show it; or, for a dict of
            environments, a dict of tool formats by their names.
        chat_templates: For a dict of environments: chat templates by their names, in place of the tokenizer's.
        generator: Samples the answers; by default the one that the configuration names.
        peft_config: Trains a new adapter on the model, such as `peft.LoraConfig(...)` or a dict of its
            arguments; the model's weights stay. In a model that takes images it is on the language model, unless
            `exclude_modules` or a regular expression as `target_modules` says otherwise.
        compact: Rewrites the messages of an episode that fill the model's context: `f(messages) -> messages`; or
            `EveryTurn(f)`.
        callbacks: As in `transformers.Trainer`; or a single one. A `RunFolder` takes the place of `record_run`'s.
        optimizers: As in `transformers.Trainer`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument, a row, or a combination of options is wrong; nothing has been generated yet.
    """

    config_class: ClassVar[type[AgentConfig]] = AgentConfig
    _alone: Callable[[], AbstractContextManager[None]] = nullcontext  # no episodes of a training round are in flight

    def __init__(
        self,
        model: str | PreTrainedModel,
        environment: EnvironmentLike | None = None,
        args: AgentConfig | None = None,
        train_dataset: Rows | RowStream | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        processing_class: Processing | None = None,
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
        known = named_parameters(AgentTrainer.__init__)
        environment, args = checked(type(self), self.config_class, environment, args, unknown, known, callbacks)
        args.check()
        use_one_gpu(args)
        self.parts = parts = make_parts(
            model,
            environment,
            args,
            (train_dataset, eval_dataset),
            rewards=(reward_funcs, reward_processing_classes),
            formats=(tool_format, chat_templates),
            processing_class=processing_class,
            generator=generator,
            peft_config=peft_config,
            compact=compact,
            has_optimizer=optimizers[0] is not None,
            step=lambda: self.state.global_step,
        )
        with args.frozen():  # callbacks see them, and parts of the trainer have taken their options
            super().__init__(
                model=parts.model,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=parts.tokenizer if parts.images is None else parts.images.processor,
                callbacks=with_records(callbacks, args.output_dir if args.record_run else None),
                optimizers=optimizers,
            )
        self._equip()

    def _equip(self) -> None:
        """Make everything that needs the processes, which `transformers.Trainer` has made."""
        self.config, self.player = self.parts.config, self.parts.player
        self.processes = Processes(self.accelerator)
        process = f" in process {self.processes.index}" if self.processes.count > 1 else ""
        whereabouts = self.player.engine.whereabouts
        self.watchdog = Watchdog(self.config.stall_warning, whereabouts, process=process)
        self.processes.waiting = self.watchdog.during
        self.scorer = self.parts.scorer(self.processes)
        self.missing_metrics = MissingMetrics(warns=self.processes.index == 0)
        self.displays = rich_displays(self, whereabouts.describe)
        self.model_accepts_loss_kwargs = True  # num_items_in_batch is the second result of `Loop.next_batches`
        # `policy_loss` has the divisor of the whole step. What a subclass adds has not: transformers takes the mean.
        self.loss_is_scaled_for_ga = type(self).compute_loss is AgentTrainer.compute_loss
        if not self.processes.in_lockstep:
            _ = self._reference_sync  # the model is on its device now

    @cached_property
    def _reference_sync(self) -> ReferenceSync | None:
        """The updates of the reference; the first access makes the reference, and finds the output head."""
        return self.parts.read_weights(self.scorer, self.processes)

    @property
    def reference(self) -> Reference | None:
        """The reference model, if the loss needs one."""
        return self.scorer.reference

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; arguments are those of `transformers.Trainer.train`.

        Ctrl-C, like SIGTERM, cancels the round in play, or finishes the update in progress, then saves a
        checkpoint and returns. A second one interrupts at once. `resume_from_checkpoint=True` takes the newest complete
        checkpoint.

        Raises:
            ValueError: there is no training data; or the checkpoint is incomplete, or belongs to another training.
        """
        if self.train_dataset is None:
            raise ValueError("train() needs a train_dataset")
        schedule = self.parts.schedule
        if self.train_dataset is not self.parts.train_dataset:  # it was exchanged
            schedule = schedule_of(self.config, self.train_dataset)  # type: ignore[arg-type]
        self.config.check()
        if self.deepspeed is not None:
            raise RuntimeError("DeepSpeed trains once: to go on, make a new trainer, and resume from a checkpoint")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_whole_checkpoint(self.args.output_dir)
        self.loop = TrainingLoop(
            trainer=self,
            parts=self.parts,
            processes=self.processes,
            watchdog=self.watchdog,
            scorer=self.scorer,
            missing_metrics=self.missing_metrics,
            displays=self.displays,
            schedule=schedule,
            checkpoint=resume_from_checkpoint or None,
            read_weights=lambda: self._reference_sync,
            on_episodes=self.on_episodes,
        )
        self._alone = self.loop.source.alone
        try:
            with self.loop.running():
                output = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._alone = nullcontext
        return output._replace(training_loss=output.metrics["train_loss"])

    def add_callback(self, callback: Any) -> None:
        """Add a callback; a `RunFolder` takes the place of the one that `record_run` made."""
        if isinstance(callback, RunFolder):
            self.remove_callback(RunFolder)
        super().add_callback(callback)

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        """Take the episodes of each round; by default they are written down as `log_episodes_steps` says."""
        self.loop.record(episodes)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a micro-batch; a subclass may add a term: `super().compute_loss(...) + 0.1 * term`.

        The loss of a step is the mean over its micro-batches, so that a term counts once in each step.
        """
        loss = self.loop.loss(model, inputs)
        if not self.loss_is_scaled_for_ga:
            loss = loss * self.micro_batches
        return (loss, {}) if return_outputs else loss

    def rollout(
        self, rows: Rows, *, num_generations: int = 1, temperature: float | None = None, seed: int | None = None
    ) -> list[Episode]:
        """Play episodes with the current weights, without learning from them.

        Args:
            rows: The tasks.
            num_generations: Episodes of each task.
            temperature: The training temperature by default; 0 is greedy.
            seed: The configuration's by default.

        Returns:
            The episodes of the first row, then those of the second, and so on, with the rewards of reward functions.
        """
        check_is_rows("rows", rows)
        with self._playing():
            return self.player.play(rows, count=num_generations, temperature=temperature, seed=seed)

    @contextmanager
    def _playing(self) -> Iterator[None]:
        """Open a context in which no episode of a training round is in flight; sharded weights must be in place."""
        if self.processes.share_weights and not is_sharded(self.player.model):
            raise RuntimeError("sharded weights are in place once train() has begun: to play before, set eval_on_start")
        with self._alone(), self.watchdog.playing():
            yield

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Rows | Mapping[str, Rows] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        *,
        temperature: float | None = None,
    ) -> dict[str, float]:
        """Play the evaluation tasks, and log and return their metrics, with the prefix before each name.

        Each task is played `num_generations_eval` times: by default `num_generations` times, or once at temperature 0.

        Args:
            eval_dataset: Other tasks than the trainer's own; or the name of one of its own data sets.
            ignore_keys: Not used; `transformers.Trainer` passes it.
            metric_key_prefix: Begins each name.
            temperature: `eval_temperature` by default, or else the training temperature; 0 is greedy.

        Raises:
            RolloutError: more than `max_failure_rate` of the episodes failed.
        """
        self.config.check()
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, str):
            rows = self.eval_dataset[rows]  # type: ignore[index]
        if rows is None:
            raise ValueError("evaluate() needs an eval_dataset")
        if isinstance(rows, Mapping):
            metrics: dict[str, float] = {}
            for name, data_set in rows.items():
                metrics |= self.evaluate(data_set, ignore_keys, f"{metric_key_prefix}_{name}", temperature=temperature)
            return metrics
        self._memory_tracker.start()
        with self._playing():
            metrics, episodes = evaluated(
                rows, self.config, self.player, self.processes, self.missing_metrics, temperature
            )
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        data_sets = len(self.eval_dataset) if isinstance(self.eval_dataset, Mapping) else 1
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics, episodes=episodes, data_sets=data_sets
        )
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: agents have no labels to compare with; `rollout` returns episodes."""
        raise NotImplementedError("predict() compares with labels, and agents have no labels; use rollout(rows)")


class GRPOTrainer(AgentTrainer):
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300); see `AgentTrainer`."""

    config_class = GRPOConfig


class RLOOTrainer(AgentTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740); see `AgentTrainer`."""

    config_class = RLOOConfig
