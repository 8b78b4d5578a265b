"""The default of `max_tokens_per_batch`: it follows the memory that an update of this model needs in any case."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .contexts import evaluating
from .output_head import inner_model, known_options
from .sharding import own_part, reshard

HELD_BYTES = 2**27
"""What an update holds beside the model: a chunk of logits, as in `learning.logprobs`."""
TOKENS = 4  # of the forward pass that is looked at


def tokens_of_update(model: nn.Module, *, autocast: bool = False, checkpointing: bool = False) -> int:
    """Return how many tokens have activations of half the bytes that an update holds whatever its micro-batches.

    These are the weights, the gradients and Adam's state of those that train, and a chunk of logits; of sharded weights
    the part of this process. A larger micro-batch gains little time, and soon takes most of the memory.

    The tokens are those of text. The token of a picture needs more where the vision tower trains. The model is not yet
    wrapped or compiled, but sharded, if it will be. With `autocast` it computes in 16 bits; with `checkpointing` the
    backward pass computes the activations again, layer by layer.
    """
    held = HELD_BYTES
    for weight in model.parameters():
        count = own_part(weight).numel()
        held += count * weight.element_size() + weight.requires_grad * count * (weight.element_size() + 8)
    per_token = _activation_bytes(model, autocast=autocast) / TOKENS
    if checkpointing:
        inner: Any = inner_model(model)
        config = inner.config.get_text_config()
        size = 2 if autocast else next(model.parameters()).element_size()
        per_token = per_token / config.num_hidden_layers + config.num_hidden_layers * config.hidden_size * size
    return max(1, int(held / (2 * per_token)))


@torch.no_grad()
def _activation_bytes(model: nn.Module, *, autocast: bool) -> int:
    """Return the bytes of all inputs and outputs of layers, except for logits, in a pass of `TOKENS` tokens.

    What a layer keeps beside them is not seen.
    """
    inner: Any = inner_model(model)
    head = getattr(inner, "get_output_embeddings", lambda: None)()
    seen: dict[int, Tensor] = {}  # by address; kept alive, so that no address comes twice

    def look(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        shown = args if layer is head else (*args, output)
        seen.update({value.untyped_storage().data_ptr(): value for value in shown if isinstance(value, Tensor)})

    hooks = [layer.register_forward_hook(look) for layer in model.modules() if not any(layer.children())]
    device = next(model.parameters()).device
    ids_BL = torch.arange(1, TOKENS + 1, device=device)[None]
    try:
        with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            inputs = {"input_ids": ids_BL, "attention_mask": torch.ones_like(ids_BL)}
            model(**inputs, **known_options(model, use_cache=False))
    finally:
        for hook in hooks:
            hook.remove()
    reshard(model)
    return sum(value.untyped_storage().nbytes() for value in seen.values())
