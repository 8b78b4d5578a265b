"""A guard against answers that block their reader, and so the event loop, for long. It does not measure speed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_SECONDS = 1.0  # the hostile texts of the tests take 0.2 at most; far more where time grows faster than length


@contextlib.contextmanager
def not_held(text: str) -> Iterator[None]:
    """Fail if reading a text takes seconds of this thread's processor time; other threads may run beside it."""
    started = time.thread_time()
    yield
    assert time.thread_time() - started < _SECONDS, text[:100]
