"""Loads a model, and checks that it can be trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

from ..models.adapters import has_adapter, with_adapter
from ..models.internals import takes_images
from ..options.config import AgentConfig
from .model_name import check_model_name
from .processing import for_all_files


def load_model(
    model: str | PreTrainedModel,
    init_kwargs: Mapping[str, Any] | None = None,
    peft_config: Any = None,
    *,
    gradient_checkpointing: bool = False,
    has_master_weights: bool = False,
) -> PreTrainedModel:
    """Return the model, with an adapter if there is a `peft_config`.

    A model that is given by name is loaded in float32, unless `init_kwargs` say otherwise. With `has_master_weights`
    it may have 16 bits, since the optimiser keeps the weights in float32.

    Raises:
        TypeError: it is neither a name nor a causal language model, or `peft_config` is of the wrong kind.
        ValueError: there are `init_kwargs`, but nothing to load; or the weights cannot be trained, since all are frozen
            or their precision is too low.
        OSError: there is no such model.
    """
    if isinstance(model, str):
        check_model_name(model, init_kwargs or {})
        config = AutoConfig.from_pretrained(model, **for_all_files(init_kwargs))
        model = auto_class(config).from_pretrained(model, **{"dtype": torch.float32, **(init_kwargs or {})})
    elif init_kwargs:
        raise ValueError(f"model_init_kwargs={init_kwargs} has no effect on a model that is loaded already")
    if not isinstance(model, nn.Module) or not hasattr(model, "generation_config"):
        raise TypeError(f"model must be the name of a causal language model, or such a model, got {model!r}")
    if model.config.is_encoder_decoder:
        raise TypeError(f"model must be a causal language model, got the encoder-decoder {type(model).__name__}")
    model = with_adapter(model, peft_config, gradient_checkpointing=gradient_checkpointing)
    _check_trainable(model, has_master_weights=has_master_weights)
    _warn_of_dropout(model)
    return model


def _check_trainable(model: nn.Module, *, has_master_weights: bool) -> None:
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trainable:
        raise ValueError(
            "no weight of the model can be trained: requires_grad is False for all of them. Load an adapter with "
            "peft.AutoPeftModelForCausalLM.from_pretrained(..., is_trainable=True), or give peft_config for a new one"
        )
    short = (torch.bfloat16, torch.float16)
    low = [f"{name} ({weight.dtype})" for name, weight in trainable.items() if weight.dtype in short]
    if low and not has_master_weights:
        raise ValueError(
            f"{len(low)} of {len(trainable)} weights in training have 16 bits, {low[0]} among them, in which small "
            f"updates round to nothing: load the model with dtype=torch.float32, and set bf16=True to compute in "
            f"bfloat16"
        )


def _warn_of_dropout(model: nn.Module) -> None:
    rates = {
        f"{type(module).__name__}.{name}={value:g}"
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and value > 0
        and ("dropout" in name or (name == "p" and isinstance(module, nn.Dropout)))
    }
    if rates:
        warnings.warn(
            f"the model has dropout ({', '.join(sorted(rates))}): it samples without and is trained with it, so the "
            f"policy in training is not quite the one that sampled; set the rates to 0",
            stacklevel=5,
        )


def warn_of_low_rate(model: PreTrainedModel, args: AgentConfig) -> None:
    """Warn if an adapter is trained with the default learning rate, which is one for all weights of a model."""
    if has_adapter(model) and args.learning_rate == AgentConfig.learning_rate:
        warnings.warn(
            f"learning_rate={args.learning_rate:g}, the default, is for a model whose weights are all trained; an "
            f"adapter needs some ten times as much, such as learning_rate={10 * args.learning_rate:g}",
            stacklevel=4,
        )


def auto_class(config: PretrainedConfig) -> Any:
    """Return the class of transformers that loads a model of this config: one for text and images, or one for text."""
    return AutoModelForImageTextToText if takes_images(config) else AutoModelForCausalLM
