"""A check that a model's cache works: some architectures ignore it without an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ...envs.core import ConfigurationError
from .contexts import evaluating
from .growing_cache import growing
from .internals import keep_rows, rope_types

TOKENS = 8  # of each row
PREFILL = 5  # of them are computed in one step, the others one by one
PADDING = 2  # on the left of the shorter row
TOLERANCE = 0.1  # of the log-probabilities' standard deviation; rounding in bfloat16 is about 0.01 of it


@torch.no_grad()
def check_cache(model: PreTrainedModel) -> None:
    """Raise a `ConfigurationError` if decoding token by token gives another distribution than one forward pass."""
    if "dynamic" in rope_types(model):
        raise ConfigurationError(
            f"{type(model).__name__} has rotary embeddings of the type 'dynamic': their frequencies change with the "
            f"length of a row, so sampling and training would disagree; set rope_type to 'yarn' or 'linear'"
        )
    vocabulary = model.config.get_text_config().vocab_size
    ids_BL = torch.arange(2 * TOKENS, device=model.device).view(2, TOKENS) * 7 % vocabulary
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[1, :PADDING] = 0  # the second row is shorter
    with evaluating(model):
        expected_V = _next_logprobs(model, ids_BL[1:, PADDING:], mask_BL[1:, PADDING:], None)[0]
        cache = growing(DynamicCache(config=model.config))
        _next_logprobs(model, ids_BL[:, :PREFILL], mask_BL[:, :PREFILL], cache)
        # Rows leave a batch, so a cache must be able to change their order.
        keep_rows(cache, torch.tensor([1, 0], device=model.device))
        ids_BL, mask_BL = ids_BL.flip(0), mask_BL.flip(0)
        for end in range(PREFILL + 1, TOKENS):
            _next_logprobs(model, ids_BL[:, end - 1 : end], mask_BL[:, :end], cache)
        got_V = _next_logprobs(model, ids_BL[:, -1:], mask_BL, cache)[0]
    if (got_V - expected_V).abs().mean() > TOLERANCE * expected_V.std():
        raise ConfigurationError(
            f"{type(model).__name__} decodes another distribution with a cache than without: it ignores the cache, or "
            f"keeps states elsewhere; sample with generator='vllm', if vLLM knows the model"
        )


def _next_logprobs(model: Any, ids_BN: Tensor, mask_BL: Tensor, cache: DynamicCache | None) -> Tensor:
    """Return log-probabilities (B, V) of the next token. Of L tokens, the last N are new, the others in the cache."""
    positions_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
    output = model(
        input_ids=ids_BN,
        attention_mask=mask_BL,
        position_ids=positions_BL[:, -ids_BN.shape[1] :],
        past_key_values=cache,
        use_cache=cache is not None,
    )
    return output.logits[:, -1].float().log_softmax(-1)
