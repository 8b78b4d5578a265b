"""Models with random weights in the measured sizes, and the device of the measurements."""

from __future__ import annotations

import gc
import resource
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SIZES: dict[str, dict[str, int]] = {  # 0.6B is Qwen3-0.6B
    "small": {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32},
    "0.1B": {
        **{"vocab_size": 151_936, "hidden_size": 512, "num_hidden_layers": 12},
        **{"num_attention_heads": 8, "head_dim": 64},
    },
    "0.6B": {
        **{"vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28},
        **{"num_attention_heads": 16, "head_dim": 128},
    },
}

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16 operations a second, from the makers' data sheets, by a part of the GPU's name."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_model(size: str, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights on the device."""
    torch.manual_seed(0)
    shape = SIZES[size]
    config = Qwen3Config(
        **shape,  # type: ignore[arg-type]
        intermediate_size=3 * shape["hidden_size"],
        num_key_value_heads=shape["num_attention_heads"] // 2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.device(DEVICE):
        model: Any = Qwen3ForCausalLM(config)  # its types do not declare `to(dtype)`
        return model.to(dtype)


def count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"


def utilisation(parameters: int, tokens_per_second: float) -> dict[str, float]:
    """Model FLOPs utilisation of training: 6 operations a parameter and token, over the GPU's peak; {} if unknown.

    The count includes all logits for every variant, so that their figures compare as their times do.
    """
    peaks = [peak for name, peak in PEAK_FLOPS.items() if name in device_name()]
    return {"mfu": 6 * parameters * tokens_per_second / peaks[0]} if peaks else {}


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def peak_megabytes() -> float:
    """The peak of the GPU's memory; without a GPU, that of the process."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def free_memory() -> None:
    """Release unused memory, and count the peak from here on, where that is possible: on a GPU."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def described(values: dict[str, Any]) -> dict[str, Any]:
    """The values, rounded, with the device and the version of PyTorch."""
    gc.collect()
    kept = {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in values.items()}
    return kept | {"device": device_name(), "torch": torch.__version__}
