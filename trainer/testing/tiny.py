"""A tiny Qwen3 chat model with its own tokenizer, for tests, demos and continuous integration without downloads.

`make_tiny_tokenizer` is trained on the domain's own text, so that prompts are a few dozen tokens. `make_tiny_model` has
random weights. `warm_up` takes supervised steps, so that learning starts from a model that sometimes succeeds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ...envs.images import Image, images_of
from ..models.images import ImageEncoder

Conversation = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]
"""Chat messages, and the schemas of the tools that they may call (None: no tools)."""

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MAX_TOKENS = 2048

# Appending messages never changes earlier text, with one exception that merging implies: a tool message that follows
# a tool message goes into the same user turn, so results of one assistant turn are to be appended together.
# Tools are named on one line: the tokenizer makes a line that it has seen often into a single token.
CHAT_TEMPLATE = r"""
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content -%}
        {%- for part in content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set system = text(messages[0].content) if messages and messages[0].role == 'system' else '' -%}
{%- if tools -%}
    {{- '<|im_start|>system\n' ~ (system ~ '\n\n' if system else '') ~ 'Tools: ' -}}
    {%- for tool in tools -%}
        {%- set function = tool.function or tool -%}
        {{- function.name ~ '(' ~ ((function.parameters or {}).properties or {}) | join(', ') ~ ')' -}}
        {{- '' if loop.last else ', ' -}}
    {%- endfor -%}
    {{- '\nTo call: <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call><|im_end|>\n' -}}
{%- elif messages and messages[0].role == 'system' -%}
    {{- '<|im_start|>system\n' ~ system ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '\n' if loop.previtem and loop.previtem.role == 'tool' else '<|im_start|>user\n' -}}
        {{- '<tool_response>\n' ~ text(message.content) ~ '\n</tool_response>' -}}
        {{- '' if loop.nextitem and loop.nextitem.role == 'tool' else '<|im_end|>\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\n' -}}
        {{- '<think>\n' ~ message.reasoning_content ~ '\n</think>\n\n' if message.reasoning_content else '' -}}
        {%- set content = text(message.content) -%}
        {{- content -}}
        {%- for tool_call in message.tool_calls or [] -%}
            {%- set call = tool_call.function or tool_call -%}
            {%- set arguments = call.arguments if call.arguments is string else (call.arguments or {}) | tojson -%}
            {{- '\n' if content or not loop.first else '' -}}
            {{- '<tool_call>\n{"name": ' ~ call.name | tojson ~ ', "arguments": ' ~ arguments ~ '}\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- elif not (loop.first and message.role == 'system') -%}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ text(message.content) ~ '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}
"""
"""Our own short template in the style of Qwen: `im_start` turns, JSON calls in `tool_call`, merged tool results."""


def make_tiny_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on rendered conversations, in which a line seen often becomes very few tokens.

    Digits stay single and no token reaches beyond a line end, so tokens of a prompt never depend on what follows it.
    Every string round-trips exactly. `len(tokenizer)` is at most `vocab_size` (265 or more: the 256 bytes and the
    special tokens), less where `texts` hold fewer repeats.
    """
    special = (PAD, TURN_START, TURN_END)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKERS),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[*special],
        show_progress=False,
    )
    # Training does not know the added tokens: without this split it would spend merges on their characters.
    marker = re.compile("|".join(map(re.escape, (*special, *MARKERS))))
    backend.train_from_iterator((piece for text in texts for piece in marker.split(text)), trainer=trainer)
    # Not special, as in Qwen3: decoding with skip_special_tokens=True must leave them for the tool-call parser.
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=PAD,
        extra_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )


def tokenizer_for(conversations: Iterable[Conversation], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train a tokenizer on these conversations as its own chat template renders them."""
    return make_tiny_tokenizer(rendered(conversations), vocab_size)


def rendered(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Yield conversations as the chat template renders them, without their pictures."""
    render: Any = make_tiny_tokenizer([]).apply_chat_template
    for messages, tools in conversations:
        yield render(messages, tools=tools, tokenize=False)


def make_tiny_model(
    tokenizer: PreTrainedTokenizerBase, *, seed: int = 0, hidden_size: int = 128, num_layers: int = 2
) -> Qwen3ForCausalLM:
    """Build a randomly initialised fp32 Qwen3 on the CPU, in eval mode; the global random state is left as it was.

    `hidden_size` is a multiple of 32, a head's size; the context is 2048 tokens.
    """
    options = text_options(tokenizer, hidden_size, num_layers)
    config = Qwen3Config(**options, tie_word_embeddings=True, dtype=torch.float32)
    return seeded(seed, lambda: Qwen3ForCausalLM(config))


def text_options(tokenizer: Any, hidden_size: int, num_layers: int) -> dict[str, Any]:
    """Return the options of a tiny language model of the Qwen3 family."""
    heads = hidden_size // 32
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 32,
        "max_position_embeddings": MAX_TOKENS,
        # The usual 0.02 is meant for wide models; here it delays learning to copy by 50 to 150 steps, by seed.
        "initializer_range": hidden_size**-0.5,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    """Make a model of float32 on the CPU with random weights that follow from the seed, in eval mode."""
    # torch.manual_seed would also seed the accelerators, which nothing would restore.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return make().float().eval()


def warm_up(
    model: PreTrainedModel,
    processing: PreTrainedTokenizerBase | ProcessorMixin,
    conversations: Sequence[Conversation],
    *,
    steps: int = 100,
    batch_size: int = 32,
    learning_rate: float = 3e-3,
    seed: int = 0,
    until: Callable[[], bool] | None = None,
    bf16: bool = False,
) -> float:
    """Fine-tune `model` in place on the assistant turns of demonstrations and leave it in eval mode.

    `processing` is its tokenizer, or the processor of a model that takes images, which demonstrations may then show. A
    step of AdamW takes `batch_size` demonstrations, in an order that follows from `seed`. `until` is asked after each
    step, with the model in eval mode, and ends the warm-up when it returns True. `bf16` computes in bfloat16, as the
    option of a trainer does. Return the last step's loss: the mean over the batch's assistant tokens, in nats.

    Raises:
        ValueError: there are no conversations, one has no assistant turn, or one is longer than the model's context.
    """
    if not conversations:
        raise ValueError("warm_up needs conversations")
    images = None if isinstance(processing, PreTrainedTokenizerBase) else ImageEncoder(processing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    order = _endless_order(len(conversations), seed)
    tokenized = cache(lambda index: _tokenize(processing, images, *conversations[index]))
    loss = torch.tensor(0.0)
    for _ in range(steps):
        model.train()
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            loss = _loss(model, images, [tokenized(next(order)) for _ in range(batch_size)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.eval()
        if until is not None and until():
            break
    return loss.item()


def _endless_order(count: int, seed: int) -> Iterator[int]:
    """Yield every index once in an epoch, in a new seeded order each time."""
    generator = random.Random(seed)
    while True:
        yield from generator.sample(range(count), count)


def _tokenize(
    processing: Any,
    images: ImageEncoder | None,
    messages: Any,
    tools: Sequence[Mapping[str, Any]] | None,
) -> tuple[list[int], list[int], list[Image]]:
    """Return one demonstration as (ids_T, labels_T, its pictures); labels are -100 outside the assistant's turns."""
    tokenizer = processing if images is None else processing.tokenizer
    text: str = tokenizer.apply_chat_template(list(messages), tools=list(tools) if tools else None, tokenize=False)
    # Alternately context and assistant turn. Each is tokenized by itself, as it is in a rollout, where the model
    # samples the turn after the tokens of the context.
    start, end = re.escape(TURN_START + "assistant\n"), re.escape(TURN_END)
    *segments, _after_last_turn = re.split(f"(?<={start})(.*?{end})", text, flags=re.DOTALL)
    if not segments:
        raise ValueError(f"a demonstration has no assistant turn: {str([*messages])[:200]}")
    shown = list[Image]()
    if images is not None:
        # The placeholders behind the last answer, if any, belong to the last pictures.
        shown = images_of(messages)[: sum(segment.count(images.placeholder) for segment in segments)]
        texts = map(images.text, shown)
        segments = [re.sub(re.escape(images.placeholder), lambda _: next(texts), segment) for segment in segments]
    tokens = [tokenizer.encode(segment, add_special_tokens=False) for segment in segments]
    ids = [*chain(*tokens)]
    labels = [*chain(*(own if index % 2 else [-100] * len(own) for index, own in enumerate(tokens)))]
    if len(ids) > MAX_TOKENS:
        raise ValueError(f"a demonstration has {len(ids)} tokens; the model's context is {MAX_TOKENS}")
    return ids, labels, shown


def _loss(
    model: Any, images: ImageEncoder | None, rows: Sequence[tuple[list[int], list[int], list[Image]]]
) -> torch.Tensor:
    """Return the mean cross-entropy of the assistant's tokens; right padding needs no mask: attention is causal."""
    length = max(len(ids) for ids, _, _ in rows)
    ids_BT = torch.tensor([ids + [0] * (length - len(ids)) for ids, _, _ in rows], device=model.device)
    labels_BT = torch.tensor([labels + [-100] * (length - len(labels)) for _, labels, _ in rows], device=model.device)
    inputs = {"input_ids": ids_BT}
    if images is not None:
        inputs = images.inputs(ids_BT, torch.ones_like(ids_BT), [shown for _, _, shown in rows])
    logits_BTV = model(**inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten())
