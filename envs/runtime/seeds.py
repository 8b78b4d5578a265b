"""Seeds of environments and samples."""

from __future__ import annotations

import numpy as np


def stable_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**63), computed from the parts: the same in every process and on every machine."""
    text = "".join(f"{type(part).__name__}:{str(part).replace(';', ';;')};" for part in parts)
    entropy = np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)
