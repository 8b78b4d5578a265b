"""PlayingTrainer: plays episodes without learning from them, for inspection and evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ...envs.episode import Episode
from ...records.metrics.missing_metrics import MissingMetrics
from ..models.distributed import Processes
from ..models.sharding import is_sharded
from ..options.config import AgentConfig
from ..options.rules import warn_of_equal_episodes
from ..rollout.episode_player import EpisodePlayer
from ..rollout.failures import check_evaluation
from ..rollout.schedule import Rows
from ..run_log.evaluation import evaluation_metrics
from ..setup.startup_checks import check_is_rows
from .interrupt import InterruptibleTrainer
from .watchdog import Watchdog


class PlayingTrainer(InterruptibleTrainer):
    """A trainer with `rollout` and `evaluate`; a subclass sets its attributes."""

    config: AgentConfig
    player: EpisodePlayer
    processes: Processes
    watchdog: Watchdog
    missing_metrics: MissingMetrics
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    """A context in which no episodes of a training round are in flight."""

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
        with self.alone(), self.playing():
            return self.player.play(rows, count=num_generations, temperature=temperature, seed=seed)

    @contextmanager
    def playing(self) -> Iterator[None]:
        """A context for playing episodes. Until the first episode begins, the watchdog names the generator.

        Raises:
            RuntimeError: the weights will be sharded when training begins; until then a process may not have them.
        """
        if self.processes.share_weights and not is_sharded(self.player.model):
            raise RuntimeError("sharded weights are in place once train() has begun: to play before, set eval_on_start")
        with self.watchdog, self.waiting("the generator to take new weights"):
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
            for name, each in rows.items():
                metrics |= self.evaluate(each, ignore_keys, f"{metric_key_prefix}_{name}", temperature=temperature)
            return metrics
        self._memory_tracker.start()
        started = time.perf_counter()
        mine = range(self.processes.index, len(rows), self.processes.count)
        if temperature is None:
            temperature = self.config.eval_temperature
        elif self.config.eval_temperature != 0:  # else the configuration has warned
            warn_of_equal_episodes(self.config.num_generations_eval, temperature, stacklevel=3)
        usual = 1 if temperature == 0 else self.config.num_generations  # greedy episodes of one task are all the same
        count = self.config.num_generations_eval or usual
        evaluating = self.player.engine.whereabouts.playing_for("evaluation")
        with self.alone(), self.playing(), evaluating:
            played = self.processes.all_or_none(
                lambda: self.player.play(rows, mine, count=count, temperature=temperature)
            )
            episodes = self.processes.gather(played)
        check_evaluation(episodes, self.config.max_failure_rate)
        judged = {"success_reward": self.config.success_reward, "missing": self.missing_metrics}
        metrics = evaluation_metrics(episodes, self.player.environment_of, **judged)
        metrics["runtime"] = time.perf_counter() - started
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Agents have no labels to compare with; `rollout` returns episodes."""
        raise NotImplementedError("predict() compares with labels, and agents have no labels; use rollout(rows)")

    def cancel(self) -> None:
        self.player.cancel()

    def go_on(self) -> None:
        self.player.go_on()

    def waiting(self, what: str) -> AbstractContextManager[None]:
        return self.watchdog.during(what)
