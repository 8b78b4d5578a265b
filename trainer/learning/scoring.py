"""Scoring a round of episodes: log-probabilities that the loss needs, advantages, and samples ready for batching."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from .advantages import ALGORITHMS, Gather, scale_advantages, whiten
from .batch import Sample, completion_slice, make_batch
from .config import AgentConfig
from .decoding import evaluating
from .groups import Group, rewards_of
from .losses import kl_in_reward, token_logprobs


class Reference:
    """The weights that training starts from: a frozen copy, or a PEFT model with its adapter switched off."""

    def __init__(self, model: Any) -> None:
        self._adapted = model if hasattr(model, "disable_adapter") else None
        self._model: Any = model if self._adapted is not None else copy.deepcopy(model).eval().requires_grad_(False)

    def prepare(self, accelerator: Accelerator) -> None:
        """Bring a copy to where the policy is."""
        if self._adapted is None:
            self._model = accelerator.prepare_model(self._model, evaluation_mode=True)

    @contextmanager
    def weights(self) -> Iterator[nn.Module]:
        """The model with these weights."""
        if self._adapted is None:
            yield self._model
        else:
            with self._adapted.disable_adapter():
                yield self._adapted


class Scorer:
    """Turns groups of episodes into samples.

    Args:
        model: The policy in training.
        args: The configuration.
        reference: The reference model; None when there is none.
        gather: Concatenates (1, n) tensors of all processes.
        pad_id: Fills rows.
    """

    def __init__(
        self,
        model: nn.Module,
        args: AgentConfig,
        *,
        reference: Reference | None,
        gather: Gather,
        pad_id: int,
    ) -> None:
        self.model = model
        self.args = args
        self.algorithm = ALGORITHMS[args.algorithm]
        self.reference = reference
        self.gather = gather
        self.pad_id = pad_id

    def __call__(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, float]]:
        """The samples of these groups, in order, and what to log about them."""
        args = self.args
        samples_by_group = [
            [
                Sample.of(episode, masked=args.mask_truncated_completions and episode.stop.is_truncation)
                for episode in group
            ]
            for group in groups
        ]
        samples = [sample for group in samples_by_group for sample in group]
        self._add_logprobs(samples)
        rewards = [rewards_of(group) for group in groups]
        metrics: dict[str, float] = {}
        if args.beta and self.algorithm.kl == "reward":
            metrics["kl"] = self._charge_kl(samples_by_group, rewards)
        advantages = [self.algorithm.advantage(rewards_G) for rewards_G in rewards]
        advantages = scale_advantages(advantages, rewards, args.scale_rewards, self.gather)
        if args.normalize_advantages:
            advantages = whiten(advantages, self.gather)
        for group, advantages_G in zip(samples_by_group, advantages, strict=True):
            for sample, advantage in zip(group, advantages_G.tolist(), strict=True):
                sample.advantage = advantage
        return samples, metrics

    @property
    def is_on_policy(self) -> bool:
        """Whether every batch of a round is learned from before the weights change."""
        assert self.args.steps_per_generation is not None
        return (
            self.args.num_iterations == 1
            and self.args.gradient_accumulation_steps % self.args.steps_per_generation == 0
        )

    def _add_logprobs(self, samples: Sequence[Sample]) -> None:
        charges_kl = bool(self.args.beta) and self.algorithm.kl == "reward"
        if not self.is_on_policy or charges_kl:
            self._score(self.model, samples, "old_logprobs")
        if self.reference is not None:
            with self.reference.weights() as model:
                self._score(model, samples, "ref_logprobs")

    def _score(self, model: nn.Module, samples: Sequence[Sample], name: str) -> None:
        size = self.args.per_device_train_batch_size
        device = next(model.parameters()).device
        with evaluating(model), torch.no_grad():  # without dropout: as the sampler saw it
            for start in range(0, len(samples), size):
                chunk = samples[start : start + size]
                batch = {key: value.to(device) for key, value in make_batch(chunk, pad_id=self.pad_id).items()}
                logprobs_BT, _ = token_logprobs(
                    model,
                    batch["input_ids"],
                    batch["attention_mask"],
                    keep=batch["mask"].shape[1],
                    temperature=self.args.temperature,
                )
                for sample, logprobs_T in zip(chunk, logprobs_BT.cpu(), strict=True):
                    place = completion_slice(sample, batch["input_ids"].shape[1], batch["mask"].shape[1])
                    setattr(sample, name, logprobs_T[place].clone())

    def _charge_kl(self, samples_by_group: Sequence[Sequence[Sample]], rewards: Sequence[Tensor]) -> float:
        """Take beta times each sequence's divergence off its reward; returns the mean divergence of a loss token."""
        total, tokens = 0.0, 0
        for group, rewards_G in zip(samples_by_group, rewards, strict=True):
            for index, sample in enumerate(group):
                assert sample.old_logprobs is not None
                assert sample.ref_logprobs is not None
                mask_1T = torch.tensor([sample.mask])
                kl = kl_in_reward(sample.old_logprobs[None], sample.ref_logprobs[None], mask_1T).item()
                rewards_G[index] -= self.args.beta * kl
                total, tokens = total + kl, tokens + sum(sample.mask)
                sample.ref_logprobs = None  # the divergence is in the reward now, not in the loss too
        return total / max(tokens, 1)
