"""A check of a model's name, so that a wrong one is told at once: transformers would try the Hub for a minute."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

SECONDS = 10.0  # until the Hub must answer


def check_model_name(name: str, init_kwargs: Mapping[str, Any]) -> None:
    """Check that there is a folder of this name with a model, or that the cache has the model, or the Hub answers.

    The answer of the Hub, such as "unknown" or "private", is left to transformers, which explains it.

    Raises:
        FileNotFoundError: the folder has no model.
        ConnectionError: there is no such folder, and the Hub cannot be reached.
    """
    if "subfolder" in init_kwargs:
        return
    if Path(name).is_dir():
        if not any((Path(name) / file).is_file() for file in ("config.json", "adapter_config.json")):
            raise FileNotFoundError(f"the folder {name} has no config.json, so it is not that of a model")
        return
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
        near = difflib.get_close_matches(name, [path.name for path in Path().iterdir() if path.is_dir()], n=1)
        raise ConnectionError(
            f"there is no folder {name!r} here{f' (did you mean {near[0]!r}?)' if near else ''}; a model of this name "
            f"is not in the cache, and the Hub does not answer: {error}"
        ) from error
