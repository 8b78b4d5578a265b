"""The precision that a device computes fast in."""

from __future__ import annotations

import torch


def computes_bfloat16(device_type: str) -> bool:
    """Return whether bfloat16 is no slower than float32: on a processor without its instructions it is eight times."""
    if device_type != "cpu":
        return True
    known = torch.cpu.get_capabilities()
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's
