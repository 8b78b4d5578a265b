"""The precision that a device computes fast in."""

from __future__ import annotations

import torch


def computes_bfloat16(device_type: str) -> bool:
    """Return whether a device has instructions for bfloat16. Without them it is slower, by up to 8 times."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type != "cpu":
        return True
    known = torch.cpu.get_capabilities()
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's
