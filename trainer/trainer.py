"""AgentTrainer: plays rounds of episodes, and gives `transformers.Trainer` their batches and their loss."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, TrainOutput

from ..envs.episode import Episode
from ..envs.registry import EnvironmentLike
from ..envs.rewards import RewardFunction
from .assembly import make_player, make_reference_sync, make_round_player, make_schedule, make_scorer, padding_id
from .checkpoints import check_plan, read_unlogged, write_plan, write_unlogged
from .config import AgentConfig, GRPOConfig, RLOOConfig
from .distributed import Processes
from .generation.contract import Generator
from .interrupt import InterruptibleTrainer
from .learning.losses import StepCounts
from .learning.objective import objective
from .learning.samples import Batch, EpisodeSamples, MicroBatch
from .nonfinite import NonFiniteError, NonFiniteSteps
from .option_checks import unknown_names
from .records.alarms import MismatchAlarm, NoSpreadAlarm
from .records.evaluation import evaluation_metrics
from .records.metrics import Metrics, weighted_metrics
from .records.progress import rich_displays
from .records.run_folder import EpisodeLog
from .reference import Reference
from .rollout.compaction import Compact
from .rollout.failure_totals import FailureTotals
from .rollout.failures import FailureWatch, RolloutError, check_evaluation
from .rollout.round import Round
from .rollout.round_player import PlayedRound
from .rollout.schedule import Rows
from .startup_checks import check_before_loading, check_is_rows, load_model, load_tokenizer
from .tool_calls.custom import ToolParser
from .tool_calls.formats import ToolFormat
from .transformers_hooks import use_one_gpu
from .watchdog import Watchdog

logger = logging.getLogger(__name__)


class AgentTrainer(InterruptibleTrainer):
    """Trains a model on the episodes that it plays; use `GRPOTrainer` or `RLOOTrainer`.

    Args:
        model: A causal language model with a chat template, or its name.
        environment: An environment, a class, a factory, a Gymnasium id, or a dict of these that the row's
            `environment` column chooses from.
        args: The configuration.
        train_dataset: The tasks: a sequence of rows, such as a list of dicts or a `datasets.Dataset`.
        eval_dataset: The tasks of `evaluate()`; or a dict of such data sets.
        processing_class: The tokenizer; the model's own by default.
        reward_funcs: Further rewards, TRL-style: `f(completions=..., **columns) -> list`.
        tool_format: How the model writes tool calls, where its chat template does not tell.
        generator: Samples the answers; by default the one that the configuration names.
        peft_config: Trains a new adapter on the model, such as `peft.LoraConfig(...)`; the model's weights stay.
        compact: Rewrites the messages of an episode that fill the model's context: `f(messages) -> messages`.
        callbacks: As in `transformers.Trainer`; or a single one.
        optimizers: As in `transformers.Trainer`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument, a row, or a combination of options is wrong; nothing has been generated yet.
    """

    config_class: ClassVar[type[AgentConfig]] = AgentConfig
    _round: Round | None = None  # the latest

    def __init__(
        self,
        model: str | PreTrainedModel,
        environment: EnvironmentLike | None = None,
        args: AgentConfig | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        reward_funcs: RewardFunction | Sequence[RewardFunction] = (),
        tool_format: str | ToolFormat | ToolParser | None = None,
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
        check_before_loading(environment, train_dataset, eval_dataset)
        args = args if args is not None else self.config_class(output_dir="runs/agent")
        if not isinstance(args, self.config_class):
            raise TypeError(f"args must be a {self.config_class.__name__}, got {type(args).__name__}")
        use_one_gpu(args)
        checkpointing = args.gradient_checkpointing
        model = load_model(model, args.model_init_kwargs, peft_config, gradient_checkpointing=checkpointing)
        tokenizer = load_tokenizer(model, processing_class, args.model_init_kwargs)
        options: dict[str, Any] = {"reward_funcs": reward_funcs, "tool_format": tool_format, "generator": generator}
        options["compact"] = compact
        options |= {"data_sets": (train_dataset, eval_dataset), "step": lambda: self.state.global_step}
        self.player = make_player(model, tokenizer, environment, args, **options)
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
        self._watchdog = Watchdog(args.stall_warning, self.player.engine.whereabouts, process=process)
        self.config = args  # `args` with its own type
        self.model_accepts_loss_kwargs = True  # num_items_in_batch is the number of loss tokens, see next_batches
        self._metrics = Metrics()
        folder, every = args.output_dir or ".", args.log_episodes_steps
        self._episode_log = EpisodeLog(folder, every=every, suffix=self.processes.suffix)
        self._mismatch_alarm = MismatchAlarm(args.generator if generator is None else type(generator).__name__)
        self._displays = rich_displays(self)
        self.pad_id = padding_id(tokenizer, self.player.policy.chat)
        self.reference = Reference(model) if args.beta else None  # the model is on its device now
        self._reference_sync = make_reference_sync(self.reference, args)
        self.scorer = make_scorer(model, self.reference, args, self.processes, pad_id=self.pad_id)

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
        """Entered while episodes are played; the watchdog names the generator while no episode has begun."""
        with self._watchdog, self.waiting("the generator to take new weights"):
            yield

    def _play_round(self, index: int) -> Round:
        """Play a round of training episodes and score it."""
        started = time.perf_counter()
        rows: Any = self.train_dataset
        if self.was_interrupted and self.processes.count == 1:  # between two rounds of a step
            raise asyncio.CancelledError
        with self._playing():
            played = self._round_player(rows, index)
        self.on_episodes(played.episodes)
        scored, metrics = self.scorer(played.groups)
        self._watch(played, scored, rejected=metrics.get("mismatch/rejected", 0.0))
        metrics |= played.metrics | {"rounds/skipped": float(not scored)}
        self._metrics.add(metrics | {"time/rollout": time.perf_counter() - started})
        for weight, part in weighted_metrics(played.episodes, self.player.environment_of):
            self._metrics.add(part, weight=weight)
        order = self.schedule.batch_order(index, len(scored))
        return Round(index, [scored[place] for place in order], **self._cutting)

    def _watch(self, played: PlayedRound, samples: Sequence[EpisodeSamples], *, rejected: float) -> None:
        """Warn of lost episodes, and of rounds that teach nothing."""
        episodes = played.episodes
        failed = sum(each.failure is not None for each in episodes)
        spread = sum(map(self._round_player.has_spread, played.groups))
        counts = self.processes.sum_counts(len(episodes), failed, len(samples), spread)
        self._failures.add_round(episodes, played=counts[0], failed=counts[1], samples=counts[2], rejected=rejected)
        self._no_spread.add(episodes, with_spread=counts[3])
        for display in self._displays:
            display.latest_failure = self._failures.latest

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        """Called with the episodes of each round; by default they are written down as `log_episodes_steps` says."""
        self._episode_log.add(self.state.global_step, episodes)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        if self.train_dataset is None:
            raise ValueError("train() needs a train_dataset")
        self.schedule = make_schedule(len(self.train_dataset), self.config, self.processes)  # type: ignore[arg-type]
        self._round_player = make_round_player(self.player, self.schedule, self.config, self.processes)
        self._metrics, self._round, self.processes.all_failed = Metrics(), None, False
        self._failures = FailureWatch(self.config.max_failure_rate, self.config.treatments)
        self._no_spread = NoSpreadAlarm()
        self._nonfinite = NonFiniteSteps(self.config.on_nonfinite, self.processes, self.accelerator.scaler)
        self._resumed_loss: tuple[float, int] | None = None
        totals = self._failures.totals
        try:
            with self._watchdog:
                output = super().train(*args, **kwargs)
            totals = FailureTotals.of(self.processes.in_first(totals))
            return output
        finally:
            for display in self._displays:
                display.stop()  # an exception calls no callback, and a live display would hide its message
            if str(totals):
                logger.warning("failures of this training: %s", totals)

    train.__doc__ = InterruptibleTrainer.train.__doc__

    def cancel(self) -> None:
        self.player.cancel()

    def fails_everywhere(self, error: Exception) -> bool:
        # The counts behind these errors are of all processes.
        known = isinstance(error, RolloutError | NonFiniteError)
        return super().fails_everywhere(error) or self.processes.all_failed or known

    def begin(self) -> None:
        self._episode_log.begin(self.state.global_step)
        if self._resumed_loss is not None:
            self.restore_unlogged_loss(*self._resumed_loss)

    def before_update(self) -> None:
        # Momentum and weight decay would move the weights, so optimisers must find no gradient at all.
        skipped = self._nonfinite.skips(self.state.global_step + 1, self.step_loss, self.grad_norm)
        if skipped or not float(self._counts.loss_tokens):
            self.model.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        if self.processes.index == 0:  # all processes skip the same steps
            self._metrics.add({"steps/nonfinite": float(skipped)})

    def waiting(self, what: str) -> AbstractContextManager[None]:
        return self._watchdog.during(what)

    def after_update(self) -> None:
        self._watchdog.moved()
        self._metrics.add({"time/update": time.perf_counter() - self._batches_ready_at})
        if self._reference_sync is not None:
            self._reference_sync.after_step(self.state.global_step)

    def batches_per_epoch(self) -> int:
        return self.schedule.batches_per_epoch

    def next_batches(self, count: int, device: torch.device) -> tuple[list[list[MicroBatch]], Tensor]:
        first = self.schedule.batches_before(self.state.global_step)
        batches = self.unless_interrupted(lambda: [self._batch(first + place) for place in range(count)]) or []
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
        self._batches_ready_at = time.perf_counter()
        return [each.micro_batches for each in batches], loss_tokens

    def _batch(self, number: int) -> Batch:
        """The batch of this number since the beginning of training; plays its round if it is the first of it."""
        index, place = divmod(number, self.schedule.batches_per_round)
        if self._round is None or self._round.index != index:
            self._round = self._play_round(index)
        return self._round.batches[place % self.schedule.steps_per_generation]

    def save_more(self, folder: Path) -> None:
        if self.is_world_process_zero():
            write_plan(folder, self.schedule.describe(self.train_dataset))  # type: ignore[arg-type]
            if self._reference_sync is not None:
                self._reference_sync.save(folder)
        write_unlogged(folder, self.processes.suffix, self.unlogged_loss, self._metrics.pending())
        index, place = divmod(self.schedule.batches_before(self.state.global_step), self.schedule.batches_per_round)
        if self._round is not None and self._round.index == index and place:
            self._round.save(folder / f"round{self.processes.suffix}.pt")

    def load_more(self, folder: Path) -> None:
        check_plan(folder, self.schedule.describe(self.train_dataset))  # type: ignore[arg-type]
        if self._reference_sync is not None:
            self._reference_sync.load(folder)
        unlogged = read_unlogged(folder, self.processes.suffix)
        self._resumed_loss = unlogged["loss"]
        self._metrics.restore(unlogged["metrics"])
        path = folder / f"round{self.processes.suffix}.pt"
        if path.is_file():
            self._round = Round.load(path, **self._cutting)

    @property
    def _cutting(self) -> dict[str, Any]:
        """How a round is cut into batches."""
        parts = self.schedule.steps_per_generation
        return {"parts": parts, "settings": self.config.learning_settings, "pad_id": self.pad_id}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        loss, metrics = objective(
            model,
            inputs,
            self.config.learning_settings,
            self._counts,
            head=self.scorer.head,
            with_entropy=self._is_logged,
        )
        self._metrics.add(metrics, weight=len(inputs["places"]))
        self._watchdog.moved()
        return (loss, {}) if return_outputs else loss

    @property
    def _is_logged(self) -> bool:
        """Whether metrics are logged after this step, as far as that is known now."""
        step, every = self.state.global_step + 1, self.state.logging_steps
        return self.args.logging_strategy != IntervalStrategy.STEPS or step % every == 0 or step == 1

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Rows | Mapping[str, Rows] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        *,
        temperature: float | None = None,
    ) -> dict[str, float]:
        """Play the evaluation tasks, and log and return their metrics, with the prefix before each name.

        Args:
            eval_dataset: Other tasks than the trainer's own; or the name of one of its own data sets.
            ignore_keys: Not used; `transformers.Trainer` passes it.
            metric_key_prefix: Begins each name.
            temperature: `eval_temperature` by default, or else the training temperature; 0 is greedy.

        Raises:
            RolloutError: more than `max_failure_rate` of the episodes failed.
        """
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, str):
            rows = self.eval_dataset[rows]  # type: ignore[index]
        if rows is None:
            raise ValueError("evaluate() needs an eval_dataset")
        if isinstance(rows, Mapping):
            metrics: dict[str, float] = {}
            for name, each in rows.items():
                metrics |= self.evaluate(each, ignore_keys, f"{metric_key_prefix}_{name}", temperature=temperature)
            return metrics
        self._memory_tracker.start()
        started = time.perf_counter()
        count = self.config.num_generations_eval or self.config.num_generations
        mine = range(self.processes.index, len(rows), self.processes.count)
        temperature = self.config.eval_temperature if temperature is None else temperature
        with self._playing():
            played = self.processes.all_or_none(
                lambda: self.player.play(rows, mine, count=count, temperature=temperature)
            )
            episodes = self.processes.gather(played)
        check_evaluation(episodes, self.config.max_failure_rate)
        metrics = evaluation_metrics(
            episodes, self.player.environment_of, success_reward=self.config.success_reward
        ) | {"runtime": time.perf_counter() - started}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Agents have no labels to compare with; `rollout` returns episodes."""
        raise NotImplementedError("predict() compares with labels, and agents have no labels; use rollout(rows)")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs or "train_loss" in logs:  # a training step's, or the summary after the last one
            if self.did_nothing:  # a summary of no step
                return
            logs |= self._metrics.flush(self.processes.gather)
            if "mismatch/ess" in logs:
                self._mismatch_alarm.add(logs["mismatch/ess"])
        super().log(logs, start_time)


class GRPOTrainer(AgentTrainer):
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300); see `AgentTrainer`."""

    config_class = GRPOConfig


class RLOOTrainer(AgentTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740); see `AgentTrainer`."""

    config_class = RLOOConfig
