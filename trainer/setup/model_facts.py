"""Facts about a model and its chat template, for `gymnast check --model`. The weights are not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, GenerationConfig

from ...envs.core import Message, ToolSchema
from ...envs.images import Image
from ..chat.chat_format import ChatFormat
from ..models.images import ImageEncoder, blank
from ..options.algorithms import GRPOConfig
from .loading import auto_class
from .model_name import check_model_name
from .player import end_token_ids
from .processing import load_processing

IMAGE_SIZES = ((512, 384), (1280, 720))


@dataclass(kw_only=True)
class ModelFacts:
    """What a training with this model would meet."""

    parameters: int
    vocabulary: int
    context: int | None  # tokens that the model takes; None if its config does not say
    problem: str = ""  # why it cannot play at all; the fields below are then empty
    tool_format: str = ""  # its name; empty if the template has none
    reason: str = ""  # why this format was taken
    described_in_prompt: bool = False  # the template has no place for tools, so gymnast writes them into the prompt
    round_trip: str | None = None  # "" if a call is read back as it was written, else the difference; None: not tried
    end_tokens: list[str] = field(default_factory=list)  # each of them ends an answer
    prompt_tokens: list[int] = field(default_factory=list)  # of each prompt
    image_costs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """If the model takes images: by size, such as "512x384", the tokens of a picture, and the bytes of its features."""
    episode_tokens: int = GRPOConfig.max_completion_length  # the default of a training
    batch_episodes: int = GRPOConfig.per_device_train_batch_size


def model_facts(
    model: str,
    prompts: Sequence[tuple[list[Message], list[ToolSchema]]],
    call: Message | None,
    tool_format: str | None = None,
) -> ModelFacts:
    """Return the facts about a model of the Hub or in a folder.

    `prompts` are the first messages and the tools of some tasks. `call` is a message that calls a tool of the first
    task, for the round trip; None without tools. Without `tool_format`, a name, that of the chat template counts. Raise
    an OSError if there is no such model, or it has no tokenizer.
    """
    check_model_name(model, {})
    config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):  # shapes only
        empty = auto_class(config).from_config(config)
    text_config = config.get_text_config()
    facts = ModelFacts(
        parameters=sum(parameter.numel() for parameter in empty.parameters()),
        vocabulary=text_config.vocab_size,
        context=getattr(text_config, "max_position_embeddings", None),
    )
    try:
        tokenizer, images = load_processing(empty, None)
        chat = ChatFormat(tokenizer, tool_format=tool_format, end_token_ids=_end_ids(model), images=images)
        if images is not None:
            for width, height in IMAGE_SIZES:
                facts.image_costs[f"{width}x{height}"] = _image_cost(images, blank(width, height))
        for _, tools in prompts:
            chat.check_tools(tools)
        facts.prompt_tokens = [sum(map(len, chat.begin(messages, tools))) for messages, tools in prompts]
    except ValueError as error:  # of the template, or of one prompt
        facts.problem = str(error)
        return facts
    recognition = chat.recognition
    if recognition.format is not None:
        facts.tool_format = getattr(recognition.format, "name", type(recognition.format).__name__)
    facts.reason, facts.described_in_prompt = recognition.reason, recognition.described_in_prompt
    facts.end_tokens = sorted(chat.template.decode([token]) for token in chat.end_ids)
    if call is not None and not recognition.described_in_prompt:
        facts.round_trip = _round_trip(chat, *prompts[0], call)
    return facts


def _image_cost(images: ImageEncoder, image: Image) -> tuple[int, int]:
    return len(images.tokens(image)), sum(value.nbytes for value in images.features([[image]]).values())


def _end_ids(model: str) -> list[int]:
    try:
        return end_token_ids(GenerationConfig.from_pretrained(model))
    except OSError:  # the tokenizer's own token counts in any case
        return []


def _round_trip(chat: ChatFormat, messages: list[Message], tools: list[ToolSchema], call: Message) -> str | None:
    """Let the template write a call, and read it as an answer of the model."""
    messages = messages[:-1] if messages[-1:] and messages[-1]["role"] == "assistant" else messages
    begun = chat.template.render(chat.endings.in_style(messages), tools=tools, more=True)
    whole = chat.template.render(chat.endings.in_style([*messages, call]), tools=tools)
    if not whole.startswith(begun):
        return None  # the template writes finished answers in another way, for instance without thoughts
    prompt, answer_ids = chat.template.encode(begun), chat.template.encode(whole.removeprefix(begun)).ids
    last = next((place for place, token in enumerate(answer_ids) if token in chat.end_ids), len(answer_ids))
    read = chat.parse(prompt, answer_ids[: last + 1], tools)
    written = [(call["function"]["name"], call["function"]["arguments"]) for call in call.get("tool_calls", ())]
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in read.get("tool_calls", ())]
    return "" if found == written else f"{written} was read as {found or read.get('content')!r}"
