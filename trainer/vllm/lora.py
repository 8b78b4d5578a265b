"""LoRA adapters that vLLM computes as PEFT does: after a step only the adapter is sent to vLLM, not the base weights.

Merging would round: a small change of an adapter is lost in a weight of 16 bits. An engine in this process loads the
adapter by `load_adapter`; a server gets it as `packed_adapter` (adapter_endpoint.py).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of vLLM's `max_lora_rank`
NAME, NUMBER = "gymnast", 1  # the id of the adapter; the engine has no other
MERGED_WITH_PICTURES = (  # vLLM computes no adapter of a vision tower
    "the adapter is merged into the weights for vLLM, which rounds weights of 16 bits: vLLM gets no adapter of a model "
    "that is shown pictures"
)


def lora_rank(model: Any) -> int | None:
    """Return the largest rank of a model's adapter; None if the adapter must be merged, or there is none.

    vLLM computes plain LoRA on linear layers. It lacks DoRA, trained copies of layers (`modules_to_save`), biases, and
    adapters of embeddings, output heads and single parameters; and it knows the adapters of PEFT's wrapper only.
    """
    if not hasattr(model, "get_base_model") or len(model.active_adapters) != 1:
        return None
    config = model.peft_config[model.active_adapters[0]]
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    linear = all(("lora_A." in name or "lora_B." in name) and "lm_head" not in name for name in trained)
    if config.peft_type != "LORA" or not linear or config.use_dora or config.target_parameters:
        return None
    if isinstance(config.init_lora_weights, str) or config.layer_replication or config.lora_bias:
        return None
    merged = any(getattr(module, "merged", False) for module in model.modules())
    largest = max(config.r, *config.rank_pattern.values()) if config.rank_pattern else config.r
    return None if merged or largest > RANKS[-1] else largest


def lora_options(rank: int) -> dict[str, Any]:
    """Return options of an engine for one adapter of this rank."""
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(largest for largest in RANKS if largest >= rank)}


def base_version(model: Any) -> tuple[int, ...]:
    """Return a value that changes when a base weight changes."""
    return tuple(parameter._version for parameter in model.parameters() if not parameter.requires_grad)


def save_adapter(model: Any, folder: str) -> str:
    """Write the adapter into this folder; return the folder that vLLM loads."""
    name = model.active_adapters[0]
    model.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
    return folder if name == "default" else str(Path(folder, name))


def packed_adapter(model: Any) -> bytes:
    """Return the files of the adapter, as a tar archive."""
    packed = BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w") as archive:
        saved = Path(save_adapter(model, folder))
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            archive.add(saved / name, name)
    return packed.getvalue()


def load_adapter(engine: Any, model: Any) -> Any:
    """Replace the adapter of an engine in this process by the model's; return the argument of requests to it."""
    from vllm.lora.request import LoRARequest

    with tempfile.TemporaryDirectory() as folder:
        if not engine.add_lora(LoRARequest(NAME, NUMBER, save_adapter(model, folder), load_inplace=True)):
            raise RuntimeError("vLLM has not loaded the adapter")
    return LoRARequest(NAME, NUMBER, "already loaded")
