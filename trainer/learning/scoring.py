"""Scoring a round: from groups of episodes to samples with advantages and the log-probabilities that the loss needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from ...envs.episode import Episode
from ...envs.tokens import Tokens
from ..models.contexts import evaluating
from ..models.images import ImageEncoder
from ..models.output_head import OutputHead
from ..models.reference import Reference
from .advantages import Gather, quantile
from .corrections import CORRECTIONS
from .credit import at_loss_tokens
from .groups import Group
from .logprobs import token_logprobs
from .ratios import kl_in_reward
from .samples import EpisodeSamples, Sample, completion_slice, filler, make_micro_batch, micro_batches, samples_of
from .settings import LearningSettings

Mean = tuple[float, int]
"""A mean and the number of values that it is of, which is its weight among the means of other rounds and processes."""


@dataclass(kw_only=True)
class Scorer:
    """Turns groups of episodes into samples with advantages."""

    model: nn.Module  # the policy in training
    settings: LearningSettings
    reference: Reference | None
    gather: Gather  # concatenates (1, n) tensors of all processes
    head: OutputHead | None = None  # of the model; see `token_logprobs`
    images: ImageEncoder | None = None  # of a model that takes them
    picture: Tokens | None = None  # shown in passes without one: several processes need the vision tower in each pass
    passes: Callable[[int], int] = int
    """The largest of all processes' numbers of forward passes: sharded weights need every process in each pass."""
    on_scored: Callable[[list[tuple[Episode, EpisodeSamples, float]]], None] | None = None
    """Called once a round with (episode, samples, compared reward) of every episode that counts in a baseline."""

    def __call__(self, groups: Sequence[Group]) -> tuple[list[EpisodeSamples], dict[str, Mean]]:
        """Return the samples with loss tokens of each episode of these groups, in order, and metrics."""
        settings = self.settings
        metrics: dict[str, Mean] = {}
        episodes = [*chain(*groups)]
        treatment = settings.truncated.get
        samples = [samples_of(episode, is_masked=treatment(episode.stop) == "mask") for episode in episodes]
        if settings.scores_all:
            self._add_old_logprobs([*chain(*samples)])
        if CORRECTIONS[settings.correction].keep is not None:
            episodes, samples, metrics["mismatch/rejected"] = self._without_rejected(episodes, samples)
        rewards = [episode.reward or 0.0 for episode in episodes]
        if settings.charges_kl:
            self._add_ref_logprobs([*chain(*samples)])
            metrics["kl"] = self._charge_kl(samples, rewards)
        self._add_advantages(episodes, samples, rewards)
        scored = [*zip(episodes, samples, rewards, strict=True)]
        samples = [own_samples for own_samples in samples if not own_samples[0].is_masked]
        if settings.top_entropy_quantile < 1:
            self._keep_top_entropy([*chain(*samples)])
        if self.on_scored is not None:
            self.on_scored(scored)
        taught = [sample for sample in [*chain(*samples)] if sample.has_gradient(settings)]
        if not (settings.scores_all or settings.is_on_policy):
            self._add_old_logprobs(taught)
        if not settings.charges_kl:
            self._add_ref_logprobs(taught)
        return samples, metrics

    def _without_rejected(
        self, episodes: Sequence[Episode], samples: Sequence[EpisodeSamples]
    ) -> tuple[list[Episode], list[EpisodeSamples], Mean]:
        """Return those that the correction keeps and that have another in their group, and the share rejected."""
        keep, bounds = CORRECTIONS[self.settings.correction].keep, self.settings.correction_bounds
        assert keep is not None
        kept = [place for place, own_samples in enumerate(samples) if keep(_log_ratio(own_samples), bounds)]
        rejected = (len(samples) - len(kept)) / max(len(samples), 1), len(samples)
        members = Counter(episodes[place].spec.group for place in kept)
        kept = [place for place in kept if members[episodes[place].spec.group] >= 2]
        return [episodes[place] for place in kept], [samples[place] for place in kept], rejected

    def _add_advantages(
        self, episodes: Sequence[Episode], samples: Sequence[EpisodeSamples], rewards: Sequence[float]
    ) -> None:
        credit = self.settings.comparison.credit
        advantages = self.settings.comparison(episodes, rewards, self.gather)
        for episode, own_samples, advantages_K in zip(episodes, samples, advantages, strict=True):
            parts = at_loss_tokens(advantages_K, episode, credit)
            for sample, part_N in zip(own_samples, parts, strict=True):
                mask_T = torch.tensor(sample.mask, dtype=torch.bool)
                sample.advantages = torch.zeros(len(mask_T)).masked_scatter(mask_T, part_N.float())

    def _add_old_logprobs(self, samples: Sequence[Sample]) -> None:
        with_entropy = self.settings.top_entropy_quantile < 1
        found = self._logprobs(self.model, self.head, samples, with_entropy=with_entropy)
        for sample, (logprobs_T, entropies_T) in zip(samples, found, strict=True):
            sample.old_logprobs, sample.entropies = logprobs_T, entropies_T

    def _add_ref_logprobs(self, samples: Sequence[Sample]) -> None:
        if self.reference is not None:
            with self.reference.model() as (model, head):
                for sample, (logprobs_T, _) in zip(samples, self._logprobs(model, head, samples), strict=True):
                    sample.ref_logprobs = logprobs_T

    def _keep_top_entropy(self, samples: Sequence[Sample]) -> None:
        """Set the advantages to 0, except at the tokens of highest entropy in all processes.

        Wang et al. 2025, "Beyond the 80/20 Rule", arXiv 2506.01939.
        """
        own = [sample.entropies[torch.tensor(sample.mask) == 1] for sample in samples if sample.entropies is not None]
        threshold = quantile(torch.cat([*own, torch.zeros(0)]), 1 - self.settings.top_entropy_quantile, self.gather)
        for sample in samples:
            assert sample.advantages is not None
            assert sample.entropies is not None
            sample.advantages = torch.where(sample.entropies >= threshold, sample.advantages, 0.0)

    def _logprobs(
        self, model: nn.Module, head: OutputHead | None, samples: Sequence[Sample], *, with_entropy: bool = False
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Compute log-probabilities (T,) of each completion, 0 where it was not sampled; and entropies on request."""
        settings, device = self.settings, next(model.parameters()).device
        found: dict[int, tuple[Tensor, Tensor | None]] = {}
        with evaluating(model), torch.no_grad():
            limits = {"max_tokens": settings.max_tokens_per_batch, "max_rows": settings.rows_at_once}
            parts = micro_batches(samples, **limits, picture=self.picture)
            for part in parts + [[filler()]] * (self.passes(len(parts)) - len(parts)):
                batch = make_micro_batch(part, picture=self.picture)
                length, keep = batch["inputs"]["input_ids"].shape[1], batch["mask"].shape[1]
                logprobs_BT, entropies_BT = token_logprobs(
                    model,
                    {name: values.to(device) for name, values in batch["inputs"].items()},
                    batch["places"].to(device),
                    keep=keep,
                    temperature=settings.temperature,
                    head=head,
                    entropy="value" if with_entropy else "none",
                    images=self.images,
                    pictures=batch["pictures"],
                )
                logprobs_BT, entropies_BT = logprobs_BT.cpu(), None if entropies_BT is None else entropies_BT.cpu()
                for row, sample in enumerate(part):
                    place = completion_slice(sample, length, keep)
                    entropies_T = None if entropies_BT is None else entropies_BT[row, place].clone()
                    found[id(sample)] = logprobs_BT[row, place].clone(), entropies_T
        return [found[id(sample)] for sample in samples]

    def _charge_kl(self, samples: Sequence[EpisodeSamples], rewards: list[float]) -> Mean:
        """Subtract beta times each episode's divergence from its reward; return the mean per loss token."""
        total, tokens = 0.0, 0
        for index, sample in [(index, sample) for index, own_samples in enumerate(samples) for sample in own_samples]:
            assert sample.old_logprobs is not None
            assert sample.ref_logprobs is not None
            mask_1T = torch.tensor([sample.mask])
            kl = kl_in_reward(sample.old_logprobs[None], sample.ref_logprobs[None], mask_1T).item()
            rewards[index] -= self.settings.beta * kl
            total, tokens = total + kl, tokens + sum(sample.mask)
            sample.ref_logprobs = None  # the divergence is in the reward, so it must not be in the loss too
        return total / max(tokens, 1), tokens


def _log_ratio(episode: EpisodeSamples) -> Tensor:
    """Return log(pi/mu) of an episode's loss tokens, (N,)."""
    ratios: list[Tensor] = []
    for sample in episode:
        assert sample.old_logprobs is not None
        difference_T = sample.old_logprobs - torch.tensor(sample.sampling_logprobs)
        ratios.append(difference_T[torch.tensor(sample.mask) == 1])
    return torch.cat(ratios)
