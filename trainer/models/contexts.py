"""Contexts: a model that gives the logits that it samples with, and progress bars of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch off dropout, and gradient checkpointing, which would switch off the cache. Undone afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def file_bars(*, shown: bool) -> Iterator[None]:
    """Show or hide the bars of reading and writing weights; bars that the user has switched off stay off."""
    hides = not shown and is_progress_bar_enabled()
    if hides:
        disable_progress_bar()
    try:
        yield
    finally:
        if hides:
            enable_progress_bar()
