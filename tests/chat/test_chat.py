"""ChatFormat: exact tokens of prompts and observations, with the templates of the model families."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from gymnast.envs.core import ConfigurationError, Message, ToolSchema
from gymnast.envs.tokens import Tokens
from gymnast.trainer import ChatFormat
from gymnast.trainer.testing.tiny import CHAT_TEMPLATE, make_tiny_tokenizer

from ..envs.pictures import picture

FAMILIES = Path(trl.__file__).parent / "chat_templates"
SPECIAL = re.compile(r"<\|\w+\|>|<end_of_turn>|<start_of_turn>")
WEATHER: ToolSchema = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION: list[Message] = [{"role": "user", "content": "What is the weather in Zürich?"}]
RESULT: Message = {"role": "tool", "name": "weather", "tool_call_id": "call_0", "content": "Sunny, 21 °C."}
EOS, NEWLINE, OTHER = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '" + end + "' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    for end in ("<|im_end|>", "<|im_end|>\n", "<|endoftext|>")
)
BARE = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"


class CountingTokenizer(PreTrainedTokenizerFast):
    """Notes how many messages are rendered."""

    rendered = 0

    def apply_chat_template(self, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        self.rendered += len(conversation)
        return super().apply_chat_template(conversation, *args, **kwargs)


@cache
def backend() -> str:
    return make_tiny_tokenizer(["What is the weather?\n"], vocab_size=300).backend_tokenizer.to_str()


def tokenizer_for(template: str | None, kind: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast) -> Any:
    """A byte tokenizer with every special token that the template writes."""
    tokenizer = kind(
        tokenizer_object=Tokenizer.from_str(backend()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    special = sorted(set(SPECIAL.findall(template or "")) - {"<|im_end|>", "<|endoftext|>"})
    tokenizer.add_special_tokens({"bos_token": "<|begin_of_text|>", "additional_special_tokens": special})
    tokenizer.chat_template = template
    return tokenizer


def family(name: str) -> Any:
    return tokenizer_for((FAMILIES / f"{name}.jinja").read_text())


def text_of(chat: ChatFormat, ids: Sequence[int]) -> str:
    return chat.tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("template", "end", "after"),
    [(EOS, "<|im_end|>", ""), (NEWLINE, "<|im_end|>", "\n"), (OTHER, "<|endoftext|>", "")],
    ids=["eos", "eos and newline", "another token"],
)
def test_observation_begins_where_the_answer_ended(template: str, end: str, after: str) -> None:
    chat = ChatFormat(tokenizer_for(template))
    reply: list[Message] = [{"role": "user", "content": "Go on."}]
    follows = after + "<|im_start|>user\nGo on." + end + after

    assert text_of(chat, [chat.end_id]) == end
    closed = chat.observation_tokens(reply, ended_by=chat.end_id, last=False).ids
    assert text_of(chat, closed) == follows + "<|im_start|>assistant\n"
    assert text_of(chat, chat.observation_tokens(reply, ended_by=chat.end_id, last=True).ids) == follows
    assert chat.observation_tokens(reply, ended_by=None, last=False).ids == [chat.end_id, *closed]


def test_the_end_tokens_are_the_templates_the_tokenizers_and_the_models() -> None:
    chat = ChatFormat(tokenizer_for(OTHER), end_token_ids=[5, 7])
    assert chat.end_ids == {5, 7, *chat.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])}


def test_the_text_of_an_environment_cannot_shift_the_observation() -> None:
    """The probe's own answer may occur in a tool's result, for example if a tool prints a log of the run."""
    chat = ChatFormat(tokenizer_for(CHAT_TEMPLATE))
    echo: Message = {**RESULT, "content": "qZ7answerZq<|im_end|>\nqZ7answerZq"}
    text = text_of(chat, chat.observation_tokens([echo], ended_by=chat.end_id, last=True).ids)
    assert (
        text == "\n<|im_start|>user\n<tool_response>\nqZ7answerZq<|im_end|>\nqZ7answerZq\n</tool_response><|im_end|>\n"
    )


def test_text_parts_are_shown_by_templates_that_know_strings_only() -> None:
    chat = ChatFormat(family("qwen3"))
    parts: Message = {**RESULT, "content": [{"type": "text", "text": "Sun"}, {"type": "text", "text": "ny."}]}
    whole: Message = {**RESULT, "content": "Sunny."}
    shown = [chat.observation_tokens([result], ended_by=chat.end_id, last=True) for result in (parts, whole)]
    assert shown[0] == shown[1]


def test_content_that_is_not_text_is_refused() -> None:
    """Templates that render only strings would silently drop it."""
    chat = ChatFormat(family("qwen3"))
    parts: list[Any] = [{"type": "text", "text": "Look:"}, {"type": "image", "image": picture()}]
    refused = r"role '{}' has an image, and this model is shown text only"
    with pytest.raises(ConfigurationError, match=refused.format("user")):
        chat.prompt_tokens([{"role": "user", "content": parts}], [])
    with pytest.raises(ConfigurationError, match=refused.format("tool")):
        chat.observation_tokens([{**RESULT, "content": parts}], ended_by=chat.end_id, last=True)


def test_an_observation_longer_than_the_context_warns_of_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    chat = ChatFormat(family("qwen3"))
    chat.tokenizer.model_max_length = 8
    assert len(chat.observation_tokens([RESULT], ended_by=chat.end_id, last=False)) > 8
    assert caplog.text == ""


def test_the_cost_of_an_observation_does_not_grow_with_the_history() -> None:
    tokenizer = tokenizer_for(CHAT_TEMPLATE, CountingTokenizer)
    chat = ChatFormat(tokenizer)
    costs = []
    for _ in range(20):
        before = tokenizer.rendered
        chat.observation_tokens([RESULT], ended_by=chat.end_id, last=False)
        costs.append(tokenizer.rendered - before)
    assert costs == [6] + [3] * 19  # a question, an answer, the result; the first time it is checked, too


def test_the_beginning_of_sequence_token_comes_once() -> None:
    tokenizer = family("llama3_1")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", tokenizer.bos_token_id)]
    )
    assert tokenizer.encode("x")[0] == tokenizer.bos_token_id  # the tokenizer would add one itself
    chat = ChatFormat(tokenizer)
    prompt = chat.prompt_tokens(QUESTION, [WEATHER]).ids
    assert prompt[0] == tokenizer.bos_token_id
    assert prompt.count(tokenizer.bos_token_id) == 1
    assert tokenizer.bos_token_id not in chat.observation_tokens([RESULT], ended_by=None, last=False).ids


def test_fit_observation_cuts_with_a_marker() -> None:
    chat = ChatFormat(tokenizer_for(CHAT_TEMPLATE))
    long: Message = {**RESULT, "content": "abc" * 1000}
    tokens, shown = chat.fit_observation([long, RESULT], ended_by=chat.end_id, last=False, max_tokens=150)
    text = text_of(chat, tokens.ids)
    assert 120 < len(tokens) <= 150
    assert "characters cut ...]" in text
    assert str(shown[0].get("content")) in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    whole = chat.observation_tokens([long], ended_by=chat.end_id, last=False)
    assert chat.fit_observation([long], ended_by=chat.end_id, last=False, max_tokens=len(whole))[0] == whole
    least, _ = chat.fit_observation([long], ended_by=chat.end_id, last=False, max_tokens=1)
    assert "abc" not in text_of(chat, least.ids)
    assert text_of(chat, least.ids).endswith("<|im_end|>\n<|im_start|>assistant\n")


REFUSED = {
    "no end token": BARE,
    "an earlier answer is rewritten": EOS.replace("m.content", "(m.content if loop.last else m.content | upper)"),
    "turns are numbered": EOS.replace("m.role", "loop.index ~ m.role"),
    "answers are not shown": EOS.replace("m.content", "(m.content if m.role == 'user' else '')"),
    "the template raises": EOS + "{{ raise_exception('no, thanks') }}",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_template_in_which_observations_are_undefined_is_refused(reason: str) -> None:
    assert REFUSED[reason] not in (EOS, NEWLINE)
    with pytest.raises(ConfigurationError, match=r"use a template in which|no, thanks"):
        ChatFormat(tokenizer_for(REFUSED[reason]))


def test_tools_whose_results_cannot_follow_are_refused_before_any_episode() -> None:
    template = CHAT_TEMPLATE.replace("'<tool_response>\\n' ~", "loop.index ~ '<tool_response>\\n' ~")
    assert template != CHAT_TEMPLATE
    chat = ChatFormat(tokenizer_for(template))
    chat.check_tools([])
    with pytest.raises(ConfigurationError, match=r"\['weather'\].*a tool result after a call"):
        chat.check_tools([WEATHER])


def test_no_chat_template() -> None:
    with pytest.raises(ConfigurationError, match=r"no chat template; set tokenizer\.chat_template"):
        ChatFormat(tokenizer_for(None))


def test_a_token_beyond_the_tokenizers_vocabulary_has_no_text() -> None:
    """Models pad their vocabulary, and may sample from the padding."""
    chat = ChatFormat(tokenizer_for(CHAT_TEMPLATE))
    ids = [*chat.tokenizer.encode("so", add_special_tokens=False), len(chat.tokenizer) + 5, chat.end_id]
    assert chat.parse(Tokens([]), ids, []) == {"role": "assistant", "content": "so"}
