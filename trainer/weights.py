"""The weights of a model as an inference engine loads them: named as in the model's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from ..envs.core import ConfigurationError


def check_loadable(model: PreTrainedModel) -> None:
    """Check that `named_weights` can name them all.

    Raises:
        ConfigurationError: they are quantised.
    """
    if getattr(model, "is_quantized", False):
        raise ConfigurationError(
            "the model is quantised, and its weights cannot be sent to vLLM; load it without quantisation, or use "
            "generator='transformers'"
        )


@contextmanager
def named_weights(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """The weights by their names in a checkpoint; an adapter (PEFT) is merged into them while this is open.

    The tensors share the model's memory where they can. A weight that is tied to another is left out.

    Raises:
        ConfigurationError: of two weights that the config ties, an adapter changes one.
    """
    adapted: Any = model
    with torch.no_grad():
        if not hasattr(model, "merge_adapter"):
            yield revert_weight_conversion(model, _plain_weights(model))
            return
        base = adapted.get_base_model()
        # Taking a merged adapter out again leaves rounding errors, which would add up over the rounds.
        before = [(each, each.detach().cpu().clone()) for each in _merged_into(base)]
        adapted.merge_adapter()
        try:
            yield revert_weight_conversion(base, _plain_weights(base))
        finally:
            adapted.unmerge_adapter()
            for parameter, value in before:
                parameter.copy_(value)


def _merged_into(base: Any) -> list[Tensor]:
    """The weights that merging changes: those of the layers that an adapter wraps."""
    layers = [module.get_base_layer() for module in base.modules() if hasattr(module, "get_base_layer")]
    return [parameter for layer in layers for parameter in layer.parameters(recurse=False)]


def _plain_weights(model: Any) -> dict[str, Tensor]:
    """Parameters and persistent buffers under the names that they have without adapters, each once."""
    added: list[str] = []  # what names of an adapter's own weights begin with
    renamed: dict[str, str] = {}  # what names of wrapped weights begin with, and without the wrapper
    for name, module in model.named_modules():
        if hasattr(module, "get_base_layer"):
            renamed[f"{name}.base_layer."] = f"{name}."
            added += [f"{name}.{each}." for each in (*module.adapter_layer_names, *module.other_param_names)]
        elif hasattr(module, "modules_to_save"):
            [active] = module.active_adapters
            renamed[f"{name}.modules_to_save.{active}."] = f"{name}."
            added += [f"{name}.original_module.", f"{name}.modules_to_save."]
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        prefix = next((each for each in renamed if name.startswith(each)), None)
        if prefix is not None:
            weights[renamed[prefix] + name.removeprefix(prefix)] = tensor
        elif not name.startswith(tuple(added)):
            weights[name] = tensor
    for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if name in weights and source in weights:
            apart = weights[name].data_ptr() != weights[source].data_ptr()
            if apart or _is_adapted(model, name) != _is_adapted(model, source):
                raise ConfigurationError(
                    f"the model's config ties {name} to {source}, but only one of them is trained: vLLM has one weight "
                    f"for both; adapt both, with ensure_weight_tying, or none"
                )
            del weights[name]
    return weights


def _is_adapted(model: Any, weight: str) -> bool:
    """Whether an adapter wraps the layer that a weight belongs to."""
    return hasattr(model.get_submodule(weight.rpartition(".")[0]), "get_base_layer")
