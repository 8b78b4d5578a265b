"""The weights of a model as an inference engine loads them: named as in the model's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...envs.core import ConfigurationError
from .internals import is_adapted, merged_state, ties, to_checkpoint_names
from .output_head import inner_model
from .sharding import by_zero3, own_part, reshard, whole, without_data


def check_loadable(model: PreTrainedModel) -> None:
    """Raise a `ConfigurationError` if the weights are quantised, which `named_weights` cannot name."""
    if getattr(model, "is_quantized", False):
        raise ConfigurationError(
            "the model is quantised, and its weights cannot be sent to vLLM; load it without quantisation, or use "
            "generator='transformers'"
        )


@torch.no_grad()
def named_weights(model: PreTrainedModel, *, merge: bool = True) -> dict[str, Tensor]:
    """Return the weights by their names in a checkpoint, with adapters (of PEFT, or `model.add_adapter`) merged.

    With `merge=False` adapters are left out. The model is not changed, and may run meanwhile. Weights without an
    adapter share its memory. Of tied weights only one is returned. Sharded weights stay so; see `whole_weights`.

    Raises:
        ConfigurationError: an adapter changes one of two weights that the config ties.
    """
    base = inner_model(model)
    return to_checkpoint_names(base, _merged_weights(model, base, merge=merge))


@torch.no_grad()
def whole_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by their names in a checkpoint; those of a sharded model are gathered one at a time.

    Every process that shares the weights must go through all of them.

    Raises:
        ConfigurationError: as in `named_weights`; or ZeRO-3 shards weights that become one weight of a checkpoint.
    """
    if not by_zero3(model):
        return ((name, whole(weight)) for name, weight in named_weights(model).items())
    base = inner_model(model)
    weights = _merged_weights(model, base)
    _check_convertible_one_by_one(base, weights)
    return (
        item for name, weight in weights.items() for item in to_checkpoint_names(base, {name: whole(weight)}).items()
    )


def _merged_weights(model: PreTrainedModel, base: Any, *, merge: bool = True) -> dict[str, Tensor]:
    """Return the weights by their names in the model without adapters."""
    reshard(model)
    weights = merged_state(base, merge=merge)
    for name, source in ties(base).items():
        if name in weights and source in weights:
            if is_adapted(base, name) != is_adapted(base, source) or not _same(weights[name], weights[source]):
                raise ConfigurationError(
                    f"the model's config ties {name} to {source}, but only one of them is trained: vLLM has one weight "
                    f"for both; adapt both, with ensure_weight_tying, or neither"
                )
            del weights[name]
    return weights


def _check_convertible_one_by_one(base: Any, weights: Mapping[str, Tensor]) -> None:
    empty = {name: without_data(weight) for name, weight in weights.items()}
    apart = [to_checkpoint_names(base, {name: weight}) for name, weight in empty.items()]
    shapes = {name: weight.shape for own in apart for name, weight in own.items()}
    if {name: weight.shape for name, weight in to_checkpoint_names(base, empty).items()} != shapes:
        raise ConfigurationError(
            f"several weights of a {type(base).__name__} are one weight of its checkpoints, and ZeRO-3 gathers one at "
            f"a time: use ZeRO-2, or FSDP2 (examples/accelerate/fsdp2.yaml)"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    one, other = own_part(one), own_part(other)
    return one.data_ptr() == other.data_ptr() or torch.allclose(one, other, rtol=1e-4, atol=1e-6)
