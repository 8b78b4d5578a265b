"""The tokenizer of a model, and the check that it is the model's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

ALSO_FOR_TOKENIZERS = ("revision", "trust_remote_code", "token", "cache_dir")
"""Options of `model_init_kwargs` that concern all files of a model, so the tokenizer needs them too."""


def load_tokenizer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, init_kwargs: Mapping[str, Any] | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer; by default the model's own, from the same place and with the `init_kwargs` of the model.

    A warning says that a tokenizer which is given has other ids than the model's own, where that lies on this machine.

    Raises:
        TypeError: it is not a tokenizer.
        ValueError: there is no tokenizer, and the model does not say where it came from.
    """
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(f"processing_class must be a tokenizer, got {type(tokenizer).__name__}")
    name = model.config._name_or_path
    options = {key: value for key, value in (init_kwargs or {}).items() if key in ALSO_FOR_TOKENIZERS}
    if tokenizer is None:
        if not name:
            raise ValueError("processing_class is needed: the model was made in memory, so its tokenizer is not known")
        return AutoTokenizer.from_pretrained(name, **options)
    if name and name != tokenizer.name_or_path:
        with contextlib.suppress(OSError, ValueError):  # the model's own is not on this machine
            own = AutoTokenizer.from_pretrained(name, **options, local_files_only=True)
            _warn_of_other_ids(name, own.get_vocab(), tokenizer.get_vocab())
    return tokenizer


def _warn_of_other_ids(name: str, own: Mapping[str, int], given: Mapping[str, int]) -> None:
    """Warn if a tenth of the tokens have other ids; the model's own with further tokens or other markers has fewer."""
    others = [token for token in own if given.get(token) != own[token]]
    if 10 * len(others) > len(own):
        warnings.warn(
            f"processing_class is not the tokenizer of {name}: {len(others)} of its {len(own)} tokens have other ids "
            f"or none, such as {others[0]!r} ({own[others[0]]} there, {given.get(others[0])} here), so the model reads "
            f"nonsense; leave processing_class out",
            stacklevel=2,
        )
