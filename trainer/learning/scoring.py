"""Scoring a round: from groups of episodes to samples with advantages and the log-probabilities that the loss needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
from .samples import Sample, completion_slice, make_micro_batch, micro_batches
from .settings import LearningSettings


@dataclass(kw_only=True)
class Scorer:
    """Turns groups of episodes into samples."""

    model: nn.Module  # the policy in training
    settings: LearningSettings
    reference: Reference | None
    gather: Gather  # concatenates (1, n) tensors of all processes
    pad_id: int
    head: OutputHead | None = None  # of the model; see `token_logprobs`

    def __call__(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, float]]:
        """The samples of these groups that have loss tokens, in order, and metrics."""
        settings = self.settings
        metrics: dict[str, float] = {}
        samples_by_group = [[self._sample(episode) for episode in group] for group in groups]
        rewards = [rewards_of(group) for group in groups]
        if settings.scores_all:
            self._add_old_logprobs([sample for group in samples_by_group for sample in group])
        if CORRECTIONS[settings.correction].keep is not None:
            samples_by_group, rewards, metrics["mismatch/rejected"] = self._without_rejected(samples_by_group, rewards)
        samples = [sample for group in samples_by_group for sample in group]
        if settings.charges_kl:
            self._add_ref_logprobs(samples)
            metrics["kl"] = self._charge_kl(samples_by_group, rewards)
        advantages = [ALGORITHMS[settings.algorithm].advantage(rewards_G) for rewards_G in rewards]
        advantages = scale_advantages(advantages, rewards, settings.scale_rewards, self.gather)
        if settings.normalize_advantages:
            advantages = whiten(advantages, self.gather)
        for group, advantages_G in zip(samples_by_group, advantages, strict=True):
            for sample, advantage in zip(group, advantages_G.tolist(), strict=True):
                sample.advantages = advantage * torch.tensor(sample.mask, dtype=torch.float32)
        samples = [each for each in samples if not each.is_masked]
        taught = [each for each in samples if each.has_gradient(settings)]
        if not (settings.scores_all or settings.is_on_policy):
            self._add_old_logprobs(taught)
        if not settings.charges_kl:
            self._add_ref_logprobs(taught)
        return samples, metrics

    def _sample(self, episode: Episode) -> Sample:
        return Sample.of(episode, is_masked=self.settings.truncated.get(episode.stop) == "mask")

    def _without_rejected(
        self, samples_by_group: Sequence[list[Sample]], rewards: Sequence[Tensor]
    ) -> tuple[list[list[Sample]], list[Tensor], float]:
        """The groups without the sequences that the correction rejects, their rewards, and the share rejected.

        A group that is left with fewer than two sequences goes, too.
        """
        keep, bounds = CORRECTIONS[self.settings.correction].keep, self.settings.correction_bounds
        assert keep is not None
        kept: list[tuple[list[Sample], Tensor]] = []
        count = rejected = 0
        for group, rewards_G in zip(samples_by_group, rewards, strict=True):
            places = [place for place, sample in enumerate(group) if keep(_log_ratio(sample), bounds)]
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

    def _charge_kl(self, samples_by_group: Sequence[Sequence[Sample]], rewards: Sequence[Tensor]) -> float:
        """Subtract beta times each sequence's divergence from its reward; return the mean per loss token."""
        total, tokens = 0.0, 0
        for group, rewards_G in zip(samples_by_group, rewards, strict=True):
            for index, sample in enumerate(group):
                assert sample.old_logprobs is not None
                assert sample.ref_logprobs is not None
                mask_1T = torch.tensor([sample.mask])
                kl = kl_in_reward(sample.old_logprobs[None], sample.ref_logprobs[None], mask_1T).item()
                rewards_G[index] -= self.settings.beta * kl
                total, tokens = total + kl, tokens + sum(sample.mask)
                sample.ref_logprobs = None  # the divergence is in the reward, so it must not be in the loss too
        return total / tokens if tokens else math.nan  # NaN is in no mean


def _log_ratio(sample: Sample) -> Tensor:
    """log(pi/mu) of a sample's loss tokens, (N,)."""
    assert sample.old_logprobs is not None
    return (sample.old_logprobs - torch.tensor(sample.sampling_logprobs))[torch.tensor(sample.mask) == 1]
