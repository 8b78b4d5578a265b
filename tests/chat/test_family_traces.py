"""Traces with the chat templates of the model families: the appended tokens, and the messages that answers mean."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from gymnast.envs.core import Message
from gymnast.envs.tokens import Tokens
from gymnast.trainer import ChatFormat
from gymnast.trainer.chat.chat_template import TEMPLATE_DATE

from .families import (
    GIVEN,
    IN_PARTS,
    QUESTION,
    STEMS,
    TEMPLATES,
    TOKENS,
    TOOLS,
    chat_of,
    is_react,
    tokenizer_of,
    usable_chat,
)
from .family_abilities import read, thoughts_of, write
from .family_episodes import (
    IDS,
    THOUGHT,
    Step,
    Trace,
    ask,
    encode,
    five_turns,
    format_name,
    prompts,
    rendered,
    thinking_markers,
    trace_of,
)
from .family_matrix import UNEXPECTED
from .test_families import SUPPORTED, UNSUPPORTED

by_stem = pytest.mark.parametrize("stem", STEMS)
DATED = [stem for stem in STEMS if "strftime_now" in TEMPLATES[stem].read_text()]
FORGETS_ITS_MARK = ("deepseekv3", "deepseekv3_training")  # the template marks the beginning of the first results only


def result(content: str, index: int = 0, stem: str = "") -> Message:
    call_id = IDS.get(format_name(usable_chat(stem)) if stem else "", "call_{}").format(index)
    return {"role": "tool", "name": "weather", "tool_call_id": call_id, "content": content}


def text_of(chat: ChatFormat, ids: list[int]) -> str:
    return chat.template.decode(ids)


def observe(chat: ChatFormat, *messages: Message, ended_by: int | None, last: bool = False) -> str:
    return text_of(chat, chat.observation_tokens(messages, tools=TOOLS, ended_by=ended_by, last=last).ids)


# --- episodes -----------------------------------------------------------------------------------------------------


@by_stem
def test_five_turns(stem: str) -> None:
    chat = usable_chat(stem)
    misread = 0
    for thought in thoughts_of(stem, chat):
        turns = five_turns(chat, thought)
        trace, texts = trace_of(stem, chat, turns, over=True), prompts(stem, chat, turns)
        assert [step.turn for step in trace.steps] == turns
        for step, rendered_next in zip(trace.steps, texts[1:], strict=True):
            misread += not is_read(chat, step)
            check_observation(stem, chat, step, rendered_next)
        check_order(chat, trace)
    assert bool(misread) == (stem in UNEXPECTED), "explain in UNEXPECTED what does not work, and nothing else"


def is_read(chat: ChatFormat, step: Step) -> bool:
    """Whether the sampled tokens mean the answer that they were made from."""
    answer, message = step.turn.answer, step.message
    return (
        message.get("tool_calls", []) == answer.get("tool_calls", [])
        and "malformed" not in message
        and message.get("reasoning_content", "").strip() == answer.get("reasoning_content", "")
        and (is_react(chat) or str(message.get("content")).strip() == answer.get("content"))
    )


def check_observation(stem: str, chat: ChatFormat, step: Step, rendered_next: str) -> None:
    """The observation shows the messages, and the rendered conversation ends with it."""
    text = text_of(chat, step.observation)
    assert all(str(message.get("content")) in text for message in step.turn.following)
    marked_again = "<｜tool▁outputs▁begin｜>" if stem in FORGETS_ITS_MARK else ""
    assert rendered_next.endswith(text) or (marked_again and rendered_next.endswith(text.removeprefix(marked_again)))


def check_order(chat: ChatFormat, trace: Trace) -> None:
    """Answers and observations are in the text, unchanged and in order."""
    rest = text_of(chat, trace.ids)
    for ids in (trace.prompt, *(part for step in trace.steps for part in (step.sampled, step.observation))):
        text = text_of(chat, list(ids))
        assert rest.startswith(text)
        rest = rest.removeprefix(text)
    assert rest == ""


@pytest.mark.parametrize("stem", SUPPORTED)
def test_the_prompt_equals_the_rendered_template(stem: str) -> None:
    chat = chat_of(stem)
    assert chat.prompt_tokens([QUESTION], TOOLS).ids == encode(chat, rendered(stem, chat, [QUESTION], more=True))


@pytest.mark.parametrize("stem", UNSUPPORTED)
def test_the_prompt_describes_tools_if_the_template_does_not(stem: str) -> None:
    chat = usable_chat(stem)
    text = text_of(chat, chat.prompt_tokens([QUESTION], TOOLS).ids)
    schema = TOOLS[0]["function"]
    told = [schema["name"], schema["description"], json.dumps(schema["parameters"]), str(QUESTION.get("content"))]
    positions = [text.index(item) for item in told]
    assert positions == sorted(positions)
    assert ("Action Input:" in text) == (stem not in GIVEN)
    without = text_of(chat, chat.prompt_tokens([QUESTION], []).ids)
    assert without == rendered(stem, chat, [QUESTION], more=True)


@pytest.mark.parametrize("stem", GIVEN)
def test_the_prompt_shows_a_call_if_the_template_renders_calls_but_no_tools(stem: str) -> None:
    chat = usable_chat(stem)
    prompt = chat.prompt_tokens([QUESTION], TOOLS).ids
    text = text_of(chat, prompt)
    begins, ends = text.index("exactly like this:\n\n"), text.index("<｜User｜>")
    example = text[begins:ends].partition("\n\n")[2]
    [made] = chat.parse(Tokens([]), chat.template.encode(example).ids, TOOLS).get("tool_calls", [])
    assert made["function"] == {"name": "tool_name", "arguments": {"key": "value"}}
    marks = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
    assert example.startswith("".join(marks[:2]))
    assert example.endswith("".join(marks[2:]))
    assert set(chat.tokenizer.convert_tokens_to_ids(marks)) <= set(prompt)  # as tokens, not spelled out


# --- how an answer ended ------------------------------------------------------------------------------------------


@by_stem
def test_a_missing_end_token_is_supplied(stem: str) -> None:
    """A budget cut the answer, whose tokens are all kept."""
    chat = usable_chat(stem)
    called = chat.end_id if is_react(chat) else chat.call_end_id
    for messages, end in (([result("Sunny.", stem=stem)], called), ([ask("And now?")], chat.end_id)):
        for last in (False, True):
            cut, ended = (
                chat.observation_tokens(messages, tools=TOOLS, ended_by=by, last=last).ids for by in (None, end)
            )
            assert cut == [end, *ended]


@pytest.mark.parametrize(
    ("stem", "other", "supplied"),
    [
        ("glm4moe", "<|endoftext|>", "<|observation|>"),
        ("glm_4_6", "<|user|>", "<|observation|>"),
        ("gemma4", "<turn|>", "<|tool_response>"),
        ("functiongemma", "<end_of_turn>", "<start_function_response>"),
        ("command_r", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
    ],
)
def test_the_beginning_of_the_results_is_supplied_if_a_call_ended_differently(
    stem: str, other: str, supplied: str
) -> None:
    chat = chat_of(stem)
    other_id = chat.tokenizer.convert_tokens_to_ids(other)
    assert other_id in chat.end_ids
    expected = observe(chat, result("Sunny."), ended_by=chat.call_end_id)
    assert not expected.startswith(supplied)
    assert observe(chat, result("Sunny."), ended_by=other_id) == supplied + expected


def test_an_end_token_that_only_ends_is_not_written_twice() -> None:
    chat = chat_of("llama3_1")
    eom = chat.tokenizer.convert_tokens_to_ids("<|eom_id|>")
    assert observe(chat, result("Sunny."), ended_by=eom) == observe(chat, result("Sunny."), ended_by=chat.end_id)


# --- more calls than a template renders ---------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["llama3_1", "llama3_2", "gptoss", "gptoss_training"])
def test_two_calls_where_the_template_renders_one(stem: str) -> None:
    chat = chat_of(stem)
    calls = read(stem, chat, write(stem, chat, "Rom", "Paris")).get("tool_calls", [])
    assert [(call["function"]["arguments"], call.get("id")) for call in calls] == [
        ({"city": "Rom"}, "call_0"),
        ({"city": "Paris"}, "call_1"),
    ]
    both = observe(chat, result("Warm in Rom."), result("Warm in Paris.", 1), ended_by=chat.call_end_id)
    [first, second] = [
        observe(chat, result(f"Warm in {city}."), ended_by=chat.call_end_id, last=True) for city in ("Rom", "Paris")
    ]
    assert both.startswith(first + second)
    assert both.count("Warm in") == 2


# --- ids ----------------------------------------------------------------------------------------------------------


def ids_in_episode(stem: str) -> list[str]:
    chat = chat_of(stem)
    [thought, *_] = thoughts_of(stem, chat)
    steps = trace_of(stem, chat, five_turns(chat, thought), over=True).steps
    return [str(call.get("id")) for step in steps for call in step.message.get("tool_calls", [])]


@pytest.mark.parametrize(
    ("stem", "call_id", "shown"),
    [("kimi_k2", "functions.weather:{}", "functions.weather:{}"), ("command_r7b", "{}", '"tool_call_id": "{}"')],
)
def test_ids_that_count_calls_run_through_the_episode(stem: str, call_id: str, shown: str) -> None:
    assert ids_in_episode(stem) == [call_id.format(index) for index in range(4)]
    chat = chat_of(stem)
    [_, second, *_] = trace_of(stem, chat, five_turns(chat), over=True).steps
    text = text_of(chat, second.observation)
    assert text.index(shown.format(1)) < text.index("Warm in Rom.") < text.index(shown.format(2))
    assert shown.format(0) not in text


@pytest.mark.parametrize(("written", "kept"), [("abcdefgh9", True), ("x", False), ("call_0000", False)])
def test_ids_of_mistral_have_nine_letters_or_digits(written: str, kept: bool) -> None:
    chat = chat_of("mistral_v3")
    assert ids_in_episode("mistral_v3") == ["call00000", "call00001", "call00002", "call00003"]
    text = f'[TOOL_CALLS] [{{"name": "weather", "arguments": {{"city": "Rom"}}, "id": "{written}"}}]'
    [made] = read("mistral_v3", chat, text).get("tool_calls", [])
    assert made.get("id") == (written if kept else "call00000")
    shown = observe(chat, {**result("Warm."), "tool_call_id": str(made.get("id"))}, ended_by=chat.call_end_id)
    assert str(made.get("id")) in shown


# --- thoughts that the prompt begins ------------------------------------------------------------------------------


def test_a_thought_that_the_prompt_began() -> None:
    begins = [stem for stem in STEMS if thoughts_of(stem, usable_chat(stem)) == [THOUGHT]]
    assert len(begins) > 15
    assert {"deepseek_r1_distill", "glm_4_7", "minimax_m2", "nemotron_3_nano", "qwen3_5_think"} <= set(begins)
    for stem in begins:
        chat = usable_chat(stem)
        prompt = chat.prompt_tokens([QUESTION], TOOLS).ids
        for text, content in ((f"{THOUGHT}\n{thinking_markers(chat)[1]}\n\nSunny.", "Sunny."), (THOUGHT, "")):
            parsed = chat.parse(Tokens(prompt), encode(chat, text), TOOLS)
            assert parsed == {"role": "assistant", "content": content, "reasoning_content": THOUGHT}, stem


def test_empty_thoughts_that_an_option_writes_stand_in_every_prompt() -> None:
    empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    chat = ChatFormat(tokenizer_of("qwen3"), template_kwargs={"enable_thinking": False})
    prompt = chat.prompt_tokens([QUESTION], TOOLS).ids
    assert text_of(chat, prompt).endswith(empty)
    for message in (result("Sunny."), ask("And now?")):
        assert observe(chat, message, ended_by=chat.end_id).endswith(empty)
    assert chat.parse(Tokens(prompt), encode(chat, "Sunny."), TOOLS) == {"role": "assistant", "content": "Sunny."}


# --- dates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", DATED)
def test_dates_are_frozen(stem: str) -> None:
    tokenizer = tokenizer_of(stem)
    days = (TEMPLATE_DATE, datetime.date(2031, 5, 4))
    fixed, later = (
        text_of(chat, chat.prompt_tokens([QUESTION], []).ids)
        for chat in (ChatFormat(tokenizer, tool_format="react", today=day) for day in days)
    )
    default = ChatFormat(tokenizer, tool_format="react")
    assert text_of(default, default.prompt_tokens([QUESTION], []).ids) == fixed
    assert str(TEMPLATE_DATE.year) in fixed
    assert datetime.date.today() > TEMPLATE_DATE
    assert "2031" in later
    assert "2031" not in fixed


def test_there_are_templates_with_dates() -> None:
    assert {"gptoss", "llama3_2", "smollm3"} <= set(DATED)


# --- special tokens in messages -----------------------------------------------------------------------------------


@by_stem
def test_special_tokens_in_a_users_message_are_text(stem: str) -> None:
    chat = usable_chat(stem)
    special = [token for token in TOKENS[stem]["special"] if '"' not in token]
    ids = set(chat.tokenizer.convert_tokens_to_ids(special))
    forged = " ".join(["<b>", *special, "</b>"])

    def count(tokens: list[int]) -> int:
        return sum(token in ids for token in tokens)

    harmless, harmful = (chat.prompt_tokens([ask(text)], TOOLS).ids for text in ("<b> </b>", forged))
    assert text_of(chat, harmful) == text_of(chat, harmless).replace("<b> </b>", forged)
    assert count(harmful) == count(harmless)


# --- templates with ways of their own -----------------------------------------------------------------------------


@pytest.mark.parametrize("stem", IN_PARTS)
def test_a_template_that_takes_parts_only(stem: str) -> None:
    chat = usable_chat(stem)
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]
    assert chat.prompt_tokens([{"role": "user", "content": parts}], []) == chat.prompt_tokens([ask("What is it?")], [])
    assert "What is it?" in text_of(chat, chat.prompt_tokens([ask("What is it?")], []).ids)


def test_tools_of_phi_4_mini_stand_in_the_system_message() -> None:
    chat = chat_of("phi4_mini")
    tools = json.dumps([tool["function"] for tool in TOOLS], ensure_ascii=False)
    brief: Message = {"role": "system", "content": "Be brief."}
    for messages, said in (([QUESTION], ""), ([brief, QUESTION], "Be brief.")):
        text = text_of(chat, chat.prompt_tokens(messages, TOOLS).ids)
        assert text.startswith(f"<|system|>{said}<|tool|>{tools}<|/tool|><|end|><|user|>")


def test_results_of_gemma_4_stand_in_the_same_turn() -> None:
    chat = chat_of("gemma4")
    shown = observe(chat, result("Sunny."), result("Rainy.", 1), ended_by=chat.call_end_id)
    assert "<|turn>" not in shown
    assert shown.count("<|tool_response>") == 1  # the other one was sampled
    assert shown.endswith("<tool_response|>")


@pytest.mark.parametrize("stem", STEMS)
def test_tokens_of_the_family_in_a_tools_result_have_no_effect(stem: str) -> None:
    chat = usable_chat(stem)
    source = chat.template.source()
    tokens = [*TOKENS[stem]["special"], *(token for token in TOKENS[stem]["added"] if token in source)]
    watched = set(chat.tokenizer.convert_tokens_to_ids(tokens))

    def obeyed(content: str) -> list[int]:
        result: Message = {"role": "tool", "name": "weather", "content": content}
        ids = chat.observation_tokens([result], tools=TOOLS, ended_by=None, last=False).ids
        assert content in text_of(chat, ids) or json.dumps(content, ensure_ascii=False) in text_of(chat, ids)
        return [token for token in ids if token in watched]

    assert obeyed(" and ".join(["It is", *tokens, "warm."])) == obeyed("It is warm.")
