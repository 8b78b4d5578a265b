"""ImageEncoder: what a model's processor makes of pictures, as text for the tokenizer and as features for the model.

There is no table of model families: the processor itself makes the features of each forward pass, so they are right by
construction, and what must hold for exact tokens is tried once, when the encoder is made.

Axes: B rows of one forward pass; L tokens of a row.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...envs.core import ConfigurationError
from ...envs.images import Image
from ...envs.tokens import ImageSpan, Tokens
from .output_head import inner_model

REMEMBERED = 4096  # texts of images
SHRUNK = 256  # pictures that were made smaller, which takes as long as their features; decoded ones would fill memory


class ImageEncoder:
    """The way of a processor with images; it needs an image processor and a tokenizer.

    `max_pixels`: larger pictures are made smaller before the processor sees them.

    Attributes:
        placeholder: The token that the chat template writes for an image.
        token_ids: The tokens whose embeddings are replaced, which the policy never samples: of images, videos, sounds.

    Raises:
        ConfigurationError: the processor takes no images, or an image changes the tokens of another one, so that tokens
            could not be appended.
    """

    def __init__(self, processor: Any, *, max_pixels: int | None = None) -> None:
        self.max_pixels = max_pixels
        self.placeholder: str = getattr(processor, "image_token", None) or ""
        name = type(processor).__name__
        if not self.placeholder or not hasattr(processor, "image_processor"):
            raise ConfigurationError(f"{name} takes no images: it has no image_processor or no image_token")
        self.processor = processor
        # A copy for one thread at a time: a call with padding changes the tokenizer.
        self._processor, self._lock = copy.deepcopy(processor), threading.Lock()
        of_tokens = (f"{kind}_token_ids" for kind in ("image", "video", "audio"))
        self.placeholder_id: int = processor.tokenizer.convert_tokens_to_ids(self.placeholder)
        self.token_ids = frozenset(i for of_kind in of_tokens for i in getattr(processor, of_kind, None) or () if i)
        self._texts: dict[str, str] = {}
        self._at_most = lru_cache(SHRUNK)(Image.at_most)  # the members of a group see the same first pictures
        both = [blank(128, 64), blank(192, 96)]
        made, together = self._replacements(both)
        if together != [self._replacements([image])[1][0] for image in both]:
            raise ConfigurationError(
                f"{name} writes an image with other tokens if there is a second one, so a conversation with images "
                f"cannot be continued token by token: use a model of another family"
            )
        self._type_name = next((name for name in made if name.endswith("token_type_ids")), None)

    def __reduce__(self) -> Any:
        return partial(type(self), max_pixels=self.max_pixels), (self.processor,)

    def shown(self, image: Image) -> Image:
        """Return the picture that the model sees: the image itself, or a smaller one."""
        return image if self.max_pixels is None else self._at_most(image, self.max_pixels)

    def text(self, image: Image) -> str:
        """Return the text that takes the place of the placeholder; `image` is one that is `shown`."""
        if image.digest not in self._texts:
            if len(self._texts) >= REMEMBERED:
                self._texts.clear()
            [text] = self._replacements([image])[1]
            self._texts[image.digest] = sys.intern(text)  # pictures of one size share it: it may have 10 kB
        return self._texts[image.digest]

    def inputs(self, ids_BL: Tensor, mask_BL: Tensor, images: Sequence[Sequence[Image]]) -> dict[str, Tensor]:
        """Return the model's arguments for these rows, each with its images in order; on the device of the ids."""
        found = {"input_ids": ids_BL, "attention_mask": mask_BL}
        if self._type_name is not None:
            image_ids = torch.tensor(sorted(self.processor.image_token_ids), device=ids_BL.device)
            found[self._type_name] = torch.isin(ids_BL, image_ids).long()
        if any(images):
            found |= {name: value.to(ids_BL.device) for name, value in self.features(images).items()}
        return found

    def features(self, images: Sequence[Sequence[Image]]) -> dict[str, Tensor]:
        """Return the model's arguments that the pictures of these rows add to those of the ids."""
        made = self._call([[*row] for row in images if row], padding=True, return_tensors="pt")
        of_ids = ("input_ids", "attention_mask", self._type_name)
        return {name: value for name, value in made.items() if name not in of_ids}

    def tokens(self, image: Image) -> Tokens:
        """Return the tokens of a picture that stands alone."""
        image = self.shown(image)
        ids = self.processor.tokenizer(self.text(image), add_special_tokens=False)["input_ids"]
        return Tokens(ids, (ImageSpan(0, len(ids), image),))

    def _replacements(self, images: Sequence[Image]) -> tuple[Mapping[str, Any], list[str]]:
        text = self.placeholder * len(images)
        made = self._call([images], text=[text], add_special_tokens=False, return_text_replacement_offsets=True)
        return made, [found["replacement"] for found in made["text_replacement_offsets"][0]]

    def _call(self, rows: Sequence[Sequence[Image]], **options: Any) -> Mapping[str, Any]:
        pictures = [[image.open() for image in row] for row in rows]
        with self._lock:
            return self._processor(images=pictures, **options)


def blank(width: int, height: int) -> Image:
    """Return a black picture of this size, to see how many tokens a processor gives it."""
    return Image.of(np.zeros((height, width, 3), np.uint8))


def backend_of(processor: Any) -> str | None:
    """Return the backend of a processor's pixels, "pil" or "torchvision": resizing rounds differently.

    None: the image processor has a way of its own.
    """
    return getattr(processor.image_processor, "backend", None)


def freeze_vision(model: nn.Module) -> None:
    """Leave the vision tower as it is: no gradient, and no activation is kept for one. The projector still trains.

    Raise a ConfigurationError if no weight of the tower is in training, or the model has no tower.
    """
    inner: Any = inner_model(model)
    tower = inner.get_encoder(modality="image")
    if tower is inner:  # transformers has found none
        raise ConfigurationError(f"{type(inner).__name__} has no vision tower of its own: leave freeze_vision out")
    # Families with a projector inside the tower, such as Qwen-VL and GLM-V, call it a merger.
    weights = [weight for name, weight in tower.named_parameters() if "merger" not in name]
    if not any(weight.requires_grad for weight in weights):
        raise ConfigurationError(
            "freeze_vision=True has no effect, since no weight of the vision tower is in training (an adapter is on "
            "the language model alone by default): leave it out"
        )
    for weight in weights:
        weight.requires_grad_(False)


def positions(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the positions of left-padded rows, (B, L); or (3, B, L) where the model has one for time, row and column.

    They are passed on in each step of decoding: the model's own memory of them is one for all batches.
    """
    mask_BL = inputs["attention_mask"]
    inner: Any = getattr(inner_model(model), "model", None)
    index = getattr(inner, "get_rope_index", None)
    positions_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
    if index is None:
        return positions_BL
    if not any(name.endswith("_grid_thw") for name in inputs):
        return positions_BL.expand(3, -1, -1)
    known = signature(index).parameters
    positions_3BL, _ = index(**{name: value for name, value in inputs.items() if name in known})
    return positions_3BL
