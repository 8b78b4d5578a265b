"""Chat templates and answers that are easily misread: the intended call is run, and errors give working advice."""

from __future__ import annotations

from typing import Any

import pytest

from gymnast.envs.core import ConfigurationError, Message
from gymnast.envs.tokens import Tokens
from gymnast.trainer import ChatFormat
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

from ..tool_calls.writers import WRITERS
from .families import QUESTION, TOOLS, chat_of, tokenizer_of, usable_chat
from .family_episodes import THOUGHT, format_name, thinking_markers

# --- calls in a thought that was not closed -------------------------------------------------------------------------

THINKERS = ["qwen3_6", "glm_4_7", "minimax_m2", "kimi_k2_thinking", "nemotron_3_nano", "qwen3", "deepseek_r1_distill"]


def parsed(stem: str, text: str, *, ended: bool) -> Message:
    """The message of an answer whose thought begins with `text`, and is never closed."""
    chat = usable_chat(stem)
    prompt = chat.prompt_tokens([QUESTION], TOOLS)
    opening = thinking_markers(chat)[0]
    begun = "" if chat.template.decode(prompt.ids).rstrip().endswith(opening) else f"{opening}\n"
    ids = chat.template.encode(begun + text).ids
    return chat.parse(prompt, [*ids, chat.call_end_id] if ended else ids, TOOLS)


def written_call(stem: str) -> str:
    writer = WRITERS[format_name(usable_chat(stem))]
    return writer.answer(writer("weather", city="Rom"))


@pytest.mark.parametrize("stem", THINKERS)
def test_a_call_that_ends_an_unclosed_thought_is_run(stem: str) -> None:
    message = parsed(stem, f"{THOUGHT}\n{written_call(stem)}", ended=True)
    assert [call["function"]["arguments"] for call in message.get("tool_calls", [])] == [{"city": "Rom"}]
    assert str(message.get("reasoning_content")).startswith(THOUGHT)
    assert message.get("content") == ""
    assert "malformed" not in message


@pytest.mark.parametrize("stem", THINKERS)
def test_an_answer_cut_within_its_thought_is_all_thought(stem: str) -> None:
    text = f"{THOUGHT}\n{written_call(stem)}"
    assert parsed(stem, text, ended=False) == {"role": "assistant", "content": "", "reasoning_content": text}


@pytest.mark.parametrize("stem", ["qwen3_6", "glm_4_7", "qwen3"])
def test_other_calls_in_an_unclosed_thought_are_malformed(stem: str) -> None:
    whole = written_call(stem)
    for text in (f"I could write {whole} or not.", whole[: whole.index("Rom")]):
        message = parsed(stem, text, ended=True)
        assert "tool_calls" not in message
        assert ["not closed" in piece["error"] for piece in message.get("malformed", [])] == [True]


@pytest.mark.parametrize("stem", ["qwen3_6", "qwen3"])
def test_thoughts_without_a_call_stay_thoughts(stem: str) -> None:
    expected = {"role": "assistant", "content": "", "reasoning_content": THOUGHT}
    assert parsed(stem, THOUGHT, ended=True) == expected
    closed = f"I could write {written_call(stem)}."
    assert parsed(stem, f"{closed}\n</think>", ended=True) == {**expected, "reasoning_content": closed}


# --- recognition ----------------------------------------------------------------------------------------------------


def tokenizer_with(template: str) -> Any:
    tokenizer: Any = make_tiny_tokenizer(["a text"] * 2, vocab_size=300)
    tokenizer.chat_template = template
    return tokenizer


def template(call: str, *, tools: str = "{{ tools | tojson }}", prompt: str = "", empty: str = "") -> str:
    """A template in ChatML.

    Args:
        call: How it writes a call `c`.
        tools: How it writes the tools.
        prompt: What its prompts end with.
        empty: What it writes behind an answer whose content is an empty text.
    """
    return (
        f"<|im_start|>system\n{{% if tools %}}{tools}{{% endif %}}<|im_end|>\n"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if m.content else '' }}"
        "{% for c in m.tool_calls or [] %}" + call + "{% endfor %}<|im_end|>\n"
        "{% if m.content is not none and not m.content %}" + empty + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )


HERMES = (
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
)
PYTHONIC = (
    "[{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{{ '' if loop.last else ', ' }}{% endfor %})]"
)
UNQUOTED = PYTHONIC.replace(" | tojson", "")


def test_a_prompt_that_begins_a_thought_shares_no_beginning_with_the_marker_of_a_call() -> None:
    chat = ChatFormat(tokenizer_with(template(HERMES, prompt="<think>\n")))
    assert getattr(chat.tool_format, "name", "") == "hermes"
    rendered = chat.endings.render_call("add", {"a": 1})
    assert rendered is not None
    assert rendered[0].endswith("<|im_start|>assistant\n")
    assert rendered[1].startswith("<tool_call>")


def test_a_template_that_renders_nothing_without_tools() -> None:
    loop = "{% for t in tools %}{{ t | tojson }}{% endfor %}"
    whole = template(HERMES).replace("{% if tools %}{{ tools | tojson }}{% endif %}", loop)
    chat = ChatFormat(tokenizer_with(whole))
    assert getattr(chat.tool_format, "name", "") == "hermes"
    assert chat.observation_tokens([{"role": "user", "content": "Go on."}], tools=TOOLS, ended_by=None, last=False).ids
    with pytest.raises(ConfigurationError, match=r"cannot render messages of roles \['user'\] without tools"):
        chat.prompt_tokens([QUESTION], [])


def test_the_error_names_the_formats_that_fit() -> None:
    tokenizer = tokenizer_with(template(PYTHONIC))
    with pytest.raises(
        ConfigurationError, match=r"not recognised: .* formats that do: pythonic; pass .*See docs/parsers\.md"
    ):
        ChatFormat(tokenizer).check_tools(TOOLS)
    with pytest.raises(ConfigurationError, match=r"formats that do: pythonic\. See docs/parsers\.md"):
        ChatFormat(tokenizer, tool_format="hermes")
    ChatFormat(tokenizer, tool_format="pythonic").check_tools(TOOLS)


def test_the_error_of_a_call_that_no_format_reads_proposes_what_works() -> None:
    tokenizer = tokenizer_with(template("CALL {{ c.function.name }} {{ c.function.arguments | tojson }}"))
    with pytest.raises(
        ConfigurationError, match=r"no format reads .*TextFormat of your own.*'vllm:'.*'react'"
    ) as refused:
        ChatFormat(tokenizer).check_tools(TOOLS)
    assert "hermes" not in str(refused.value)
    ChatFormat(tokenizer, tool_format="react").check_tools(TOOLS)


def test_a_format_that_knows_the_call_may_be_given_where_the_template_writes_texts_without_quotes() -> None:
    tokenizer = tokenizer_with(template(UNQUOTED))
    ChatFormat(tokenizer, tool_format="pythonic").check_tools(TOOLS)
    with pytest.raises(ConfigurationError, match="'hermes' does not read the call"):
        ChatFormat(tokenizer, tool_format="hermes")


ITEMS = "{% for k, v in c.function.arguments.items() %}ITEM{% endfor %}"
VALUE = "{{ v if v is string else v | tojson }}"
JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
# How the templates of families write a call that have none in tests/chat/chat_templates.
CALLS = {
    "step3": "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="{{ c.function.name }}">'
    + ITEMS.replace("ITEM", f'<steptml:parameter name="{{{{ k }}}}">{VALUE}</steptml:parameter>')
    + "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
    "longcat": f"<longcat_tool_call>\n{JSON}\n</longcat_tool_call>",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_family_is_recognised_by_its_calls(name: str) -> None:
    chat = ChatFormat(tokenizer_with(template(CALLS[name])))
    assert getattr(chat.tool_format, "name", "") == name
    ids = chat.template.encode(WRITERS[name].answer(WRITERS[name]("weather", city="Rom"))).ids
    [call] = chat.parse(Tokens([]), [*ids, chat.call_end_id], TOOLS).get("tool_calls", [])
    assert call["function"] == {"name": "weather", "arguments": {"city": "Rom"}}


def test_a_list_of_calls_without_a_marker_names_the_format_that_reads_it() -> None:
    """xLAM's models write calls like this, but other models may answer like this, so the format has to be given."""
    tokenizer = tokenizer_with(template(f"[{JSON}]"))
    with pytest.raises(ConfigurationError, match="formats that do: granite3;"):
        ChatFormat(tokenizer).check_tools(TOOLS)
    ChatFormat(tokenizer, tool_format="granite3").check_tools(TOOLS)


# --- text between turns ---------------------------------------------------------------------------------------------


def test_a_turn_for_an_empty_text_is_not_part_of_an_observation() -> None:
    chat = ChatFormat(tokenizer_with(template(HERMES, empty="<|im_start|>assistant\n<|im_end|>\n")))
    result: Message = {"role": "tool", "name": "weather", "content": "Warm."}
    ids = chat.observation_tokens([result], tools=TOOLS, ended_by=chat.end_id, last=True).ids
    assert chat.template.decode(ids) == "\n<|im_start|>tool\nWarm.<|im_end|>\n"


@pytest.mark.parametrize("stem", ["cohere2", "cohere2_training"])
def test_an_answer_ends_before_a_closing_marker_that_is_no_special_token(stem: str) -> None:
    chat = usable_chat(stem)
    assert "<|END_RESPONSE|>" not in chat.tokenizer.all_special_tokens
    ids = chat.template.encode("42<|END_RESPONSE|>").ids
    assert chat.parse(Tokens([]), [*ids, chat.end_id], TOOLS) == {"role": "assistant", "content": "42"}


def test_plain_answers_of_command_a_plus() -> None:
    chat = chat_of("command_r7b")
    ids = tokenizer_of("command_r7b")("<|START_TEXT|>42<|END_TEXT|>", add_special_tokens=False)["input_ids"]
    assert chat.parse(Tokens([]), [*ids, chat.end_id], TOOLS) == {"role": "assistant", "content": "42"}
