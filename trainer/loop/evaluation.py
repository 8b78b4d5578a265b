"""An evaluation: play its tasks in all processes, and measure the episodes."""

from __future__ import annotations

import time

from ...envs.episode import Episode
from ...records.metrics.missing_metrics import MissingMetrics
from ..models.distributed import Processes
from ..options.config import AgentConfig
from ..options.rules import warn_of_equal_episodes
from ..rollout.episode_player import EpisodePlayer
from ..rollout.failures import check_evaluation
from ..rollout.schedule import Rows
from ..run_log.evaluation import evaluation_metrics


def evaluated(
    rows: Rows,
    config: AgentConfig,
    player: EpisodePlayer,
    processes: Processes,
    missing: MissingMetrics,
    temperature: float | None,
) -> tuple[dict[str, float], list[Episode]]:
    """Return the metrics of an evaluation, without a prefix, and its episodes; the processes share its tasks.

    The temperature is `eval_temperature` by default, or else the training temperature; 0 is greedy. Raise a
    RolloutError as `check_evaluation` does.
    """
    started = time.perf_counter()
    if temperature is None:
        temperature = config.eval_temperature
    elif config.eval_temperature != 0:  # else the configuration has warned
        warn_of_equal_episodes(config.num_generations_eval, temperature, stacklevel=4)
    usual = 1 if temperature == 0 else config.num_generations  # greedy episodes of one task are all the same
    count, mine = config.num_generations_eval or usual, range(processes.index, len(rows), processes.count)
    with player.engine.whereabouts.playing_for("evaluation"):
        played = processes.all_or_none(lambda: player.play(rows, mine, count=count, temperature=temperature))
        episodes = processes.gather(played)
    check_evaluation(episodes, config.max_failure_rate)
    metrics = evaluation_metrics(episodes, player.environment_of, success_reward=config.success_reward, missing=missing)
    return metrics | {"runtime": time.perf_counter() - started}, episodes
