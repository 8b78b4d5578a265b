"""The distribution that tokens are sampled from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Sampling:
    """The distribution that tokens are sampled from: temperature, then top_k, top_p and min_p; temperature 0 is greedy.

    top_p: Holtzman et al. 2019, arXiv 1904.09751. min_p: Nguyen et al. 2024, arXiv 2407.01082.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = all tokens
    min_p: float = 0.0
    forbidden: frozenset[int] = frozenset()  # tokens that have no probability; see `ImageEncoder.token_ids`

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all tokens) or positive, got {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")

    @property
    def is_full_distribution(self) -> bool:
        """Whether every token can be sampled, so that log-probabilities are comparable with the trainer's."""
        return self.temperature > 0 and self.top_p == 1 and self.top_k == 0 and self.min_p == 0


def log_distribution(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return log-probabilities (B, V) under the sampling distribution; for greedy decoding, at temperature 1."""
    if sampling.forbidden:
        logits_BV = logits_BV.index_fill(1, _indices(sampling.forbidden, logits_BV.device), -math.inf)
    for warper in _warpers(sampling):
        logits_BV = warper(None, logits_BV)  # type: ignore[arg-type] # these warpers look at no earlier token
    return torch.log_softmax(logits_BV, -1)


def sample(logits_BV: Tensor, uniforms_B: Sequence[float], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens (B,) and their log-probabilities (B,), from one uniform number in [0, 1) for each row.

    The number inverts the cumulative distribution. A row's randomness is its own, whatever else the batch holds.
    """
    logprobs_BV = log_distribution(logits_BV, sampling)
    if sampling.temperature == 0:
        tokens_B = logprobs_BV.argmax(-1)
    else:
        # float32 would lose the tail of a large vocabulary; Apple's devices have nothing better.
        precise = torch.float32 if logits_BV.device.type == "mps" else torch.float64
        cdf_BV = logprobs_BV.to(precise).exp_().cumsum(-1)
        total_B1 = cdf_BV[:, -1:].contiguous()
        points_B1 = torch.tensor(uniforms_B, dtype=precise, device=cdf_BV.device)[:, None] * total_B1
        tokens_B = torch.searchsorted(cdf_BV, points_B1, right=True)[:, 0]
        # A product that rounds up to the total would point behind the last token that has any probability.
        tokens_B = torch.minimum(tokens_B, torch.searchsorted(cdf_BV, total_B1)[:, 0])
        tokens_B = tokens_B.clamp(max=logits_BV.shape[1] - 1)  # without order (NaN) the search ends behind the last
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]


@lru_cache(maxsize=16)
def _indices(tokens: frozenset[int], device: torch.device) -> Tensor:
    return torch.tensor(sorted(tokens), device=device)


@lru_cache(maxsize=16)
def _warpers(sampling: Sampling) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if sampling.temperature == 0:
        return warpers
    if sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers
