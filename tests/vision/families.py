"""Tiny models of five families that take images, made from code, each with its processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from gymnast.trainer.models.internals import without_videos
from gymnast.trainer.testing.tiny import make_tiny_tokenizer
from gymnast.trainer.testing.tiny_vision import (
    END,
    IMAGE,
    START,
    VIDEO,
    make_tiny_processor,
    make_tiny_vision_model,
    shows_images,
)

TEXTS = ["hello what do you see"] * 3
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT: dict[str, Any] = SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 2048}
# hidden_size ** -0.5, as in `make_tiny_vision_model`. With 0.2 logits are larger, and so are their errors in float32:
# one forward pass of Qwen2.5-VL is then up to 7e-6 from that in float64, and two ways to compute it 1.3e-5 apart.
TEXT |= {"initializer_range": 0.125}
TOWER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "image_size": 32}
TOWER |= {"num_hidden_layers": 2, "patch_size": 8}


def tokenizer_with(image: str, *tokens: str) -> Any:
    return shows_images(make_tiny_tokenizer(TEXTS, 300), image, tokens)


def qwen3_vl() -> tuple[Any, Any]:
    processor = make_tiny_processor(TEXTS, 304)
    return processor, make_tiny_vision_model(processor, hidden_size=64, vision_size=32)


def qwen2_5_vl() -> tuple[Any, Any]:
    tokenizer = tokenizer_with(START + IMAGE + END, START, END, IMAGE, VIDEO)
    size = {"shortest_edge": 256, "longest_edge": 2**20}
    images = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, temporal_patch_size=1, size=size)
    start, end, image, video = tokenizer.convert_tokens_to_ids([START, END, IMAGE, VIDEO])
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]}
    own = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2_5_VLConfig(
        text_config=TEXT | own | {"rope_parameters": rope},
        vision_config={
            **{"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8},
            **{"spatial_merge_size": 2, "temporal_patch_size": 1, "out_hidden_size": 64, "window_size": 32},
            **{"fullatt_block_indexes": [1], "initializer_range": 0.2},
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )
    return without_videos(Qwen2_5_VLProcessor)(images, tokenizer), Qwen2_5_VLForConditionalGeneration(config)


def gemma3() -> tuple[Any, Any]:
    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    lines = ["\n" * count for count in range(1, 5)]
    tokenizer = tokenizer_with("<start_of_image>", *tokens.values(), *lines)
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    images = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    layers = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    config = Gemma3Config(
        text_config=TEXT | {"vocab_size": len(tokenizer), "head_dim": 32, **layers},
        vision_config=TOWER,
        mm_tokens_per_image=4,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    model = Gemma3ForConditionalGeneration(config)
    # It is made of zeros, and every picture would look alike.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.2)
    return Gemma3Processor(images, tokenizer, image_seq_length=4), model


def llava() -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<image>", "<image>")
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    options: dict[str, Any] = {"patch_size": 8, "vision_feature_select_strategy": "default"}
    processor = LlavaProcessor(images, tokenizer, image_token="<image>", num_additional_image_tokens=1, **options)
    config = LlavaConfig(
        text_config=TEXT | {"model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config=TOWER | {"model_type": "clip_vision_model", "num_hidden_layers": 3},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    return processor, LlavaForConditionalGeneration(config)


def idefics3() -> tuple[Any, Any]:
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    others = ("<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
    tokenizer = tokenizer_with("<image>", "<image>", *others, *tiles)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    config = Idefics3Config(
        text_config=TEXT | {"model_type": "llama", "vocab_size": len(tokenizer), "pad_token_id": 0},
        vision_config=TOWER,
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
    )
    return Idefics3Processor(images, tokenizer, image_seq_len=4), Idefics3ForConditionalGeneration(config)


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    item.__name__: item for item in (qwen3_vl, qwen2_5_vl, gemma3, llava, idefics3)
}


def make(name: str) -> tuple[Any, Any]:
    """Return the processor and the model of a family, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        processor, model = FAMILIES[name]()
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    return processor, model.eval()
