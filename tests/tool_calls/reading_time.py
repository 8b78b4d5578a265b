"""A guard against answers that hold their reader, and with it the event loop, for long. It measures no speed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_SECONDS = 1.0  # the hostile texts of the tests take 0.2 at most; far more where time grows faster than length


@contextlib.contextmanager
def not_held(text: str) -> Iterator[None]:
    """Fail if reading a text takes this thread's processor for seconds; other threads run beside it in a test."""
    started = time.thread_time()
    yield
    assert time.thread_time() - started < _SECONDS, text[:100]
