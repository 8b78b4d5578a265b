"""`learning.jsonl`: what the training made of the episodes in `episodes.jsonl`; `gymnast view` shows it.

Each line has `step`, as the episode's own line, and is one of these:

- `settings`: the options that advantages and the loss depend on, once a training.
- `tokens`: the text of each token id, before the first episode that has it.
- `vote`: whether an episode counts in the baseline of its group, or why not; its final reward; its advantages.
- `update`: the optimiser step that a trace was learned in; per token of its completion the trainer's log-probability
  and the derivative of the loss by it (with fp16, times the loss scale); the places of the tokens that were clipped,
  and that a correction cut. A training that is resumed in the middle of a round writes none for the rest of the round.

Axes: B, rows of one micro-batch; T, tokens.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...envs.episode import Episode
from ...envs.runtime.line_files import append_lines
from ...records.files.episode_log import TokenTexts
from ..learning.corrections import CORRECTIONS, Mismatch
from ..learning.losses import LOSSES, MAX_LOG_RATIO
from ..learning.samples import EpisodeSamples, MicroBatch, Sample, completion_slice
from ..learning.settings import LearningSettings

_SETTINGS = """
    loss_type epsilon_low epsilon_high delta beta kl_in correction correction_bounds temperature truncated entropy_coef
    top_entropy_quantile"""
SETTINGS = _SETTINGS.split()
"""The options that the first line holds, beside those of the comparison and `reward_weights`."""


@dataclass(kw_only=True, slots=True)
class _Update:
    """One micro-batch of a step."""

    rows: list[tuple[int, int, slice]]  # row, number of its sample, place of its completion among the T tokens
    logprobs_BT: Tensor
    gradient_BT: Tensor | None = None  # known after the backward pass


class LearningLog:
    """Writes `learning.jsonl` for the rounds that `EpisodeLog` writes down; costs nothing in other rounds.

    `decode` returns the text of a token id. `reward_weights` are those of reward functions, by name.
    """

    def __init__(
        self, path: Path, settings: LearningSettings, decode: Callable[[int], str], reward_weights: Mapping[str, float]
    ) -> None:
        self.path = path
        self._settings = settings
        self._texts = TokenTexts(decode)
        self._reward_weights = dict(reward_weights)
        self._has_settings = False
        self._played: Sequence[Episode] = ()  # the present round, if it is recorded
        self._step = -1  # in which the present round was played
        self._samples: dict[int, tuple[int, Sample, dict[str, Any]]] = {}  # step, sample, and names, by their numbers
        self._updates: list[_Update] = []

    def begin_round(self, step: int, episodes: Sequence[Episode]) -> None:
        """Called before a round is scored; without episodes if the round is not recorded."""
        self._step, self._played = step, episodes
        if not episodes:
            return
        if not self._has_settings:
            self._has_settings = True
            options = asdict(self._settings.comparison)
            options |= {name: getattr(self._settings, name) for name in SETTINGS}
            options["correction_bounds"] = [
                bound if math.isfinite(bound) else None for bound in self._settings.correction_bounds
            ]
            self._write({"settings": options | {"reward_weights": self._reward_weights}})
        self._write({"tokens": self._texts.new(episodes)})

    def add_scored(self, scored: Sequence[tuple[Episode, EpisodeSamples, float]]) -> None:
        """Write the votes of a round: see `Scorer.on_scored`."""
        own = {id(episode): (samples, reward) for episode, samples, reward in scored}
        members = Counter(episode.spec.group for episode in self._played if self._absence(episode) is None)
        for episode in self._played:
            name = {"group": episode.spec.group, "member": episode.spec.member}
            if id(episode) not in own:
                alone = "alone" if members[episode.spec.group] < 2 else "dropped"
                self._write(name | {"vote": self._absence(episode) or alone})
                continue
            samples, reward = own[id(episode)]
            vote = "counts only" if samples[0].is_masked else "counts"
            advantages = [_advantages(sample) for sample in samples]
            self._write(name | {"vote": vote, "reward": reward, "advantages": advantages})
            for trace, sample in enumerate(samples):
                sample.number = max(self._samples, default=-1) + 1
                self._samples[sample.number] = self._step, sample, name | {"trace": trace}

    def _absence(self, episode: Episode) -> str | None:
        """Return why an episode is in no group; None if it is in one."""
        if episode.failure is not None and episode.reward is None:
            return "failed"
        if episode.reward is None:
            return "no reward"
        if not episode.num_sampled:
            return "no tokens"
        return "left" if self._settings.truncated.get(episode.stop) == "leave" else None

    def watch(self, batch: MicroBatch, logprobs_BT: Tensor) -> None:
        """Keep the log-probabilities of a micro-batch, and their gradient once it is known, if a row is recorded."""
        if not self._samples:  # without it, reading the numbers would wait for the device
            return
        length, keep = batch["inputs"]["input_ids"].shape[1], batch["mask"].shape[1]
        rows = [
            (row, number, completion_slice(self._samples[number][1], length, keep))
            for row, number in enumerate(batch["numbers"].tolist())
            if number in self._samples
        ]
        if rows:
            update = _Update(rows=rows, logprobs_BT=logprobs_BT.detach())
            logprobs_BT.register_hook(lambda gradient_BT: setattr(update, "gradient_BT", gradient_BT.detach()))
            self._updates.append(update)

    def finish_step(self, step: int, *, skipped: bool = False) -> None:
        """Write the updates of an optimiser step of this number; none if the weights stayed as they were."""
        updates, self._updates = self._updates, []
        for update in [] if skipped else updates:
            assert update.gradient_BT is not None
            logprobs_BT, gradient_BT = update.logprobs_BT.cpu(), update.gradient_BT.cpu()
            for row, number, place in update.rows:
                played, sample, name = self._samples[number]
                values = {"logprobs": logprobs_BT[row, place], "gradient": gradient_BT[row, place]}
                values = {key: _rounded(values_T) for key, values_T in values.items()}
                cuts = self._cuts(sample, logprobs_BT[row, place])
                self._write(name | {"update": step} | values | cuts, step=played)
        # Batches are used in the order of their rounds, so all of an earlier round are used up.
        self._samples = {number: entry for number, entry in self._samples.items() if entry[0] == self._step}

    def _cuts(self, sample: Sample, logprobs_T: Tensor) -> dict[str, list[int]]:
        """Return the places of the tokens that the loss clips, and of those that the correction cuts."""
        assert sample.advantages is not None
        mask_1T = torch.tensor([sample.mask]).bool()
        logprobs_1T, advantages_1T = logprobs_T[None], sample.advantages[None]
        old_1T = logprobs_1T if sample.old_logprobs is None else sample.old_logprobs[None]
        found = {"clipped": _is_clipped(logprobs_1T, old_1T, advantages_1T, mask_1T, self._settings)}
        weigh = CORRECTIONS[self._settings.correction].weigh
        if weigh is not None:
            sampling_1T = torch.tensor([sample.sampling_logprobs])
            mismatch = Mismatch.of(logprobs_1T, old_1T, sampling_1T, mask_1T, advantages_1T)
            _, is_cut = weigh(mismatch, self._settings.correction_bounds)
            found["cut"] = is_cut.expand(mask_1T.shape) & mask_1T
        return {name: is_1T[0].nonzero()[:, 0].tolist() for name, is_1T in found.items() if is_1T.any()}

    def _write(self, line: Mapping[str, Any], step: int | None = None) -> None:
        append_lines(self.path, [json.dumps({"step": self._step if step is None else step, **line})])


def _is_clipped(
    logprobs_1T: Tensor, old_1T: Tensor, advantages_1T: Tensor, mask_1T: Tensor, settings: LearningSettings
) -> Tensor:
    """Return the tokens with an advantage whose term of the loss has no gradient, (1, T)."""
    loss = LOSSES[settings.loss_type]
    logprobs_1T = torch.where(mask_1T, logprobs_1T, 0.0).requires_grad_()
    ratio_1R = loss.ratio(torch.where(mask_1T, logprobs_1T - old_1T, 0.0), mask_1T).clamp(max=MAX_LOG_RATIO).exp()
    advantages_1R = advantages_1T if loss.is_of_tokens else advantages_1T[mask_1T][None, :1]
    terms_1R = loss.surrogate(ratio_1R, logprobs_1T, advantages_1R, settings)
    [gradient_1T] = torch.autograd.grad(terms_1R.sum(), logprobs_1T)
    return mask_1T & (advantages_1T != 0) & (gradient_1T == 0)


def _rounded(values_T: Tensor) -> list[float | None]:
    """Return the values with six digits; None for those that JSON does not have."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values_T.tolist()]


def _advantages(sample: Sample) -> list[float | None] | float | None:
    """Return the advantages of a sample: one number if its loss tokens have the same, else one for each token."""
    assert sample.advantages is not None
    values = _rounded(sample.advantages)
    of_loss_tokens = {value for value, is_sampled in zip(values, sample.mask, strict=True) if is_sampled}
    return of_loss_tokens.pop() if len(of_loss_tokens) == 1 else values
