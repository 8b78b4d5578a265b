"""Pictures for vLLM: it gets a placeholder for each picture, and expands it again with the model's processor.

So the prompt that vLLM reports is its own expansion, and `tokens/drift` compares it with the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ...envs.core import ConfigurationError
from ...envs.images import Image
from ...envs.tokens import Tokens
from ..models.images import ImageEncoder, blank


def collapsed(tokens: Tokens, placeholder_id: int | None) -> list[int]:
    """Return the ids with the placeholder alone for each image: vLLM would expand other ids a second time."""
    ids: list[Any] = [*tokens.ids]
    for span in reversed(tokens.images):
        ids[span.start : span.end] = [placeholder_id]
    return ids


def media(ids: Sequence[int], pictures: Sequence[Image]) -> dict[str, Any]:
    """Return the prompt of an engine in this process, with a placeholder among the ids for each picture."""
    return {
        "prompt_token_ids": list(ids),
        "multi_modal_data": {"image": [picture.open() for picture in pictures]},
        "multi_modal_uuids": {"image": [picture.digest for picture in pictures]},
    }


def content_parts(pictures: Sequence[Image]) -> list[dict[str, str]]:
    """Return the pictures as a server's endpoint for tokens takes them."""
    # A server would turn a photo by its EXIF data, and put white behind transparent pixels.
    return [{"type": "image_url", "url": picture.plain.data_uri, "uuid": picture.digest} for picture in pictures]


def probe(images: ImageEncoder) -> Tokens:
    """Return a prompt for `check_expansion`: two pictures of different sizes between lines."""
    line = Tokens(images.processor.tokenizer("\n", add_special_tokens=False)["input_ids"])
    return line + line + images.tokens(blank(128, 64)) + images.tokens(blank(192, 96)) + line + line


def check_expansion(sent: Tokens, ids: Sequence[int] | Exception, place: str) -> None:
    """Raise a ConfigurationError unless vLLM expands the `probe` to the same ids; `ids` may be the error it raised."""
    if isinstance(ids, Exception):
        problem = f"fails for a picture of this model ({type(ids).__name__}: {ids})"
    elif list(ids) != sent.ids:
        same = next(i for i, (theirs, own) in enumerate(zip_longest(ids, sent.ids)) if theirs != own)
        problem = f"makes other tokens of a prompt with pictures than this model's processor: {len(ids)} and "
        problem += f"{len(sent)} tokens, of which the first {same} are the same"
    else:
        return
    raise ConfigurationError(
        f"{place} {problem}, so what it samples could not be learned from: use generator='transformers'"
    )
