"""All uses of names that transformers and PEFT do not document. A test checks the names."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from .growing_cache import GrowingLayer
from .sharding import by_zero3


def takes_images(config: PretrainedConfig) -> bool:
    """Return whether the model of this config is one for images and text."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def load_processor(name: str, config: PretrainedConfig, options: Mapping[str, Any]) -> Any | None:
    """Return the processor of a model that takes images; None if the model has only a tokenizer."""
    if not takes_images(config) or type(config) not in PROCESSOR_MAPPING:
        return None
    try:
        return without_videos(PROCESSOR_MAPPING[type(config)]).from_pretrained(name, **options)
    except OSError:
        return None


def without_videos(kind: Any) -> Any:
    """Return a class of processors without its part for videos, which needs torchvision."""
    parts = [part for part in kind.get_attributes() if part != "video_processor"]
    return type(kind.__name__, (kind,), {"get_attributes": classmethod(lambda _: parts)})


@contextmanager
def attention_by(name: str, config: PretrainedConfig, *, instead_of: str) -> Iterator[None]:
    """Let a model with this config compute attention by another implementation, if it uses the one that is replaced."""
    if config._attn_implementation != instead_of:
        yield
        return
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = instead_of


def is_plain(cache: DynamicCache) -> bool:
    """Return whether all layers hold keys and values of all tokens: no sliding window and no recurrent state."""
    layers: list[Any] = cache.layers
    return all(type(layer) in (DynamicLayer, GrowingLayer) and layer.is_initialized for layer in layers)


def has_plain_cache(model: Any) -> bool:
    """Return whether a row's keys and values do not depend on the rows beside it, by the model's configuration.

    Sliding windows and recurrent states depend on a row's padding, `longrope` on the longest row.
    """
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) is DynamicLayer for layer in layers) and "longrope" not in rope_types(model)


def keep_rows(cache: DynamicCache, indices: Tensor) -> None:
    """Keep these rows of any cache, recurrent states included."""
    cache.reorder_cache(indices)  # type: ignore[arg-type] # any integer tensor will do


def drop_columns(cache: DynamicCache, count: int) -> None:
    """Drop this many columns on the left of a plain cache."""
    layer: Any
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, count:], layer.values[:, :, count:]


def append_rows(cache: DynamicCache, other: DynamicCache) -> None:
    """Move the rows of another plain cache to the end of this one. Shorter rows are filled on the left."""
    mine: Any
    theirs: Any
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        mine.keys, mine.values = stack(mine.keys, theirs.keys), stack(mine.values, theirs.values)
        theirs.keys = theirs.values = None  # at most one layer is in memory twice


def stack(*parts: Tensor) -> Tensor:
    """Stack rows, zeros on the left of the shorter: (B, ..., L, D), (C, ..., M, D) to (B + C, ..., max(L, M), D)."""
    length, first = max(part.shape[-2] for part in parts), 0
    made = parts[0].new_zeros(sum(map(len, parts)), *parts[0].shape[1:-2], length, parts[0].shape[-1])
    for part in parts:
        made[first : first + len(part), ..., length - part.shape[-2] :, :] = part
        first += len(part)
    return made


def row_of(cache: DynamicCache, row: int, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return copies of each layer's keys and values (H, T, D): of one row of a plain cache, in these columns (T,)."""
    layers: list[Any] = cache.layers
    return [
        (layer.keys[row].index_select(-2, columns), layer.values[row].index_select(-2, columns)) for layer in layers
    ]


def fill(cache: DynamicCache, rows: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> None:
    """Fill an empty cache with rows from `row_of`. Shorter rows are filled on the left."""
    for index, of_layer in enumerate(zip(*rows, strict=True)):
        keys, values = (stack(*[part[None] for part in parts]) for parts in zip(*of_layer, strict=True))
        cache.update(keys, values, index)


def token_bytes(cache: DynamicCache) -> float:
    """Return the bytes of one token in one row of a plain cache."""
    layers: list[Any] = cache.layers
    tokens = layers[0].keys.shape[0] * layers[0].keys.shape[-2]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) / max(tokens, 1)


def rope_types(model: Any) -> set[str]:
    """Return the types of a model's rotary embeddings: one for all layers, or one for each type of layer."""
    parameters = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {options["rope_type"] for options in nested or [parameters] if "rope_type" in options}


def merged_state(model: nn.Module, *, merge: bool = True) -> dict[str, Tensor]:
    """Return the model's state with its active adapters merged, or left out, under the names without adapters.

    The model is not changed. Tensors of layers without an adapter share the model's memory.
    """
    replaced: dict[str, Mapping[str, Tensor]] = {}
    layer: Any
    for name, layer in model.named_modules():
        name = name.replace("_checkpoint_wrapped_module.", "")  # of activation checkpointing; not in the state's names
        if name.startswith(tuple(f"{outer}." for outer in replaced)):
            continue
        if hasattr(layer, "get_base_layer"):
            replaced[name] = _merged_layer(layer) if merge else layer.get_base_layer().state_dict()
        elif hasattr(layer, "modules_to_save"):
            [active] = layer.active_adapters
            replaced[name] = (layer.modules_to_save[active] if merge else layer.original_module).state_dict()
    prefixes = tuple(f"{name}." for name in replaced)
    state = model.state_dict(keep_vars=by_zero3(model))  # only a parameter of ZeRO-3 itself can be gathered
    state = {name: value for name, value in state.items() if not name.startswith(prefixes)}
    return state | {f"{name}.{key}": value for name, own in replaced.items() for key, value in own.items()}


def _merged_layer(layer: Any) -> Mapping[str, Tensor]:
    """Return the state of a layer with its adapter merged in a copy: unmerging would leave rounding errors."""
    # LoRA's options may hold other layers' tensors. The hook of an `OutputHead` holds the model, which may be running.
    shared = [vars(module).get("kwargs") for module in layer.modules()]
    merged = copy.deepcopy(layer, {id(kept): kept for kept in [*shared, *hooks(layer)]})
    for module in merged.modules():  # an adapter of a parameter may lie in another one
        if hasattr(module, "get_base_layer") and not module.disable_adapters:
            module.merge()
    return merged.get_base_layer().state_dict()


def hooks(model: nn.Module) -> list[Any]:
    """Return the hooks of all layers. A copy of a model shares them: their owners may hold locks, or count calls."""
    tables = [table for module in model.modules() for name, table in vars(module).items() if name.endswith("_hooks")]
    # PEFT keeps the handles of its hooks in a list of such a name.
    return [hook for table in tables if isinstance(table, dict) for hook in table.values()]


def is_adapted(model: nn.Module, weight: str) -> bool:
    """Return whether an adapter wraps the layer of a weight, or trains a copy of it (`modules_to_save`)."""
    layer = model.get_submodule(weight.rpartition(".")[0])
    return hasattr(layer, "get_base_layer") or hasattr(layer, "modules_to_save")


def ties(model: nn.Module) -> dict[str, str]:
    """Return the name of each tied weight with the name of the weight that it is tied to."""
    return dict(getattr(model, "all_tied_weights_keys", None) or {})


def kept_in_float32(model: Any) -> Collection[str]:
    """Return parts of the names of weights that the model keeps in float32 when it computes in 16 bits."""
    return getattr(model, "_keep_in_fp32_modules_strict", None) or ()


def to_checkpoint_names(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state as in the model's checkpoints: transformers fuses and renames some weights on loading."""
    with torch.no_grad():
        return revert_weight_conversion(model, state)
