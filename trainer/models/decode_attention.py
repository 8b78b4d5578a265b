"""Attention of one new token on a CPU: query heads that share keys and values read them in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .internals import attention_by

NAME = "sdpa_of_grouped_heads"


@contextmanager
def grouped_heads(model: PreTrainedModel) -> Iterator[None]:
    """Decode with attention that copies no keys and values. Only on a CPU, and in place of `sdpa`. Undone afterwards.

    With a mask, transformers copies the keys and values of all tokens for each query head that shares them, in each
    step. Decoding 64 rows of SmolLM2-135M-Instruct spends most of its time on these copies.
    """
    if model.device.type != "cpu":
        yield
        return
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    with attention_by(NAME, model.config.get_text_config(), instead_of="sdpa"):
        yield


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Take the query heads of a group as so many positions of one head: they all see the same tokens.

    `query` (B, heads, 1, size), `key` and `value` (B, heads / group, tokens, size).
    """
    batch, heads, length, size = query.shape
    shared = key.shape[1]
    differ = options.get("position_bias") is not None or (attention_mask is not None and attention_mask.shape[1] > 1)
    if length > 1 or heads == shared or differ:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    query = query.reshape(batch, shared, heads // shared, size)
    found = scaled_dot_product_attention(query, key, value, attention_mask, scale=options.get("scaling"))
    return found.reshape(batch, 1, heads, -1), None
