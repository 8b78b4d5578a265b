"""Scoring a round: from groups of episodes to samples with advantages and the log-probabilities that the loss needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...envs.episode import Episode
from ..generation.sampling import evaluating
from .advantages import ALGORITHMS, Gather, scale_advantages, whiten
from .corrections import CORRECTIONS
from .groups import Group, rewards_of
from .logprobs import token_logprobs
from .losses import kl_in_reward
from .output_head import OutputHead
from .reference import Reference
from .samples import EpisodeSamples, Sample, completion_slice, make_micro_batch, micro_batches, samples_of
from .settings import LearningSettings

Item = TypeVar("Item")


@dataclass(kw_only=True)
class Scorer:
    """Turns groups of episodes into samples with advantages."""

    model: nn.Module  # the policy in training
    settings: LearningSettings
    reference: Reference | None
    gather: Gather  # concatenates (1, n) tensors of all processes
    pad_id: int
    head: OutputHead | None = None  # of the model; see `token_logprobs`

    def __call__(self, groups: Sequence[Group]) -> tuple[list[EpisodeSamples], dict[str, float]]:
        """The samples of each episode of these groups that has loss tokens, in order, and metrics."""
        settings = self.settings
        metrics: dict[str, float] = {}
        samples_by_group = [[self._samples(episode) for episode in group] for group in groups]
        rewards = [rewards_of(group) for group in groups]
        if settings.scores_all:
            self._add_old_logprobs(_flat(_flat(samples_by_group)))
        if CORRECTIONS[settings.correction].keep is not None:
            samples_by_group, rewards, metrics["mismatch/rejected"] = self._without_rejected(samples_by_group, rewards)
        episodes = _flat(samples_by_group)
        samples = _flat(episodes)
        if settings.charges_kl:
            self._add_ref_logprobs(samples)
            metrics["kl"] = self._charge_kl(samples_by_group, rewards)
        advantages = [ALGORITHMS[settings.algorithm].advantage(rewards_G) for rewards_G in rewards]
        advantages = scale_advantages(advantages, rewards, settings.scale_rewards, self.gather)
        if settings.normalize_advantages:
            advantages = whiten(advantages, self.gather)
        for group, advantages_G in zip(samples_by_group, advantages, strict=True):
            for episode, advantage in zip(group, advantages_G.tolist(), strict=True):
                for sample in episode:
                    sample.advantages = advantage * torch.tensor(sample.mask, dtype=torch.float32)
        episodes = [each for each in episodes if not each[0].is_masked]
        samples = _flat(episodes)
        taught = [each for each in samples if each.has_gradient(settings)]
        if not (settings.scores_all or settings.is_on_policy):
            self._add_old_logprobs(taught)
        if not settings.charges_kl:
            self._add_ref_logprobs(taught)
        return episodes, metrics

    def _samples(self, episode: Episode) -> EpisodeSamples:
        return samples_of(episode, is_masked=self.settings.truncated.get(episode.stop) == "mask")

    def _without_rejected(
        self, samples_by_group: Sequence[list[EpisodeSamples]], rewards: Sequence[Tensor]
    ) -> tuple[list[list[EpisodeSamples]], list[Tensor], float]:
        """The groups without the episodes that the correction rejects, their rewards, and the share rejected.

        A group that is left with fewer than two episodes goes, too.
        """
        keep, bounds = CORRECTIONS[self.settings.correction].keep, self.settings.correction_bounds
        assert keep is not None
        kept: list[tuple[list[EpisodeSamples], Tensor]] = []
        count = rejected = 0
        for group, rewards_G in zip(samples_by_group, rewards, strict=True):
            places = [place for place, episode in enumerate(group) if keep(_log_ratio(episode), bounds)]
            count, rejected = count + len(group), rejected + len(group) - len(places)
            if len(places) >= 2:
                kept.append(([group[place] for place in places], rewards_G[places]))
        return [group for group, _ in kept], [rewards_G for _, rewards_G in kept], rejected / max(count, 1)

    def _add_old_logprobs(self, samples: Sequence[Sample]) -> None:
        for sample, logprobs_T in zip(samples, self._logprobs(self.model, samples), strict=True):
            sample.old_logprobs = logprobs_T

    def _add_ref_logprobs(self, samples: Sequence[Sample]) -> None:
        if self.reference is not None:
            with self.reference.weights() as model:
                for sample, logprobs_T in zip(samples, self._logprobs(model, samples), strict=True):
                    sample.ref_logprobs = logprobs_T

    def _logprobs(self, model: nn.Module, samples: Sequence[Sample]) -> list[Tensor]:
        """Log-probabilities (T,) of each completion, 0 where it was not sampled.

        Without dropout, since they belong to the distribution that was sampled from.
        """
        settings, device = self.settings, next(model.parameters()).device
        found: dict[int, Tensor] = {}
        with evaluating(model), torch.no_grad():
            for part in micro_batches(
                samples, max_tokens=settings.max_tokens_per_batch, max_rows=settings.rows_at_once
            ):
                batch = {key: value.to(device) for key, value in make_micro_batch(part, pad_id=self.pad_id).items()}
                length, keep = batch["input_ids"].shape[1], batch["mask"].shape[1]
                logprobs_BT, _ = token_logprobs(
                    model,
                    batch["input_ids"],
                    batch["attention_mask"],
                    batch["places"],
                    keep=keep,
                    temperature=settings.temperature,
                    head=self.head,
                )
                for sample, logprobs_T in zip(part, logprobs_BT.cpu(), strict=True):
                    found[id(sample)] = logprobs_T[completion_slice(sample, length, keep)].clone()
        return [found[id(sample)] for sample in samples]

    def _charge_kl(self, samples_by_group: Sequence[Sequence[EpisodeSamples]], rewards: Sequence[Tensor]) -> float:
        """Subtract beta times each episode's divergence from its reward; return the mean per loss token."""
        total, tokens = 0.0, 0
        for group, rewards_G in zip(samples_by_group, rewards, strict=True):
            for index, sample in [(index, each) for index, episode in enumerate(group) for each in episode]:
                assert sample.old_logprobs is not None
                assert sample.ref_logprobs is not None
                mask_1T = torch.tensor([sample.mask])
                kl = kl_in_reward(sample.old_logprobs[None], sample.ref_logprobs[None], mask_1T).item()
                rewards_G[index] -= self.settings.beta * kl
                total, tokens = total + kl, tokens + sum(sample.mask)
                sample.ref_logprobs = None  # the divergence is in the reward, so it must not be in the loss too
        return total / tokens if tokens else math.nan  # NaN is in no mean


def _log_ratio(episode: EpisodeSamples) -> Tensor:
    """log(pi/mu) of an episode's loss tokens, (N,)."""
    ratios: list[Tensor] = []
    for sample in episode:
        assert sample.old_logprobs is not None
        difference_T = sample.old_logprobs - torch.tensor(sample.sampling_logprobs)
        ratios.append(difference_T[torch.tensor(sample.mask) == 1])
    return torch.cat(ratios)


def _flat(lists: Iterable[Iterable[Item]]) -> list[Item]:
    return [item for each in lists for item in each]
