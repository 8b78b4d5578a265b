"""A check of a model's name, so that a wrong one is told at once: transformers would try the Hub for a minute."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

SECONDS = 10.0  # until the Hub must answer


def check_model_name(name: str, init_kwargs: Mapping[str, Any]) -> None:
    """Check that there is a folder of this name with a model, or that the cache has the model, or the Hub answers.

    The answer of the Hub, such as "unknown" or "private", is left to transformers, which explains it.

    Raises:
        FileNotFoundError: the folder has no model, or there is none and the Hub has no such names.
        ConnectionError: there is no such folder, and the Hub cannot be reached.
    """
    if "subfolder" in init_kwargs:
        return
    path = Path(name)
    if path.is_dir():
        if not _has_model(path):
            inner = [str(folder) for folder in path.glob("*") if _has_model(folder)]
            hint = f"; {inner[0]} has one" if inner else ""
            raise FileNotFoundError(f"the folder {name} has no config.json, so it is not that of a model{hint}")
        return
    siblings = [str(other) for other in path.parent.glob("*") if other.is_dir()]
    near = difflib.get_close_matches(str(path), siblings, n=1)
    absent = f"there is no folder {name!r} here{f' (did you mean {near[0]!r}?)' if near else ''}"
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise FileNotFoundError(f"{absent}, and a model of the Hub is named like Qwen/Qwen3-0.6B") from None
    revision = init_kwargs.get("revision")
    cached = huggingface_hub.try_to_load_from_cache(
        name, "config.json", cache_dir=init_kwargs.get("cache_dir"), revision=revision
    )
    if isinstance(cached, str):
        return
    try:
        url = huggingface_hub.hf_hub_url(name, "config.json", revision=revision)
        huggingface_hub.get_hf_file_metadata(url, token=init_kwargs.get("token"), timeout=SECONDS)
    except HfHubHTTPError:
        return
    except Exception as error:  # those of the connection differ from version to version
        raise ConnectionError(
            f"{absent}; a model of this name is not in the cache, and the Hub does not answer: {error}"
        ) from error


def _has_model(folder: Path) -> bool:
    return any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))
