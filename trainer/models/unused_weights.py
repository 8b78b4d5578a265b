"""Whether a model has weights in training that its forward pass does not use, such as those of an image tower."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .evaluating import evaluating
from .output_head import without_cache


def has_unused_weights(model: nn.Module) -> bool:
    """Whether a forward pass over a few tokens leaves a weight in training out of the graph of its gradient."""
    ids_BL = torch.arange(1, 5, device=next(model.parameters()).device)[None]
    with evaluating(model), torch.enable_grad():
        logits = model(input_ids=ids_BL, attention_mask=torch.ones_like(ids_BL), **without_cache(model)).logits
    unused = {each for each in model.parameters() if each.requires_grad}
    seen: set[Any] = set()
    rest: list[Any] = [logits.grad_fn]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        unused.discard(getattr(node, "variable", None))  # only the nodes of weights have it
        rest += [before for before, _ in node.next_functions]
    return bool(unused)
