"""RoundReport: the metrics of each round, and warnings of rounds that lose episodes or teach nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ...records.alarms.alarms import TOOL_ERRORS, tool_error_alarm
from ...records.alarms.rounds import NoSpreadAlarm, NoTurnRewardAlarm
from ..learning.advantages import ESTIMATORS
from ..learning.samples import EpisodeSamples
from ..learning.scoring import Mean
from ..run_log.metrics import Metrics, weighted_metrics
from .failures import FailureWatch
from .group_source import GroupSource, PlayedRound


@dataclass
class RoundReport:
    """Adds the metrics of each round of one training to `metrics`, and judges its failures and its rewards."""

    source: GroupSource
    metrics: Metrics
    failures: FailureWatch
    _no_spread: NoSpreadAlarm = field(default_factory=NoSpreadAlarm)
    _no_turn_reward: NoTurnRewardAlarm = field(default_factory=NoTurnRewardAlarm)

    def add(
        self, played: PlayedRound, scored: Sequence[EpisodeSamples], means: Mapping[str, Mean], *, seconds: float
    ) -> None:
        """Report a round, with the metrics of its scoring, and the time since it was asked for.

        Raise a RolloutError as `FailureWatch.add_round` does.
        """
        self._watch(played, scored, rejected=means.get("mismatch/rejected", (0.0, 0))[0])
        for name, (mean, weight) in means.items():
            self.metrics.add({name: mean}, weight=weight)
        of_round = {"rounds/skipped": float(not scored), TOOL_ERRORS: tool_error_alarm(played.episodes)}
        self.metrics.add(played.metrics | of_round | {"time/rollout": seconds})
        of_episodes = weighted_metrics(
            played.episodes, self.source.player.environment_of, self.source.settings.comparison.has_spread
        )
        for weight, part in [*played.overlap, *of_episodes]:
            self.metrics.add(part, weight=weight)

    def _watch(self, played: PlayedRound, scored: Sequence[EpisodeSamples], *, rejected: float) -> None:
        """Warn of lost episodes, and of rounds that teach nothing."""
        episodes, settings, processes = played.episodes, self.source.settings, self.source.processes
        failed = sum(episode.failure is not None for episode in episodes)
        whitens = ESTIMATORS[settings.comparison.advantage_estimator].whitens
        compared = [[*chain(*played.groups)]] if whitens else played.groups  # `whiten` compares groups with each other
        spread = sum(map(settings.comparison.has_spread, compared))
        several = [episode for episode in episodes if len(episode.turns) > 1]
        rewarded = sum(bool(episode.reward) for episode in several)
        before_the_end = sum(any(turn.reward for turn in episode.turns[:-1]) for episode in several)
        counts = processes.sum_counts(len(episodes), failed, len(scored), spread, rewarded, before_the_end)
        self.failures.add_round(episodes, played=counts[0], failed=counts[1], samples=counts[2], rejected=rejected)
        if processes.index:  # the counts are of all processes, so one of them warns
            return
        if settings.comparison.credit == "turn":
            self._no_turn_reward.add(rewarded=counts[4], before_the_end=counts[5])
        other_terms = settings.charges_kl or settings.always_has_gradient
        self._no_spread.add(episodes, with_spread=counts[3], other_terms=other_terms)
