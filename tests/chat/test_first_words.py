"""Prompts that end with the first words of the model's answer, with the chat templates of the families."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from gymnast.envs.core import ConfigurationError, Message
from gymnast.trainer import ChatFormat
from gymnast.trainer.chat.chat_template import TEMPLATE_DATE

from .families import IN_PARTS, QUESTION, STEMS, TOOLS, tokenizer_of, usable_chat
from .family_abilities import write
from .family_episodes import encode, format_name, say, thinking_markers

by_stem = pytest.mark.parametrize("stem", STEMS)
WORDS = say("The answer is")
OF_CHANNELS = ("harmony", "atem")  # a thought and a call are messages of their own
# The template renders text that is left open in another place than behind its generation prompt.
NO_TEXT = {"command_r": "does not render these words where an answer begins", "nemotron_nano_v2": "part of the thought"}
THOUGHT_IS_OVER = ("deepseek_v3_1", "qwen3_5_nothink", "qwen3_5_nothink_training", "command_r7b")  # in the prompt
NO_CALL = ("command_r", "kimi_k3")  # the second writes each call between tokens that end messages


def answered(chat: ChatFormat, words: Message, rest: str) -> Message:
    """The message of an answer that goes on with these words."""
    prompt, begun = chat.begin([QUESTION, words], TOOLS)
    return chat.parse(prompt, [*begun, *encode(chat, rest), chat.call_end_id], TOOLS)


def left_open(stem: str, chat: ChatFormat, words: Message) -> list[int]:
    """The tokens of the question and the words as transformers leaves them open, without tools."""
    taken: list[Any] = [QUESTION, words]
    if stem.removesuffix("_training") in IN_PARTS:
        taken = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in taken]
    moment = datetime.datetime.combine(TEMPLATE_DATE, datetime.time())
    text = tokenizer_of(stem).apply_chat_template(
        taken, tokenize=False, continue_final_message=True, strftime_now=moment.strftime
    )
    return encode(chat, text)


@by_stem
def test_the_model_goes_on_with_a_text(stem: str) -> None:
    chat = usable_chat(stem)
    if stem in NO_TEXT:
        with pytest.raises(
            ConfigurationError, match=f"the first words of the answer, 'The answer is', .*{NO_TEXT[stem]}"
        ):
            chat.begin([QUESTION, WORDS], TOOLS)
        return
    message = answered(chat, WORDS, " 42.")
    assert str(message.get("content")).strip() == "The answer is 42."
    assert not message.get("reasoning_content")
    assert message.keys() <= {"role", "content", "reasoning_content"}
    prompt, begun = chat.begin([QUESTION, WORDS], [])
    assert prompt.ids + begun == left_open(stem, chat, WORDS)
    assert chat.template.decode(begun).endswith("The answer is")


@by_stem
@pytest.mark.parametrize("as_key", [True, False], ids=["reasoning_content", "marker"])
def test_the_model_goes_on_with_a_thought(stem: str, as_key: bool) -> None:
    chat = usable_chat(stem)
    opening, closing = thinking_markers(chat)
    words = say("", "Let me") if as_key else say(f"{opening}\nLet me")
    problem = ""
    if stem in THOUGHT_IS_OVER:
        problem = "begin a thought, but the prompt ends with"
    elif as_key and format_name(chat) in OF_CHANNELS:
        problem = "thoughts are messages of their own"
    elif not as_key and stem == "kimi_k3":
        problem = r"contain '<\|open\|>', which the chat template writes around messages"
    if problem:
        with pytest.raises(ValueError, match=problem):
            chat.begin([QUESTION, words], TOOLS)
        return
    message = answered(chat, words, f" see.\n{closing}\n\n42.")
    if format_name(chat) in OF_CHANNELS:  # where the markers mean nothing
        assert message == {"role": "assistant", "content": f"{opening}\nLet me see.\n{closing}\n\n42."}
    else:
        assert message == {"role": "assistant", "content": "42.", "reasoning_content": "Let me see."}


@by_stem
def test_the_model_goes_on_with_a_call(stem: str) -> None:
    chat = usable_chat(stem)
    whole = write(stem, chat, "Rom")
    place = whole.index("Rom")
    if stem in NO_CALL or format_name(chat) in OF_CHANNELS:
        with pytest.raises(ValueError, match="the first words of the answer"):
            chat.begin([QUESTION, say(whole[:place])], TOOLS)
        return
    message = answered(chat, say(whole[:place]), whole[place:])
    assert [call["function"] for call in message.get("tool_calls", [])] == [
        {"name": "weather", "arguments": {"city": "Rom"}}
    ]
    assert "malformed" not in message


@pytest.mark.parametrize("stem", ["qwen2_5", "llama3_1", "mistral_small_3_2", "gemma4", "gptoss"])
def test_words_cannot_end_the_turn(stem: str) -> None:
    chat = usable_chat(stem)
    for end in chat.end_ids:
        with pytest.raises(ValueError, match=r"the first words of the answer contain .*which ends an answer"):
            chat.begin([QUESTION, say(f"Done.{chat.template.decode([end])}")], TOOLS)


def test_a_text_before_a_thought_stays_a_text() -> None:
    chat = usable_chat("qwen2_5")
    message = answered(chat, say("I solve it step by step.\n<think>"), "3 + 4</think>7")
    assert message.get("reasoning_content") == "3 + 4"
    assert str(message.get("content")).startswith("I solve it step by step.")
