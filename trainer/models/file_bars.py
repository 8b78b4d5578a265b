"""The progress bars of transformers while it reads and writes weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled


@contextmanager
def file_bars(*, shown: bool) -> Iterator[None]:
    """Show or hide these bars in this context; bars that the user has switched off stay off."""
    if shown or not is_progress_bar_enabled():
        yield
        return
    disable_progress_bar()
    try:
        yield
    finally:
        enable_progress_bar()
