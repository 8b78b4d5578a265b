"""OutputHead: the last layer of a language model, which turns hidden states into logits, taken out of the forward pass.

A forward pass computes logits at every position, and they are most of the memory of an update: 32 rows of 2,000 tokens
over a vocabulary of 152k are 39 GB in float32. The loss needs those at loss tokens only, a chunk at a time.

Axes: B rows; L tokens of a row; H hidden size; N tokens; V vocabulary.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from .contexts import evaluating
from .sharding import by_zero3, gather_before_use, is_sharded, reshard


class OutputHead:
    """The output head of a model, which `hidden_states` leaves out and `logits` applies.

    The model is not yet wrapped or compiled; but sharded, if it will be.
    """

    def __init__(self, model: nn.Module) -> None:
        inner: Any = inner_model(model)
        self._model = model
        self._layer: nn.Module = inner.get_output_embeddings()
        config: Any = inner.config.get_text_config()
        self.vocabulary: int = config.vocab_size
        # Cohere multiplies logits, Granite divides them, Gemma caps them.
        self._scale: float = (getattr(config, "logit_scale", None) or 1.0) / (
            getattr(config, "logits_scaling", None) or 1.0
        )
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._input: Tensor | None = None
        self._is_aside = False
        self._autocast: torch.dtype | None = None
        # The hook stays for good: a compiled model keeps the hooks that it was compiled with.
        # A gradient that went through the hooks of DeepSpeed would free the weights of the layer.
        self._layer.register_forward_pre_hook(self._keep_input, prepend=by_zero3(model))

    @classmethod
    def of(cls, model: nn.Module) -> OutputHead | None:
        """Return the head of a model; None, with a warning, where it cannot be applied apart from the forward pass.

        A forward pass over a few tokens tells.
        """
        inner: Any = inner_model(model)
        if getattr(inner, "get_output_embeddings", lambda: None)() is None:
            reason = "it has no get_output_embeddings()"
        elif not (head := cls(model))._reproduces(model):
            reason = "its logits are not those of its output embeddings, with known scaling and capping"
        else:
            return head
        warnings.warn(
            f"the logits of all positions of {type(inner).__name__} are computed, which takes memory: {reason}",
            stacklevel=2,
        )
        return None

    @torch.no_grad()
    def _reproduces(self, model: nn.Module) -> bool:
        """Return whether a forward pass gives the logits that `logits` gives.

        Both get large hidden states, because a cap does not show on small logits.
        """
        ids_BL = torch.arange(1, 5, device=next(model.parameters()).device)[None]
        enlarge = self._layer.register_forward_pre_hook(lambda _layer, args: (args[0] * 100, *args[1:]))
        try:
            inputs = {"input_ids": ids_BL, "attention_mask": torch.ones_like(ids_BL)}
            with evaluating(model):
                output, hidden_BLH = self._forward(model, inputs)
        finally:
            enlarge.remove()
        expected_V = output.logits[0, 0].float()
        got_V = self.logits(hidden_BLH[0, :1] * 100)[0].float()
        reshard(self._model)
        return bool((got_V - expected_V).abs().max() <= 0.02 * expected_V.abs().max())  # rounding of bfloat16

    def hidden_states(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the head's input (B, L, H), from a forward pass of `model`, wrapped or not."""
        return self._forward(model, inputs)[1]

    def _forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Any, Tensor]:
        self._is_aside = True
        try:
            output = model(**inputs, **known_options(model, use_cache=False))
            hidden_BLH = self._input
        finally:
            self._is_aside, self._input = False, None
        if hidden_BLH is None:
            raise ValueError(
                f"this {type(inner_model(model)).__name__} did not run the output head of the policy, so it is another "
                f"model. The reference must be the policy itself, with the weights of the start or the adapter 'ref'"
            )
        return output, hidden_BLH

    def _keep_input(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._is_aside:
            return None
        self._input = hidden = args[0]
        device = hidden.device.type
        self._autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return (hidden[:, :1], *args[1:])  # the model goes on with one position, which costs nothing

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return the model's logits (N, V) for these hidden states, in the precision that it computes in."""
        device, dtype = hidden_NH.device.type, self._autocast
        # Sharded weights are gathered in hooks, which expect that a layer runs once, inside the forward pass.
        gather_before_use(self._layer, self._model)
        layer = self._layer.forward if is_sharded(self._model) else self._layer
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            logits_NV = layer(hidden_NH)
        if self._scale != 1.0:
            logits_NV = logits_NV * self._scale
        if self._cap is not None:
            logits_NV = torch.tanh(logits_NV / self._cap) * self._cap
        return logits_NV


def inner_model(model: nn.Module) -> nn.Module:
    """Return the model under all wrappers: of data parallelism, compilation, and PEFT."""
    inner: Any = extract_model_from_parallel(model, keep_torch_compile=False)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def known_options(model: nn.Module, **options: Any) -> dict[str, Any]:
    """Return those of these options that the forward pass of the model takes."""
    forward: Any = inner_model(model).forward
    known = inspect.signature(forward).parameters
    return {name: value for name, value in options.items() if name in known}
