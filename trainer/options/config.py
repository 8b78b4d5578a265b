"""AgentConfig: `transformers.TrainingArguments` and the options for agents.

Names that TRL users know keep TRL's meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from transformers import TrainingArguments

from ..learning.advantages import ESTIMATORS, KLIn, Scale
from ..learning.corrections import CORRECTIONS
from ..learning.credit import Credit
from ..learning.losses import LOSSES
from ..rollout.settings import OverlongPrompts
from .fields import (
    AtLeast0,
    BelowOne,
    Count,
    Finite,
    GroupSize,
    Number,
    OneOf,
    OnNonFinite,
    Port,
    Positive,
    PositiveShare,
    Seconds,
    Share,
    Weight,
    option,
)
from .value_checks import check_values, unknown_names

READ_BY_EVALUATION = ("eval_temperature", "num_generations_eval", "success_reward")
"""gymnast's options that each evaluation reads, so they may change while a trainer exists."""

READ_ONCE = ("per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed", "output_dir")
"""transformers' options that parts of gymnast take when they are made, so they may not."""


@dataclass
class AgentConfig(TrainingArguments):
    """The options of both trainers; use `GRPOConfig` or `RLOOConfig`."""

    default_estimator: ClassVar[str]
    default_kl_in: ClassVar[KLIn]
    rules: ClassVar[Sequence[Callable[[Any], None]]]
    """Each raises an error or warns if options of this configuration do not fit together."""
    use_bias_correction_kl = False  # an option of GRPOConfig alone, as in TRL
    _is_checked = False  # since the last assignment
    _is_frozen = False

    # --- Model and optimiser ---

    learning_rate: Weight = option(1e-6, "Initial learning rate. Adapters (peft_config) need ten times the default.")
    model_init_kwargs: dict[str, Any] | None = option(
        None, "Arguments of from_pretrained if the model is given by name. dtype is float32 unless it is given here."
    )
    max_image_pixels: Count | None = option(
        None, "Maximum pixels of a picture that the model sees; larger ones are made smaller. None: no limit."
    )
    freeze_vision: bool = option(
        False, "Whether the vision tower of a model that takes images stays as it is. The projector behind it trains."
    )
    max_tokens_per_batch: Count | None = option(
        None, "Maximum tokens in a forward pass, padding included. A larger batch takes several. None: by the model."
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Whether DDP searches each step for weights without a gradient. None: as in transformers."
    )
    remove_unused_columns: bool = option(False, "Must stay False: environments read the columns of the data set.")

    # --- Tasks and rounds ---

    num_generations: GroupSize = option(8, "Number of episodes in a group, all of the same task and environment seed.")
    num_generations_eval: Count | None = option(
        None, "Number of episodes of each task in an evaluation. None: num_generations, or 1 at temperature 0."
    )
    steps_per_generation: Count | None = option(
        None, "Batches of per_device_train_batch_size episodes in a round. None: gradient_accumulation_steps."
    )
    generation_batch_size: Count | None = option(
        None, "Episodes in a round of all processes, in place of steps_per_generation. None: that option decides."
    )
    num_iterations: Count = option(1, "Number of times that training uses each round.")
    shuffle_dataset: bool | None = option(
        None,
        "Whether tasks are played in a random order, which follows from seed. None: yes, unless they are a stream.",
    )
    max_refills: Number = option(
        0, "How often a round may replace groups of equal rewards by other tasks' groups (dynamic sampling). 0: never."
    )
    max_staleness: Number = option(
        0, "How many optimiser steps old the weights may be when an episode starts. 0: play, then train."
    )

    # --- Playing and budgets ---

    max_completion_length: Count = option(256, "Maximum number of tokens after the prompt, tool results included.")
    max_turn_tokens: Count | None = option(None, "Maximum number of tokens in one answer. None: no limit.")
    max_observation_tokens: Count | None = option(
        None, "Maximum number of tokens in one observation, such as a tool's result. The rest is cut. None: no limit."
    )
    max_model_len: Count | None = option(None, "Maximum tokens of prompt and completion. None: the model's limit.")
    max_turns: Count | None = option(None, "Maximum number of answers in an episode. None: no limit.")
    max_tool_calls: Count | None = option(
        None, "Maximum number of tool calls in an episode. A final answer counts even if it is reached. None: no limit."
    )
    episode_timeout: Seconds | None = option(
        None, "Seconds after which an episode is cut, with the stop reason timeout. None: no limit."
    )
    step_timeout: Seconds | None = option(
        600.0, "Seconds after which a reset, step or grade of an environment makes its episode fail. None: no limit."
    )
    reward_timeout: Seconds | None = option(
        600.0, "Seconds after which a call of a reward function makes its episode fail. None: no limit."
    )
    overlong_prompts: OverlongPrompts = option(
        "fail",
        "What to do with a prompt that fills the context. fail: the episode fails; drop: the episode is left out and "
        "is not a failure; raise: training stops.",
    )
    max_concurrency: Count = option(256, "Maximum number of episodes in flight in a process; each may hold a sandbox.")

    # --- Sampling and generation ---

    temperature: Positive = option(1.0, "Temperature of sampling in training.")
    top_p: PositiveShare = option(1.0, "Sample among the most probable tokens with this total probability. 1: all.")
    top_k: Number = option(0, "Sample among this many most probable tokens. 0: all.")
    min_p: Share = option(0.0, "Minimum probability of a token, as a share of the most probable one's. 0: none.")
    eval_temperature: Weight | None = option(None, "Temperature in evaluation. 0: greedy. None: as in training.")
    generator: Literal["transformers", "vllm", "vllm-server"] = option(
        "transformers",
        "Sampler of the answers: the model in transformers, vLLM in this process, or vLLM servers (vllm_server_urls).",
    )
    generation_rows: Count = option(256, "Maximum number of answers that the generator samples at once.")
    vllm_gpu_memory_utilization: PositiveShare = option(0.3, "Share of the GPU's memory for vLLM in this process.")
    vllm_enable_sleep_mode: bool = option(False, "Whether vLLM in this process frees GPU memory during training.")
    vllm_engine_kwargs: dict[str, Any] | None = option(None, "Further arguments of vLLM's engine in this process.")
    vllm_request_seeds: bool = option(
        True, "Whether each vLLM request has its own seed. False is faster on GPUs, but sampling cannot be repeated."
    )
    vllm_server_urls: list[str] | None = option(None, "Addresses of the vLLM servers. None: port 8000 of this machine.")
    vllm_server_timeout: Positive = option(240.0, "Seconds to wait for a server that is starting, or starting again.")
    vllm_group_port: Port = option(0, "Port of this machine from which servers fetch new weights. 0: any free port.")
    chat_template_kwargs: dict[str, Any] | None = option(
        None, "Arguments of the chat template, such as {'enable_thinking': False}."
    )
    chat_template_date: str = option(
        "2025-01-01", "Today's date for chat templates that ask for it, so that a run does not depend on its day."
    )

    # --- Rewards and advantages ---

    reward_weights: list[float] | None = option(None, "Weights of reward_funcs, in their order. None: 1 for each.")
    success_reward: Finite | None = option(
        None, "Minimum reward of a success in pass@k, if environments report no `success`. None: they have no pass@k."
    )
    truncated: dict[str, str] | str | None = option(
        None,
        "What to do with an episode that a limit has cut: one of these for all, or a dict by stop reason. teach: learn "
        "from it; mask: it counts in the baseline and has no loss; leave: it leaves its group. None: leave for "
        "timeout, else teach.",
    )
    overlong_buffer: Number = option(
        0, "Tokens before max_completion_length in which the reward falls linearly by overlong_penalty. 0: no penalty."
    )
    overlong_penalty: Weight = option(1.0, "Reward lost at max_completion_length, if overlong_buffer is set.")
    advantage_estimator: Annotated[str, OneOf(ESTIMATORS)] | None = option(
        None, "Baseline of the rewards: a row of trainer.ESTIMATORS. None: the one with the trainer's name."
    )
    credit: Credit = option(
        "episode",
        "Which reward judges a token. episode: that of its episode; turn: the rewards from its turn on, compared with "
        "the same turn of the other episodes of the group.",
    )
    discount: Share = option(1.0, "Weight of the next turn's return in a turn's, with credit='turn'. 1: in full.")
    scale_rewards: Scale | None = option(
        None,
        "Standard deviation of rewards that divides the advantages. group: of the group; batch: of all groups of a "
        "round; none: no division. None: the default of the estimator.",
    )
    normalize_advantages: bool = option(
        False, "Whether a round's advantages are scaled to mean 0 and standard deviation 1, as reinforce++ always does."
    )

    # --- Loss and corrections ---

    loss_type: Annotated[str, OneOf(LOSSES)] = option("dapo", "Loss: a row of trainer.LOSSES.")
    epsilon: BelowOne = option(0.2, "The ratio of new and old policy is clipped below at 1 - epsilon.")
    epsilon_high: AtLeast0 | None = option(None, "The ratio is clipped above at 1 + epsilon_high. None: epsilon.")
    delta: Positive | None = option(None, "Upper bound of the ratio at negative advantages (dual clip). None: off.")
    sapo_temperature_pos: Positive = option(
        1.0, "How fast the gradient of sapo fades as the ratio leaves 1, at positive advantages. Higher: faster."
    )
    sapo_temperature_neg: Positive = option(1.05, "As sapo_temperature_pos, at negative advantages.")
    entropy_coef: Weight = option(0.0, "Weight of the mean entropy of the loss tokens, subtracted from the loss.")
    top_entropy_quantile: PositiveShare = option(1.0, "Share of loss tokens to learn from, of highest entropy. 1: all.")
    beta: Weight = option(0.0, "Weight of the divergence (KL) from the reference model. 0: no reference model.")
    kl_in: KLIn | None = option(
        None, "Where the divergence counts: in each token's loss, or in the reward. None: loss (GRPO), reward (RLOO)."
    )
    sync_ref_model: bool = option(False, "Whether the reference follows the policy every ref_model_sync_steps steps.")
    ref_model_mixup_alpha: PositiveShare = option(
        0.6, "How far the reference moves: reference = alpha * policy + (1 - alpha) * reference. 1: it is replaced."
    )
    ref_model_sync_steps: Count = option(512, "Number of optimiser steps between two moves of the reference.")
    correction: Annotated[str, OneOf(CORRECTIONS)] | None = option(
        None,
        "Correction of the mismatch of sampler and trainer, by their ratio: a row of trainer.CORRECTIONS. None: tis "
        "with vLLM or max_staleness (sequence_tis for a loss of whole sequences), else none.",
    )
    correction_min: float | None = option(None, "Lower bound of the ratio. None: the correction's default.")
    correction_max: float | None = option(None, "Upper bound of the ratio. None: the correction's default.")

    # --- Failures and records ---

    on_failure: str = option(
        "drop",
        "What to do with a failed episode. drop: it leaves its group; retry(n): it is played again up to n times; "
        "zero: its reward is 0; raise: training stops.",
    )
    max_failure_rate: Share = option(
        0.5, "Training stops if a larger share of the episodes of its last ten rounds, or of an evaluation, failed."
    )
    on_nonfinite: OnNonFinite = option("skip", "What to do with an update that is not finite: skip it, or stop.")
    stall_warning: Positive | None = option(300.0, "Seconds without progress until a warning says why. None: never.")
    record_run: bool = option(
        True, "Whether a training writes metrics.jsonl, reward.png and some of its episodes into output_dir."
    )
    log_episodes_steps: Number | None = option(
        None,
        "Optimiser steps between rounds written to episodes.jsonl, for `gymnast view` and `gymnast why`. 0: none. "
        "None: with record_run, 16 rounds of the training, in at most 64 MB. With record_run the same holds for "
        "evaluations, in evaluations.jsonl.",
    )
    logging_steps: Positive = option(10, "Optimiser steps between two logs. Below 1: a share of all steps.")

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Check the names: the error of a dataclass suggests no other name."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise unknown_names(cls.__name__, unknown, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._check_single_options()
        if self.metric_for_best_model is None and self.needs_best_metric:
            self.metric_for_best_model = "reward"  # transformers' default is a loss, and evaluation has no loss
        super().__post_init__()
        self._check_together()

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
            self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the options without the mark of the trainer that has taken them: it has not taken a copy."""
        return {name: value for name, value in vars(self).items() if name != "_is_frozen"}

    def check(self) -> None:
        """Check the options again, if one has been assigned since they were checked."""
        if not self._is_checked:
            self._check_single_options()
            self._check_together()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Refuse to change gymnast's options from now on, but for those of evaluation; a failed trainer frees them."""
        before, self._is_frozen = self._is_frozen, True
        try:
            yield
        except BaseException:
            self._is_frozen = before
            raise

    @property
    def _fixed_options(self) -> set[str]:
        own = {field.name for field in fields(self)}.difference(TrainingArguments.__dataclass_fields__)
        return own.difference(READ_BY_EVALUATION).union(READ_ONCE)

    def _check_single_options(self) -> None:
        if isinstance(self.scale_rewards, bool):  # as in TRL
            self.scale_rewards = "group" if self.scale_rewards else "none"
        check_values(self)

    def _check_together(self) -> None:
        if self._lr_follows_metric:  # by default such a scheduler takes a growing reward for a growing loss
            mode = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": mode, **(self.lr_scheduler_kwargs or {})}  # type: ignore[dict-item]
        for rule in self.rules:
            rule(self)
        self._is_checked = True

    @property
    def needs_best_metric(self) -> bool:
        """Whether `metric_for_best_model` is read."""
        return self.load_best_model_at_end or self.save_strategy == "best" or self._lr_follows_metric

    @property
    def _lr_follows_metric(self) -> bool:
        return self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
