"""Log-probabilities and entropies of the tokens of a batch, from one forward pass.

Axes: B sequences (rows of one micro-batch); L tokens of a row with its prompt; V vocabulary; N, C tokens of many rows,
and of a chunk of them.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOKENS_AT_ONCE = 1024
"""Rows of logits that are in float32 at one time: 0.6 GB for a vocabulary of 152k."""


def token_logprobs(
    model: nn.Module,
    input_ids_BL: Tensor,
    attention_mask_BL: Tensor,
    *,
    keep: int,
    temperature: float,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (B, keep) of the last `keep` tokens of each row, each given the tokens before it.

    Memory: logits of `keep + 1` positions in the precision that the model computes in, and `TOKENS_AT_ONCE` of them in
    float32, which the backward pass computes again.

    Args:
        model: a causal language model, wrapped or not.
        input_ids_BL: rows padded on the right. Values at padding have no meaning; mask them.
        attention_mask_BL: 1 on tokens, 0 on padding.
        keep: how many tokens, from the right; less than L, since no token comes before the first.
        temperature: logits are divided by it; it must be the sampling temperature.
        with_entropy: also return the entropy (B, keep) of the distribution at each token, in nats, without gradient.

    Raises:
        ValueError: `keep` or `temperature` is out of range.
    """
    if not 0 < keep < input_ids_BL.shape[1]:
        raise ValueError(f"keep must be between 1 and {input_ids_BL.shape[1] - 1} (row length - 1), got {keep}.")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    logits_BKV = model(input_ids=input_ids_BL, attention_mask=attention_mask_BL, **_forward_options(model, keep)).logits
    # K = keep + 1: the logits at a position belong to the token after it. The last position has no such token. It is
    # scored against a stand-in and cut off afterwards, because cutting the logits would copy them.
    logits_NV = logits_BKV[:, -(keep + 1) :].flatten(0, 1)
    targets_BK = torch.cat([input_ids_BL[:, -keep:], input_ids_BL[:, -1:]], dim=1)
    logprobs_BK = _chosen_logprobs(logits_NV, targets_BK.flatten(), temperature).view(-1, keep + 1)
    entropies_BK = _entropies(logits_NV.detach(), temperature).view(-1, keep + 1) if with_entropy else None
    return logprobs_BK[:, :-1], None if entropies_BK is None else entropies_BK[:, :-1]


def _forward_options(model: nn.Module, keep: int) -> dict[str, int | bool]:
    """Arguments that save memory, if the model's own `forward`, under all wrappers, has them."""
    inner: Any = extract_model_from_parallel(model, keep_torch_compile=False)
    _keep_precision(inner)
    if hasattr(inner, "get_base_model"):  # PEFT's wrapper passes all arguments on
        inner = inner.get_base_model()
    named = inspect.signature(inner.forward).parameters
    return {name: value for name, value in (("logits_to_keep", keep + 1), ("use_cache", False)) if name in named}


def _keep_precision(model: nn.Module) -> None:
    """Undo accelerate's conversion of outputs to float32: it would hold all logits twice. Autocast stays."""
    while isinstance(conversion := getattr(model.forward, "__wrapped__", None), ConvertOutputsToFp32):
        forward = conversion.model_forward
        model.forward = MethodType(forward, model) if isinstance(model.forward, MethodType) else forward


def _chosen_logprobs(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) at `ids`, by chunks that the backward pass computes again."""

    def chosen(logits_CV: Tensor, ids_C: Tensor) -> Tensor:
        logits_CV = logits_CV.float() / temperature
        return logits_CV.gather(1, ids_C[:, None])[:, 0] - logits_CV.logsumexp(dim=1)

    # `split`, not slices: the gradient of a slice is as large as the whole, and there would be one for each chunk.
    chunks = zip(logits_NV.split(TOKENS_AT_ONCE), ids_N.split(TOKENS_AT_ONCE), strict=True)
    return torch.cat([checkpoint(chosen, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks])


@torch.no_grad()
def _entropies(logits_NV: Tensor, temperature: float) -> Tensor:
    """Entropy of softmax(logits / temperature) in nats: logsumexp(x) - sum(softmax(x) * x)."""

    def entropy(logits_CV: Tensor) -> Tensor:
        logits_CV = logits_CV.float() / temperature
        return logits_CV.logsumexp(dim=1) - (logits_CV.softmax(dim=1) * logits_CV).sum(dim=1)

    return torch.cat([entropy(logits_CV) for logits_CV in logits_NV.split(TOKENS_AT_ONCE)])
