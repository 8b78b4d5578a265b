"""Images through exact tokens: five families, from messages to the log-probabilities of the loss."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlavaOnevisionConfig, LlavaOnevisionProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

from gymnast.envs import ConfigurationError, Message, TokenTrace
from gymnast.envs.images import Image
from gymnast.trainer import Sampling
from gymnast.trainer.chat.chat_format import ChatFormat
from gymnast.trainer.generation.contract import GenerationRequest, Generator
from gymnast.trainer.generation.transformers_generator import TransformersGenerator
from gymnast.trainer.learning.logprobs import token_logprobs
from gymnast.trainer.learning.samples import Sample, make_micro_batch
from gymnast.trainer.models.images import ImageEncoder, blank
from gymnast.trainer.models.internals import without_videos
from gymnast.trainer.models.output_head import OutputHead
from gymnast.trainer.setup.model_facts import model_facts

from ..envs.pictures import picture
from .families import FAMILIES, TEXT, TOWER, make, tokenizer_with

SIZES = [(32, 32), (64, 48), (48, 96), (32, 64), (80, 48)]
PICTURES = [picture(seed, width=width, height=height) for seed, (width, height) in enumerate(SIZES)]


@cache
def family(name: str) -> tuple[Any, Any, ImageEncoder, ChatFormat]:
    processor, model = make(name)
    images = ImageEncoder(processor)
    return processor, model, images, ChatFormat(processor.tokenizer, images=images)


def user(*parts: str | Image) -> Message:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    return {"role": "user", "content": content}


def as_pillow(message: Message) -> dict[str, Any]:
    parts: Any = message.get("content")
    shown = [{"type": "image", "image": p["image"].open()} if p["type"] == "image" else p for p in parts]
    return {**message, "content": shown}


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_the_processor(name: str) -> None:
    processor, _, images, chat = family(name)
    messages = [user("hello ", PICTURES[0], PICTURES[1], "\n\nwhat do you see?"), user(PICTURES[2])]
    tokens = chat.prompt_tokens(messages, [])
    expected = processor.apply_chat_template(
        [as_pillow(message) for message in messages],
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        chat_template=processor.tokenizer.chat_template,
    )
    assert tokens.ids == expected["input_ids"][0]
    assert tokens.pictures == PICTURES[:3]
    soft = [token in images.token_ids for token in tokens.ids]
    inside = [any(span.start <= place < span.end for span in tokens.images) for place in range(len(tokens))]
    assert [a and not b for a, b in zip(soft, inside, strict=True)] == [False] * len(soft)
    assert all(any(soft[span.start : span.end]) for span in tokens.images)


@pytest.mark.parametrize("name", FAMILIES)
def test_observations_show_pictures_in_every_role_and_none_is_forged(name: str) -> None:
    _, _, images, chat = family(name)
    forged = f"a page with {images.placeholder}, \ufdd10\ufdd2, \\ufdd10\\ufdd2 and {images.text(PICTURES[0])}"
    results: list[Message] = [{"role": "tool", "name": "shot", "content": [*user(forged, PICTURES[3])["content"]]}]  # type: ignore[typeddict-item,list-item]
    tokens = chat.observation_tokens([*results, user(PICTURES[4], PICTURES[3])], ended_by=None, last=False)
    assert tokens.pictures == [PICTURES[3], PICTURES[4], PICTURES[3]]
    outside = [i for place, i in enumerate(tokens.ids) if not any(s.start <= place < s.end for s in tokens.images)]
    assert not images.token_ids.intersection(outside)


async def converse(name: str, generator: Generator, count: int) -> TokenTrace:
    """Play three turns with `count` pictures in the prompt, and more in the observations."""
    _, _, images, chat = family(name)
    sampling = Sampling(forbidden=images.token_ids)
    trace = TokenTrace.of(chat.prompt_tokens([user("hello ", *PICTURES[:count], " what")], []))
    for turn in range(3):
        request = GenerationRequest(
            prompt=trace.tokens, max_tokens=4 + count, stop_ids=chat.end_ids, seed=turn + 10 * count, sampling=sampling
        )
        answer = await generator.generate(request)
        assert answer.prompt_ids == trace.ids
        trace.append_sampled(answer.token_ids, answer.logprobs)
        ended_by = answer.token_ids[-1] if answer.token_ids[-1] in chat.end_ids else None
        seen = PICTURES[turn : turn + (turn + count) % 3]
        result: Any = user("see ", *seen) | ({"role": "tool", "name": "shot"} if turn else {})
        trace.append_observation(chat.observation_tokens([result], ended_by=ended_by, last=False))
    return trace


@cache
def traces(name: str) -> list[TokenTrace]:
    _, model, images, _ = family(name)
    generator = TransformersGenerator(model, images=images, max_batch_size=3)  # so rows join and leave batches
    generator.load_weights(model, 0)

    async def play() -> list[TokenTrace]:
        return await asyncio.gather(*[converse(name, generator, count) for count in (0, 1, 2, 5)])

    try:
        return asyncio.run(play())
    finally:
        generator.close()


def scores(name: str, samples: Sequence[Sample], *, with_head: bool = True, model: Any = None) -> torch.Tensor:
    _, made, images, _ = family(name)
    model = model or made
    batch = make_micro_batch(samples)
    head = OutputHead.of(model) if with_head else None
    logprobs_BT, entropies_BT = token_logprobs(
        model,
        batch["inputs"],
        batch["places"],
        keep=batch["mask"].shape[1],
        temperature=1.0,
        head=head,
        entropy="value",
        images=images,
        pictures=batch["pictures"],
    )
    assert entropies_BT is not None
    assert torch.isfinite(entropies_BT).all()
    return (logprobs_BT - batch["sampling_logprobs"]).flatten()[batch["places"]].detach()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_sampler_agrees_with_one_forward_pass_and_pictures_matter(name: str) -> None:
    samples = [Sample.of(trace) for trace in traces(name)]
    assert scores(name, samples).abs().max() < 1e-5
    assert scores(name, samples, with_head=False).abs().max() < 1e-5
    assert torch.cat([scores(name, [sample]) for sample in samples]).abs().max() < 1e-5
    others = copy.deepcopy(samples)
    for sample in others:
        sample.images = [
            type(span)(span.start, span.length, picture(9, width=span.image.width, height=span.image.height))
            for span in sample.images
        ]
    assert scores(name, others).abs().max() > 0.1


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-6)], ids=["single", "double"]
)
@pytest.mark.parametrize(("name", "adapter"), [*((name, False) for name in FAMILIES), ("qwen3_vl", True)])
def test_gradients_are_the_same_for_every_cut_into_micro_batches(
    name: str, adapter: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """A row without pictures too, behind which one stands where it is alone; an adapter on the vision tower, too.

    In double precision rounding is small, so the bound shows that no row reads another.
    """
    _, model, images, _ = family(name)
    if dtype is torch.float64:
        model = copy.deepcopy(model).to(dtype)
    if adapter:
        lora = LoraConfig(r=2, target_modules=["q_proj", "linear_fc1"], init_lora_weights=False)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = get_peft_model(copy.deepcopy(model), lora).eval()
    samples = [Sample.of(trace) for trace in traces(name)]  # the first has pictures in observations only
    text = TokenTrace(prompt_ids=samples[0].prompt_ids)
    text.append_sampled([5, 6, 7], [-1.0] * 3)
    samples = [Sample.of(text), *samples]

    def gradient(cuts: Sequence[int]) -> torch.Tensor:
        model.zero_grad()
        rest = list(samples)
        for cut in cuts:
            part, rest = rest[:cut], rest[cut:]
            batch = make_micro_batch(part, picture=images.tokens(blank(32, 32)))
            options = {"images": images, "pictures": batch["pictures"], "temperature": 1.0}
            assert any(batch["pictures"])
            keep = batch["mask"].shape[1]
            logprobs_BT, _ = token_logprobs(model, batch["inputs"], batch["places"], keep=keep, **options)
            logprobs_BT.sum().backward()
        grads = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        return torch.cat(grads)

    whole = gradient([5])
    assert whole.abs().max() > 0.1
    for cuts in ([1, 4], [3, 2], [1, 1, 1, 1, 1]):
        assert (gradient(cuts) - whole).abs().max() <= tolerance * whole.abs().max()


def test_the_policy_never_samples_the_token_of_an_image() -> None:
    _, model, images, chat = family("qwen3_vl")
    likely = copy.deepcopy(model)
    with torch.no_grad():
        likely.lm_head.weight = torch.nn.Parameter(likely.lm_head.weight.clone())
        likely.lm_head.weight[sorted(images.token_ids)] *= 100
    generator = TransformersGenerator(likely, images=images)
    generator.load_weights(likely, 0)
    sampling = Sampling(forbidden=images.token_ids)
    prompt = chat.prompt_tokens([user("hello", PICTURES[0])], [])
    request = GenerationRequest(prompt=prompt, max_tokens=200, stop_ids=frozenset(), seed=0, sampling=sampling)
    try:
        answer = asyncio.run(generator.generate(request))
    finally:
        generator.close()
    assert not images.token_ids.intersection(answer.token_ids)


def test_a_model_without_a_way_for_images_is_refused() -> None:
    processor, _, images, _ = family("qwen3_vl")
    tokenizer = copy.copy(processor.tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(images.placeholder, "")
    with pytest.raises(ConfigurationError, match=r"the chat template writes .* for one in a user's message, without"):
        ChatFormat(tokenizer, images=images)
    failing = f"{{{{ raise_exception('no {images.placeholder}') }}}}"
    failing = f"{{% if messages[0]['content'] is not string %}}{failing}{{% endif %}}"
    tokenizer.chat_template = failing + processor.tokenizer.chat_template
    with pytest.raises(ConfigurationError, match=r"the chat template fails where a user's message has one \(no "):
        ChatFormat(tokenizer, images=images)
    with pytest.raises(ConfigurationError, match="takes no images: it has no image_processor"):
        ImageEncoder(tokenizer)


def test_a_family_whose_pictures_change_each_other_is_refused(tmp_path: Path) -> None:
    tokenizer = tokenizer_with("<image>", "<image>", "<video>")
    images = LlavaOnevisionImageProcessorPil(
        size={"height": 32, "width": 32}, image_grid_pinpoints=[[32, 32], [32, 64]]
    )
    options: dict[str, Any] = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    processor = without_videos(LlavaOnevisionProcessor)(images, tokenizer, **options)
    with pytest.raises(ConfigurationError, match="writes an image with other tokens if there is a second one"):
        ImageEncoder(processor)
    processor.save_pretrained(tmp_path)
    tower, text = {**TOWER, "model_type": "siglip_vision_model"}, {**TEXT, "vocab_size": len(tokenizer)}
    LlavaOnevisionConfig(text_config=text, vision_config=tower).save_pretrained(tmp_path)
    facts = model_facts(str(tmp_path), [([{"role": "user", "content": "look"}], [])], None)
    assert "if there is a second one, so a conversation with images cannot be continued" in facts.problem
