"""AgentTrainer: a loss and a loader for `transformers.Trainer`, which does everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import TrainOutput

from ..envs.episode import Episode, EpisodeSpec
from ..envs.registry import EnvironmentLike
from ..envs.rewards import RewardFunction
from .batch import Sample
from .config import AgentConfig, GRPOConfig, RLOOConfig
from .custom_formats import ToolParser
from .generation import Generator
from .groups import check_failures, form_groups
from .interrupt import InterruptibleTrainer
from .loader import Rows
from .metrics import Metrics, UpdateClock, episode_metrics
from .objective import objective
from .player import Player
from .preflight import check_data_sets, check_generator, load_model, load_tokenizer
from .processes import Processes, use_one_device
from .progress import rich_displays
from .rounds import Rounds, rollout_loader
from .run_folder import EpisodeLog
from .scoring import Reference, Scorer
from .tool_formats import ToolFormat


class AgentTrainer(InterruptibleTrainer):
    """Trains a model on the episodes that it plays; use `GRPOTrainer` or `RLOOTrainer`.

    Args:
        model: A causal language model with a chat template, or its name.
        environment: What is played: an environment, a class, a factory, a Gymnasium id, or a dict of these that the
            row's `environment` column chooses from.
        args: The configuration.
        train_dataset: The tasks: a sequence of rows, such as a list of dicts or a `datasets.Dataset`.
        eval_dataset: The tasks of `evaluate()`; or a dict of such data sets.
        processing_class: The tokenizer; the model's own by default.
        reward_funcs: Further rewards, TRL-style: `f(completions=..., **columns) -> list`.
        tool_format: How the model writes tool calls, where its chat template does not tell.
        generator: Samples; by default the one that the configuration names.
        callbacks: As in `transformers.Trainer`.
        optimizers: As in `transformers.Trainer`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument, a row, or a combination of options is wrong; nothing has been generated yet.
    """

    config_class: ClassVar[type[AgentConfig]] = AgentConfig
    loss_is_scaled_for_ga = True  # `policy_loss` has divided gradient accumulation out

    def __init__(
        self,
        model: str | PreTrainedModel,
        environment: EnvironmentLike,
        args: AgentConfig | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        reward_funcs: RewardFunction | Sequence[RewardFunction] = (),
        tool_format: str | ToolFormat | ToolParser | None = None,
        generator: Generator | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        args = args if args is not None else self.config_class(output_dir="runs/agent")
        if not isinstance(args, self.config_class):
            raise TypeError(f"args must be a {self.config_class.__name__}, got {type(args).__name__}")
        use_one_device(args)
        model = load_model(model, args.model_init_kwargs)
        tokenizer = load_tokenizer(model, processing_class, args.model_init_kwargs)
        options: dict[str, Any] = {"reward_funcs": reward_funcs, "tool_format": tool_format, "generator": generator}
        check_generator(args, generator)
        options["step"] = lambda: self.state.global_step
        self.player = Player(model, tokenizer, environment, args, **options)
        check_data_sets(train_dataset, eval_dataset, self.player)
        reference = Reference(model) if args.beta else None
        self._clock = UpdateClock(lambda values: self._metrics.add(values))
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,  # type: ignore[arg-type]
            eval_dataset=eval_dataset,  # type: ignore[arg-type]
            processing_class=tokenizer,
            data_collator=_as_it_is,
            callbacks=[self._clock, *(callbacks or [])],  # first, so that it measures no other callback
            optimizers=optimizers,
        )
        self.processes = Processes(self.accelerator)
        self.config = args  # `args` with its own type
        self.model_accepts_loss_kwargs = True  # num_items_in_batch is the number of loss tokens, see get_batch_samples
        self._metrics, self._rounds = Metrics(), Rounds()
        self._episode_log = EpisodeLog(args.output_dir or ".", suffix=self.processes.suffix)
        self._displays = rich_displays(self)
        if reference is not None:
            reference.prepare(self.accelerator)
        gather, pad_id = self.processes.gather_tensor, self.player.pad_id
        self.scorer = Scorer(model, args, reference=reference, gather=gather, pad_id=pad_id)

    # Episodes.

    def rollout(
        self, rows: Rows, *, num_generations: int = 1, temperature: float | None = None, seed: int | None = None
    ) -> list[Episode]:
        """Play episodes with the current weights, without learning from them.

        Args:
            rows: The tasks.
            num_generations: Episodes of each.
            temperature: The training temperature by default; 0 is greedy.
            seed: The configuration's by default.

        Returns:
            The episodes of the first row, then those of the second, and so on, reward functions included.
        """
        return self.player.play_rows(rows, count=num_generations, temperature=temperature, seed=seed)

    def _play_round(self, specs: list[EpisodeSpec]) -> list[Sample]:
        """A round of training episodes as samples; the loader calls this."""
        samples = self._rounds.loaded(specs)
        if samples is None:
            started = time.perf_counter()
            episodes = self.player.play(specs)
            self.on_episodes(episodes)
            groups, dropped = form_groups(episodes)
            count = self.processes.count
            check_failures(episodes, groups, self.config.max_failure_rate, num_processes=count)
            samples, metrics = self.scorer(groups)
            metrics |= {"groups/dropped": float(dropped), "time/rollout": time.perf_counter() - started}
            self._metrics.add(episode_metrics(episodes) | metrics)
        self._rounds.add(specs, samples)
        return samples

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        """Called with the episodes of each round; by default they are written down as `log_episodes_steps` says."""
        every, step = self.config.log_episodes_steps, self.state.global_step
        if every and self._episode_log.is_due(step, every):
            self._episode_log.write(step, episodes)

    # What transformers.Trainer asks for.

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        self._metrics, self._rounds = Metrics(), Rounds()
        self._episode_log.begin()
        try:
            return super().train(*args, **kwargs)
        finally:
            for display in self._displays:
                display.stop()  # an exception calls no callback, and a live display would hide its message

    train.__doc__ = InterruptibleTrainer.train.__doc__

    def cancel(self) -> None:
        self.player.cancel()

    def get_train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        if self.train_dataset is None:
            raise ValueError("train() needs a train_dataset")
        self._rounds.loader = loader = rollout_loader(
            self.train_dataset,  # type: ignore[arg-type]
            self.config,
            self.processes,
            self._play_round,
            global_step=lambda: self.state.global_step,
            pad_id=self.player.pad_id,
        )
        return DataLoader(loader, batch_size=None, collate_fn=_as_it_is)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of one optimiser step, and the number of loss tokens in them over all processes."""
        self._rounds.forget_used()
        batches = self.take_batches(epoch_iterator, num_batches)
        count: Any = sum((batch["mask"].sum() for batch in batches), torch.tensor(0.0)).to(device)
        count = self.processes.sum(count) if batches else count
        self._clock.start()
        return batches, count

    # A checkpoint in the middle of a round keeps the round, beside the random states.

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._rounds.is_unfinished:
            self._rounds.save(Path(output_dir, f"rounds{self.processes.suffix}.pt"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._rounds.load(Path(resume_from_checkpoint, f"rounds{self.processes.suffix}.pt"))

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
            self.config,
            accumulation_steps=self.current_gradient_accumulation_steps,
            num_loss_tokens=num_items_in_batch,
            num_processes=self.processes.count,
        )
        self._metrics.add(metrics, weight=inputs["mask"].sum().item())
        return (loss, {}) if return_outputs else loss

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Rows | Mapping[str, Rows] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        *,
        temperature: float | None = None,
    ) -> dict[str, float]:
        """Play the evaluation tasks and return (and log) what training logs too, with the prefix before each name.

        Args:
            eval_dataset: Other tasks than the trainer's own; or the name of one of its own data sets.
            ignore_keys: Not used; `transformers.Trainer` passes it.
            metric_key_prefix: Begins each name.
            temperature: The training temperature by default; 0 is greedy.

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
        played = self.player.play_rows(rows, mine, count=count, temperature=temperature)
        episodes = self.processes.gather_objects(played)
        check_failures(episodes, [[each] for each in episodes if each.reward is not None], self.config.max_failure_rate)
        metrics = episode_metrics(episodes) | {"runtime": time.perf_counter() - started}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Not for agents, whose answers have no labels; `rollout` returns episodes.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("predict() compares outputs with labels, which agents have not; use rollout(rows)")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs or "train_loss" in logs:  # a training step's, or the summary after the last one
            logs |= self._metrics.flush(self.processes.gather_objects)
        super().log(logs, start_time)


class GRPOTrainer(AgentTrainer):
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300); see `AgentTrainer`."""

    config_class = GRPOConfig


class RLOOTrainer(AgentTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740); see `AgentTrainer`."""

    config_class = RLOOConfig


def _as_it_is(batch: Any) -> Any:
    return batch
