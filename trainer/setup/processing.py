"""The tokenizer of a model, or the processor of one that takes images, and the check that it is the model's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from ..models.images import ImageEncoder
from ..models.internals import load_processor

Processing = PreTrainedTokenizerBase | ProcessorMixin
"""A tokenizer, or the processor of a model that takes images, which has a tokenizer."""

FOR_ALL_FILES = ("revision", "trust_remote_code", "token", "cache_dir")


def load_processing(
    model: PreTrainedModel,
    given: Processing | None,
    init_kwargs: Mapping[str, Any] | None = None,
    *,
    max_image_pixels: int | None = None,
) -> tuple[PreTrainedTokenizerBase, ImageEncoder | None]:
    """Return the tokenizer, and the encoder of images if the model takes them and there is a processor.

    By default they are the model's own, from the same place and with the `init_kwargs` of the model. A warning says if
    one that is given has other ids than the model's own, where that lies on this machine.

    Raises:
        TypeError: `given` is neither a tokenizer nor a processor with one.
        ValueError: there is no tokenizer, and the model does not say where it came from.
        ConfigurationError: the processor cannot be used; see `ImageEncoder`.
    """
    own = _own_processing(model, init_kwargs) if given is None else given
    tokenizer: Any = own if isinstance(own, PreTrainedTokenizerBase) else getattr(own, "tokenizer", None)
    if tokenizer is None:
        raise TypeError(f"processing_class must be a tokenizer, or a processor with one, got {type(own).__name__}")
    if given is not None:
        _warn_of_other_ids(model.config._name_or_path, tokenizer, for_all_files(init_kwargs))
    if not isinstance(own, ProcessorMixin):
        return tokenizer, None
    if getattr(own, "chat_template", None):
        tokenizer.chat_template = own.chat_template
    return tokenizer, ImageEncoder(own, max_pixels=max_image_pixels)


def _own_processing(model: PreTrainedModel, init_kwargs: Mapping[str, Any] | None) -> Processing:
    name = model.config._name_or_path
    if not name:
        raise ValueError("processing_class is needed: the model was made in memory, so its tokenizer is not known")
    options = for_all_files(init_kwargs)
    return load_processor(name, model.config, options) or AutoTokenizer.from_pretrained(name, **options)


def for_all_files(init_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of `model_init_kwargs` that concern all files of a model: its config and tokenizer, too."""
    return {key: value for key, value in (init_kwargs or {}).items() if key in FOR_ALL_FILES}


def _warn_of_other_ids(name: str, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
    """Warn if a tenth of the tokens have other ids; the model's own with further tokens or other markers has fewer."""
    if not name or name == tokenizer.name_or_path:
        return
    try:
        own = AutoTokenizer.from_pretrained(name, **options, local_files_only=True).get_vocab()
    except (OSError, ValueError):  # the model's own is not on this machine
        return
    given = tokenizer.get_vocab()
    others = [token for token in own if given.get(token) != own[token]]
    if 10 * len(others) > len(own):
        warnings.warn(
            f"processing_class is not the tokenizer of {name}: {len(others)} of its {len(own)} tokens have other ids "
            f"or none, such as {others[0]!r} ({own[others[0]]} there, {given.get(others[0])} here), so the model reads "
            f"nonsense; leave processing_class out",
            stacklevel=2,
        )
