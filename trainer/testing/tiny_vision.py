"""A tiny Qwen3-VL with its own processor, for tests, demos and continuous integration without downloads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from ..models.internals import without_videos
from .tiny import CHAT_TEMPLATE, Conversation, make_tiny_tokenizer, rendered, seeded, text_options

START, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
PATCH, MERGE = 8, 2  # an image token stands for PATCH * MERGE pixels in both directions
_TEXT_PARTS = "{%- for part in content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}"
assert _TEXT_PARTS in CHAT_TEMPLATE


def shows_images(tokenizer: PreTrainedTokenizerFast, image: str, tokens: Iterable[str]) -> PreTrainedTokenizerFast:
    """Add special tokens to a tiny tokenizer, and let its chat template write `image` for a picture."""
    added: Any = [AddedToken(token, special=True, normalized=False) for token in tokens]
    tokenizer.add_tokens(added)
    parts = f"{{%- for part in content -%}}{{{{- part.text if part.type == 'text' else {image!r} -}}}}{{%- endfor -%}}"
    tokenizer.chat_template = CHAT_TEMPLATE.replace(_TEXT_PARTS, parts)
    return tokenizer


def make_tiny_processor(texts: Iterable[str], vocab_size: int = 1024) -> Any:
    """Return a processor of Qwen3-VL, whose tokenizer is trained on these texts; see `make_tiny_tokenizer`."""
    tokens = (START, END, IMAGE, VIDEO)
    tokenizer = shows_images(make_tiny_tokenizer(texts, vocab_size - len(tokens)), START + IMAGE + END, tokens)
    size = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 2**20}
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=1, size=size)
    return without_videos(Qwen3VLProcessor)(images, tokenizer, chat_template=tokenizer.chat_template)


def processor_for(conversations: Iterable[Conversation], vocab_size: int = 1024) -> Any:
    """Return a processor whose tokenizer is trained on these conversations, as `tokenizer_for` does."""
    return make_tiny_processor(rendered(conversations), vocab_size)


def make_tiny_vision_model(
    processor: Any, *, seed: int = 0, hidden_size: int = 128, num_layers: int = 2, vision_size: int = 64
) -> Qwen3VLForConditionalGeneration:
    """Build a randomly initialised fp32 Qwen3-VL on the CPU, in eval mode; the global random state is left as it was.

    `hidden_size` is a multiple of 32, a head's size; the context is that of `make_tiny_model`.
    """
    tokenizer = processor.tokenizer
    start, end, image, video = tokenizer.convert_tokens_to_ids([START, END, IMAGE, VIDEO])
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [8, 4, 4], "mrope_interleaved": True}
    text = text_options(tokenizer, hidden_size, num_layers) | {"rope_parameters": rope}
    vision = {
        "depth": 2,
        "hidden_size": vision_size,
        "intermediate_size": 2 * vision_size,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 1,
        "out_hidden_size": hidden_size,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0],
        "initializer_range": vision_size**-0.5,
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        dtype=torch.float32,
    )
    model = seeded(seed, lambda: Qwen3VLForConditionalGeneration(config))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model
