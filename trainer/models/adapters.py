"""Adapters: `peft_config=` puts one on the model, a quantised model needs one, and checkpoints hold them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from ...envs.extras import needs_extra
from ...sandbox.keywords import named_parameters, unknown_names
from .internals import takes_images


def adapter_config(peft_config: Any) -> Any:
    """Return the configuration of an adapter; a dict is a `peft.LoraConfig`'s. Raise a TypeError for a wrong one."""
    if peft_config is None:
        return None
    with needs_extra("peft", "peft_config"):
        import peft

    if isinstance(peft_config, Mapping):
        known = named_parameters(peft.LoraConfig)
        if unknown := [name for name in map(str, peft_config) if name not in known]:
            raise unknown_names("peft.LoraConfig", unknown, known, {"rank": "it is called r"})
        return peft.LoraConfig(**peft_config)
    if not isinstance(peft_config, peft.PeftConfig):
        raise TypeError(
            f"peft_config must be a peft.PeftConfig such as peft.LoraConfig, or a dict, got {peft_config!r}"
        )
    return peft_config


def with_adapter(model: PreTrainedModel, peft_config: Any, *, gradient_checkpointing: bool = False) -> PreTrainedModel:
    """Put a new adapter of PEFT on the model, if `peft_config` is given.

    A model that is loaded in 8 or 4 bits is prepared as for QLoRA (Dettmers et al. 2023, arXiv 2305.14314). The
    vision tower of a model that takes images gets no adapter, unless the configuration says which layers do.
    """
    if peft_config is None:
        if _is_quantised(model) and not has_adapter(model):
            raise ValueError(
                "the model is quantised, and quantised weights cannot be trained: give peft_config=peft.LoraConfig(...)"
            )
        return model
    import peft

    if has_adapter(model):
        raise ValueError(
            "the model has an adapter, and peft_config would add another one: leave peft_config out to go on training "
            "the first, or merge it before (model.merge_and_unload())"
        )
    if _is_quantised(model):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=gradient_checkpointing)
    if takes_images(model.config):
        peft_config = _for_language(model, peft_config)
    return peft.get_peft_model(model, peft_config)  # type: ignore[return-value]


def _for_language(model: Any, peft_config: Any) -> Any:
    """Return the configuration for the layers of the language model: all linear ones if it names none.

    One with `exclude_modules`, or a regular expression as `target_modules`, says itself which layers it means.
    """
    targets = getattr(peft_config, "target_modules", "")  # not every kind of adapter has targets
    excludes = getattr(peft_config, "exclude_modules", None)  # nor this field, which PEFT reads from all that have it
    if (isinstance(targets, str) and targets != "all-linear") or excludes is not None:
        return peft_config
    [name] = [name for name, module in model.named_modules() if module is model.get_decoder()]
    changed = copy.copy(peft_config)
    changed.exclude_modules = rf"(?!{re.escape(name)}\.|lm_head$).*"
    if targets is None and not getattr(peft_config, "target_parameters", None):
        changed.target_modules = "all-linear"
    return changed


def load_adapters(model: Any, folder: Path) -> None:
    """Read the adapters of a checkpoint into those of the model that have the same names; one may not be missing."""
    from peft import set_peft_model_state_dict

    if hasattr(model, "get_base_model"):  # PEFT wraps the model, and has saved all adapters
        for name in model.peft_config:
            set_peft_model_state_dict(model, _read(folder if name == "default" else folder / name, name), name)
    else:  # transformers has saved the one in training, under the names that its weights have below PEFT's wrapper
        [name] = model.active_adapters()
        weights = {key.removeprefix("base_model.model."): value for key, value in _read(folder, name).items()}
        set_peft_model_state_dict(model, weights, name)


def _read(folder: Path, name: str) -> dict[str, Tensor]:
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ValueError(f"{folder} has no {path.name}, so it is no checkpoint of a model with the adapter {name!r}")
    return load_file(path)


def has_adapter(model: Any) -> bool:
    """Return whether PEFT wraps the model, or transformers has attached an adapter (`model.add_adapter`)."""
    return hasattr(model, "get_base_model") or getattr(model, "_hf_peft_config_loaded", False)


def _is_quantised(model: Any) -> bool:
    return getattr(model, "is_quantized", False)  # transformers sets it on quantised models only
