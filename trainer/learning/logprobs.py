"""Log-probabilities and entropies of the loss tokens of a batch, from one forward pass.

Axes: B sequences (rows of one micro-batch); L tokens of a row with its prompt; T, its last tokens; N loss tokens of all
rows, and C of a chunk; H hidden size; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MethodType
from typing import Any, Literal

import torch
from accelerate.utils import extract_model_from_parallel
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...envs.images import Image
from ..models.images import ImageEncoder
from ..models.output_head import OutputHead, known_options

Entropy = Literal["none", "value", "differentiable"]

CHUNK_BYTES = 2**27
"""Logits of one chunk in float32. The backward pass holds a few such tensors at a time."""


def token_logprobs(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    places_N: Tensor,
    *,
    keep: int,
    temperature: float,
    head: OutputHead | None = None,
    entropy: Entropy = "none",
    images: ImageEncoder | None = None,
    pictures: Sequence[Sequence[Image]] = (),
) -> tuple[Tensor, Tensor | None]:
    """Compute log-probabilities (B, keep) of tokens among the last `keep` of each row; 0 at tokens not asked for.

    Memory: `CHUNK_BYTES` of logits in float32, which the backward pass computes again. Without `head`, also the logits
    of `keep + 1` positions of all rows, in the precision that the model computes in.

    Args:
        model: A causal language model, wrapped or not.
        inputs: Arguments of the forward pass: `input_ids` (B, L), padded on the right, `attention_mask`, and others.
        places_N: The tokens that are asked for, as indices into the last `keep` columns, flattened.
        keep: The number of columns of the result; less than L, since no token comes before the first.
        temperature: That of sampling.
        head: The output head of the model. With it, logits are computed only where they are asked for.
        entropy: Whether to return the entropies (B, keep) of the distributions at these tokens, too, in nats.
        images: Makes the features of `pictures`, the images of each row; its tokens have no probability.

    Raises:
        ValueError: `keep` or `temperature` is out of range.
    """
    ids_BL = inputs["input_ids"]
    rows, length = ids_BL.shape
    if not 0 < keep < length:
        raise ValueError(f"keep must be between 1 and {length - 1} (row length - 1), got {keep}.")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    if images is not None:
        inputs = images.inputs(ids_BL, inputs["attention_mask"], pictures)
    # The logits at a position belong to the token after it.
    ids_N = ids_BL[:, -keep:].flatten()[places_N]
    if head is not None:
        states_BLH = head.hidden_states(model, inputs)
        states_NH, to_logits = states_BLH[:, -(keep + 1) : -1].flatten(0, 1)[places_N], head.logits
        vocabulary = head.vocabulary
    else:
        _keep_precision(model)
        options = known_options(model, use_cache=False, logits_to_keep=keep + 1)
        logits_BLV = model(**inputs, **options).logits
        states_NH, to_logits = logits_BLV[:, -(keep + 1) : -1].flatten(0, 1)[places_N], None
        vocabulary = logits_BLV.shape[2]
    forbidden = None if images is None else torch.tensor(sorted(images.token_ids), device=ids_BL.device)
    logprobs_N, entropies_N = _chosen_logprobs(
        to_logits, states_NH, ids_N, temperature, vocabulary, entropy=entropy, forbidden=forbidden
    )
    empty = torch.zeros(rows * keep, device=ids_BL.device)
    logprobs_BT = empty.index_put((places_N,), logprobs_N).view(rows, keep)
    return logprobs_BT, None if entropies_N is None else empty.index_put((places_N,), entropies_N).view(rows, keep)


def _chosen_logprobs(
    to_logits: Callable[[Tensor], Tensor] | None,
    states_NH: Tensor,
    ids_N: Tensor,
    temperature: float,
    vocabulary: int,
    *,
    entropy: Entropy,
    forbidden: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Compute log softmax(logits / temperature) at `ids`, and entropies, in chunks that the backward pass repeats."""

    def chosen(states_CH: Tensor, ids_C: Tensor) -> tuple[Tensor, Tensor | None]:
        logits_CV = (states_CH if to_logits is None else to_logits(states_CH)).float()
        if temperature != 1:
            logits_CV = logits_CV / temperature
        if forbidden is not None:  # not minus infinity, whose product with a probability of 0 is no number
            logits_CV = logits_CV.index_fill(1, forbidden, torch.finfo(logits_CV.dtype).min)
        logprobs_CV = logits_CV.log_softmax(dim=1)
        chosen_C = logprobs_CV.gather(1, ids_C[:, None])[:, 0]
        if entropy == "none":
            return chosen_C, None
        # Last: without a gradient the backward pass does not come this far when it computes the chunk again.
        with nullcontext() if entropy == "differentiable" else torch.no_grad():
            return chosen_C, -(logprobs_CV.exp() * logprobs_CV).sum(dim=1)

    size = max(1, CHUNK_BYTES // (4 * vocabulary))
    # `split`, not slices: the gradient of a slice is as large as the whole, and there would be one for each chunk.
    chunks = zip(states_NH.split(size), ids_N.split(size), strict=True)
    parts = [checkpoint(chosen, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), None if entropy == "none" else torch.cat(entropies)


def _keep_precision(model: nn.Module) -> None:
    """Undo accelerate's conversion of outputs to float32: it would hold all logits twice. Autocast stays."""
    inner: Any = extract_model_from_parallel(model, keep_torch_compile=False)
    while isinstance(conversion := getattr(inner.forward, "__wrapped__", None), ConvertOutputsToFp32):
        forward = conversion.model_forward
        inner.forward = MethodType(forward, inner) if isinstance(inner.forward, MethodType) else forward
