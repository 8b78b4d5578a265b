"""AgentTrainer: a loss and a loader for `transformers.Trainer`, which does everything else."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
)
from transformers.trainer_utils import TrainOutput

from ..envs.core import ConfigurationError
from ..envs.episode import Episode, EpisodeSpec
from ..envs.registry import EnvironmentLike
from ..envs.rewards import RewardFunction, Rewards
from ..envs.rollout import RolloutEngine, episode_specs
from ..envs.threads import EventLoopThread
from .advantages import ALGORITHMS
from .batch import Sample
from .chat import ChatFormat
from .config import AgentConfig, GRPOConfig, RLOOConfig
from .generation import Generator, Sampling, TransformersGenerator
from .groups import check_failures, form_groups
from .interrupt import stop_on_interrupt
from .loader import RolloutLoader, Rows, Schedule
from .losses import LossInputs, LossSettings, policy_loss, token_logprobs
from .metrics import Metrics, episode_metrics
from .preflight import check_rows, load_model, load_tokenizer
from .progress import RichProgress
from .scoring import Scorer
from .token_policy import TokenPolicy
from .tool_formats import ToolFormat, ToolParser


class AgentTrainer(Trainer):
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
        generator: Samples; by default the model itself, in this process.
        callbacks, optimizers: As in `transformers.Trainer`.

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
        self.rewards = Rewards([reward_funcs] if callable(reward_funcs) else reward_funcs, args.reward_weights)
        engine_options = {"max_concurrency": args.max_concurrency, "on_failure": args.on_failure}
        model = load_model(model)
        tokenizer = load_tokenizer(model, processing_class)
        self.chat = ChatFormat(
            tokenizer,
            tool_format=tool_format,
            end_token_ids=_end_token_ids(model),
            template_kwargs=args.chat_template_kwargs,
        )
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.chat.end_id
        # The model is asked for through `self`, which has it in its final place (device, dtype) after super().__init__.
        self.generator = generator or TransformersGenerator(
            model, pad_id=self.pad_id, max_batch_size=args.generation_rows
        )
        self.budgets = args.budgets(max_model_len=args.max_model_len or _context_length(model))
        self.policy = self._policy(args, args.sampling)
        self.engine = RolloutEngine(environment, self.policy, limits=args.limits, **engine_options)
        for rows in (train_dataset, *_data_sets(eval_dataset).values()):
            if rows is not None:
                check_rows(rows, self.engine.source, self.policy, self.rewards)
        self._metrics = Metrics()
        self._loop: EventLoopThread | None = None
        self._interrupted = False
        self.reference_model = self._reference(model, args)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,  # type: ignore[arg-type]
            eval_dataset=eval_dataset,  # type: ignore[arg-type]
            processing_class=tokenizer,
            data_collator=_as_it_is,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = True  # num_items_in_batch is the number of loss tokens, see get_batch_samples
        self._check_generator(generator)
        if any(isinstance(callback, RichProgress) for callback in callbacks or []):
            self.remove_callback(PrinterCallback)  # one display is enough
            self.remove_callback(ProgressCallback)
        if self.reference_model is not None:
            self.reference_model = self.accelerator.prepare_model(self.reference_model, evaluation_mode=True)
        self.scorer = Scorer(
            self.model,
            args,
            reference=self._with_reference if args.beta else None,
            gather=lambda tensor: self.accelerator.gather(tensor.to(self.accelerator.device)).cpu(),
            pad_id=self.pad_id,
        )

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
        args = self.config
        sampling = args.sampling
        if temperature is not None:
            sampling = Sampling(temperature=temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p)
        specs = episode_specs(rows, group_size=num_generations, seed=args.seed if seed is None else seed, prefix="eval")
        return self._play(specs, self._policy(args, sampling))

    def _play(self, specs: Iterable[EpisodeSpec], policy: TokenPolicy) -> list[Episode]:
        engine = copy.copy(self.engine)
        engine.policy = policy

        async def play_and_score() -> list[Episode]:
            episodes = await engine.run(specs)
            await self.rewards.score(episodes)
            return episodes

        opened = self._loop is None
        loop = self._loop = self._loop or EventLoopThread()
        try:
            return loop.run(play_and_score())
        finally:
            if opened:  # outside train(), which keeps one loop for all its rounds
                self._loop = None
                loop.close()

    def _play_round(self, specs: list[EpisodeSpec]) -> list[Sample]:
        """A round of training episodes as samples; the loader calls this."""
        started = time.perf_counter()
        episodes = self._play(specs, self.policy)
        self.on_episodes(episodes)
        groups, dropped = form_groups(episodes)
        check_failures(episodes, groups, self.config.max_failure_rate)
        samples, metrics = self.scorer(groups)
        metrics |= {"groups/dropped": float(dropped), "time/rollout": time.perf_counter() - started}
        self._metrics.add(episode_metrics(episodes) | metrics)
        return samples

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        """Called with the episodes of each round; by default every `log_episodes_steps`-th step's are written down."""
        every, step = self.config.log_episodes_steps, self.state.global_step
        if every and step % every == 0:
            path = Path(self.config.output_dir, f"episodes{_rank_suffix(self.accelerator)}.jsonl")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                for episode in episodes:
                    file.write(f'{{"step": {step}, "episode": {episode.to_json()}}}\n')

    # What transformers.Trainer asks for.

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; `transformers.Trainer.train` says how.

        Ctrl-C ends the round or finishes the update in progress, saves a checkpoint and returns.
        """
        self._interrupted = False
        self._loop = EventLoopThread()
        try:
            with stop_on_interrupt(self._stop):
                output = super().train(*args, **kwargs)
            if self._interrupted:
                self._save_checkpoint(self.model, trial=None)
            return output
        finally:
            self._loop.close()
            self._loop = None

    def close(self) -> None:
        """Release the generator; the trainer cannot play any more."""
        self.generator.close()

    def _stop(self) -> None:
        self._interrupted = True
        self.control.should_training_stop = True
        if self._loop is not None:
            self._loop.cancel()

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended the last `train()`."""
        return self._interrupted

    def get_train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        if self.train_dataset is None:
            raise ValueError("train() needs a train_dataset")
        args = self.config
        assert args.steps_per_generation is not None
        schedule = Schedule(
            num_tasks=len(self.train_dataset),  # type: ignore[arg-type]
            num_generations=args.num_generations,
            groups_per_process=args.groups_per_process,
            num_processes=self.accelerator.num_processes,
            process_index=self.accelerator.process_index,
            seed=args.data_seed if args.data_seed is not None else args.seed,
            shuffle=args.shuffle_dataset,
        )
        loader = RolloutLoader(
            self.train_dataset,  # type: ignore[arg-type]
            schedule,
            self._play_until_stopped,
            steps_per_generation=args.steps_per_generation,
            num_iterations=args.num_iterations,
            position=lambda: self._position(len(loader)),
            placeholders=not args.ignore_data_skip,
            pad_id=self.pad_id,
        )
        return DataLoader(loader, batch_size=None, collate_fn=_as_it_is)

    def _position(self, batches_per_epoch: int) -> int:
        """Batches used so far: an epoch whose batches do not fill its last optimiser step has a shorter one."""
        steps_per_epoch = -(-batches_per_epoch // self.args.gradient_accumulation_steps)
        epoch, step = divmod(self.state.global_step, steps_per_epoch)
        return epoch * batches_per_epoch + step * self.args.gradient_accumulation_steps

    def _play_until_stopped(self, specs: list[EpisodeSpec]) -> list[Sample]:
        try:
            return self._play_round(specs)
        except asyncio.CancelledError:
            if self._interrupted:
                raise Interrupted from None
            raise

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one optimiser step, and the number of loss tokens in them over all processes."""
        try:
            batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        except Interrupted:
            batches = []  # the trainer sees should_training_stop and ends
        count = sum((batch["mask"].sum() for batch in batches), torch.tensor(0.0)).to(device)
        return batches, self.accelerator.reduce(count, reduction="sum") if batches else count

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        started = time.perf_counter()
        loss = super().training_step(*args, **kwargs)
        seconds = (time.perf_counter() - started) * self.current_gradient_accumulation_steps
        self._metrics.add({"time/update": seconds})
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        args, mask_BT = self.config, inputs["mask"]
        logprobs_BT, entropy_BT = token_logprobs(
            model,
            inputs["input_ids"],
            inputs["attention_mask"],
            keep=mask_BT.shape[1],
            temperature=args.temperature,
            with_entropy=True,
        )
        settings = LossSettings(
            epsilon_low=args.epsilon,
            epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
            beta=args.beta,
            max_completion_length=args.max_completion_length,
            accumulation_steps=self.current_gradient_accumulation_steps,
            num_loss_tokens=mask_BT.sum() if num_items_in_batch is None else num_items_in_batch,
            num_processes=self.accelerator.num_processes,
            use_bias_correction_kl=args.use_bias_correction_kl,
        )
        loss_inputs = LossInputs(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=inputs.get("old_logprobs"),
            mask_BT=mask_BT,
            advantages_B=inputs["advantages"],
            ref_logprobs_BT=inputs.get("ref_logprobs"),
        )
        loss, stats = policy_loss(args.loss_type, loss_inputs, settings)
        self._metrics.add({name: value.item() for name, value in stats.items()})
        self._metrics.add(self._token_metrics(logprobs_BT.detach(), entropy_BT, inputs))
        return (loss, {}) if return_outputs else loss

    def _token_metrics(
        self, logprobs_BT: Tensor, entropy_BT: Tensor | None, inputs: dict[str, Tensor]
    ) -> dict[str, float]:
        mask_BT = inputs["mask"].bool()
        if not mask_BT.any():
            return {}
        assert entropy_BT is not None
        metrics = {"entropy": entropy_BT[mask_BT].mean().item()}
        if self.config.sampling.is_full_distribution:
            # The generator's log-probabilities against the trainer's: rounding only, while the weights are the same.
            reference_BT = inputs.get("old_logprobs", logprobs_BT)
            difference = (reference_BT - inputs["sampling_logprobs"])[mask_BT].abs()
            metrics["sampling/sampling_logp_difference/mean"] = difference.mean().item()
            metrics["sampling/sampling_logp_difference/max"] = difference.max().item()
        return metrics

    def evaluate(
        self,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,  # type: ignore[override]
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        *,
        temperature: float | None = None,
    ) -> dict[str, float]:
        """Play the evaluation tasks and return (and log) what training logs too, with the prefix before each name.

        Args:
            eval_dataset: Other tasks than the trainer's own.
            ignore_keys: Not used; `transformers.Trainer` passes it.
            metric_key_prefix: Begins each name.
            temperature: The training temperature by default; 0 is greedy.
        """
        rows = eval_dataset if eval_dataset is not None else self.eval_dataset
        if rows is None:
            raise ValueError("evaluate() needs an eval_dataset")
        if isinstance(rows, Mapping):
            metrics: dict[str, float] = {}
            for name, each in rows.items():
                metrics |= self.evaluate(each, ignore_keys, f"{metric_key_prefix}_{name}", temperature=temperature)
            return metrics
        started = time.perf_counter()
        mine = range(self.accelerator.process_index, len(rows), self.accelerator.num_processes)  # type: ignore[arg-type]
        count = self.config.num_generations_eval or self.config.num_generations
        episodes = self.rollout([rows[index] for index in mine], num_generations=count, temperature=temperature)  # type: ignore[index]
        collected = Metrics()
        collected.add(episode_metrics(episodes))
        metrics = collected.flush(self._gather_objects)
        metrics["runtime"] = time.perf_counter() - started
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # a training step's, as opposed to an evaluation's or the summary
            logs |= self._metrics.flush(self._gather_objects)
        super().log(logs, start_time)

    # Parts.

    @property
    def config(self) -> AgentConfig:
        """`args` with its own type."""
        assert isinstance(self.args, AgentConfig)
        return self.args

    def _policy(self, args: AgentConfig, sampling: Sampling) -> TokenPolicy:
        return TokenPolicy(
            self.chat,
            self.generator,
            sampling=sampling,
            budgets=self.budgets,
            overlong_prompts=args.overlong_prompts,  # type: ignore[arg-type]
        )

    def _gather_objects(self, objects: list[Any]) -> list[Any]:
        return gather_object(objects) if self.accelerator.num_processes > 1 else objects

    def _reference(self, model: PreTrainedModel, args: AgentConfig) -> nn.Module | None:
        if not args.beta or hasattr(model, "disable_adapter"):
            return None
        reference = copy.deepcopy(model).eval()
        return reference.requires_grad_(False)

    def _with_reference(self, score: Callable[[nn.Module], None]) -> None:
        """Call with the reference model: the initial weights, or the model without its adapter."""
        if self.reference_model is not None:
            score(self.reference_model)
        else:
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                score(self.model)

    def _check_generator(self, given: Generator | None) -> None:
        sharded = self.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)
        if given is None and sharded:
            raise ConfigurationError(
                f"the built-in generator needs whole weights in each process, but {self.accelerator.distributed_type} "
                f"shards them; pass generator="
            )


class GRPOTrainer(AgentTrainer):
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300); see `AgentTrainer`."""

    config_class = GRPOConfig


class RLOOTrainer(AgentTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740); see `AgentTrainer`."""

    config_class = RLOOConfig


class Interrupted(Exception):
    """Ctrl-C came while a round was played."""


def _as_it_is(batch: Any) -> Any:
    return batch


def _data_sets(rows: Rows | Mapping[str, Rows] | None) -> Mapping[str, Rows]:
    return {} if rows is None else rows if isinstance(rows, Mapping) else {"eval": rows}


def _end_token_ids(model: PreTrainedModel) -> list[int]:
    """Every end-of-turn id of the model's generation config."""
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _context_length(model: PreTrainedModel) -> int:
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        raise ConfigurationError("the model's config does not tell its context length; set max_model_len")
    return length


def _rank_suffix(accelerator: Any) -> str:
    return "" if accelerator.num_processes == 1 else f"-{accelerator.process_index}"


assert {GRPOConfig.algorithm, RLOOConfig.algorithm} <= set(ALGORITHMS)
