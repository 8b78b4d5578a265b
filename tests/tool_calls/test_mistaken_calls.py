"""Answers that are easily misread: the call that the model meant is run, or no call."""

from __future__ import annotations

import pytest

from .test_tool_formats import read
from .writers import WRITERS, calls, errors

LOST_END = {"qwen3_coder": "</parameter>", "seed_oss": "</parameter>", "minimax_m2": "</parameter>"}


@pytest.mark.parametrize("name", LOST_END)
def test_a_value_may_lack_its_end_where_another_argument_or_the_end_of_the_call_follows(name: str) -> None:
    write, end = WRITERS[name], LOST_END[name]
    bad = write(a=1).replace(end, "")
    assert calls(read(name, bad)) == [("add", {"a": 1})]
    message = read(name, write.answer(write(c=3), bad, write(b=2)))
    assert calls(message) == [("add", {"c": 3}), ("add", {"a": 1}), ("add", {"b": 2})]
    two = write("say", text="x", code="y").replace(end, "", 1).replace("x<", "x\n<")  # on lines of their own
    assert calls(read(name, two)) == [("say", {"text": "x", "code": "y"})]
    assert "malformed" not in message


@pytest.mark.parametrize("name", LOST_END)
def test_an_end_marker_within_a_closed_value_is_text(name: str) -> None:
    write = WRITERS[name]
    end = write(a=1).partition(LOST_END[name])[2]
    text = f"see {end} there"
    assert calls(read(name, write("say", text=text))) == [("say", {"text": text})]


@pytest.mark.parametrize("levels", [100, 300, 900])
def test_arguments_that_a_log_could_not_hold_are_malformed(levels: int) -> None:
    write = WRITERS["hermes"]
    message = read("hermes", write.call("add", f'{{"a": {"[" * levels}{"]" * levels}}}'))
    assert (calls(message), len(errors(message))) == ([], 1)
    assert calls(read("hermes", write(a=[[[[[1]]]]]))) == [("add", {"a": [[[[[1]]]]]})]


@pytest.mark.parametrize("broken", ["</function>", "</parameter>"])
def test_broken_syntax_after_a_value_is_not_part_of_it(broken: str) -> None:
    bad = WRITERS["qwen3_coder"](a=1).replace(broken, broken[:-1])
    message = read("qwen3_coder", WRITERS["qwen3_coder"].answer(bad, WRITERS["qwen3_coder"](b=2)))
    assert (calls(message), len(errors(message))) == ([("add", {"b": 2})], 1)


def test_a_value_of_glm_without_its_end_is_malformed() -> None:
    """Its only other mark is the end of the call, which may also stand in a value."""
    write = WRITERS["glm4"]
    bad = write(a=1).replace("</arg_value>", "")
    message = read("glm4", write.answer(write(c=3), bad, write(b=2)))
    assert calls(message) == [("add", {"c": 3}), ("add", {"b": 2})]
    assert len(errors(message)) == 1
    two = write("say", text="x", code="y").replace("</arg_value>", "", 1).replace("x<", "x\n<")
    assert (calls(read("glm4", two)), len(errors(read("glm4", two)))) == ([], 1)


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss", "minimax_m2", "glm4", "gemma4", "functiongemma", "lfm2"])
def test_a_call_that_is_written_within_a_text_is_never_run(name: str) -> None:
    """These formats escape nothing, so nobody can tell where the text ends; the whole is malformed."""
    write = WRITERS[name]
    inner = write(a=9)
    message = read(name, write.answer(write.call("say", write.arguments({"text": f"so: {inner}", "a": 1}))))
    assert ("add", {"a": 9}) not in calls(message)
    assert errors(message) or calls(message) == [("say", {"text": f"so: {inner}", "a": 1})]


def test_arguments_under_another_key_are_malformed() -> None:
    for name, key in (("hermes", "args"), ("llama3", "args"), ("mistral", "input"), ("command_r7b", "args")):
        text = WRITERS[name](a=1)
        for known in ("arguments", "parameters"):
            text = text.replace(f'"{known}"', f'"{key}"')
        if name == "llama3":
            text = "<|python_tag|>" + text  # without it, it is an answer in JSON
        message = read(name, text)
        assert calls(message) == []
        assert f"no ['{key}']" in errors(message)[0]


def test_an_answer_in_json_is_not_a_llama_call() -> None:
    text = '{"name": "Rome", "population": 3}'
    assert read("llama3", text) == {"role": "assistant", "content": text}


def test_the_opening_marker_that_qwen3_coder_leaves_out() -> None:
    text = WRITERS["qwen3_coder"](a=1).replace("<tool_call>", "")
    assert calls(read("qwen3_coder", f"So:\n{text}")) == [("add", {"a": 1})]


@pytest.mark.parametrize("name", ["hermes", "mistral", "granite3", "llama3", "command_r7b", "command_r"])
def test_the_arguments_stand_under_either_key(name: str) -> None:
    text = WRITERS[name](a=1)
    swapped = {"arguments": "parameters", "parameters": "arguments"}
    [known] = [key for key in swapped if f'"{key}"' in text]
    assert calls(read(name, text.replace(f'"{known}"', f'"{swapped[known]}"'))) == [("add", {"a": 1})]


THOUGHTS = {
    "I could write {} but no.</think>\n\nNo call.": ("I could write {} but no.", "No call."),
    "Hm. <think>maybe {}? no</think> Hi": ("maybe {}? no", "Hm.  Hi"),
    "<think>One.</think>A <think>{}</think> B": ("One.\n{}", "A  B"),
}


@pytest.mark.parametrize("answer", THOUGHTS)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "deepseek_v3", "kimi_k2", "glm4"])
def test_a_call_that_was_only_thought_of_is_not_run(name: str, answer: str) -> None:
    call = WRITERS[name](a=1)
    thought, content = THOUGHTS[answer]
    message = read(name, answer.format(call))
    assert calls(message) == []
    assert message.get("reasoning_content") == thought.format(call)
    assert message.get("content") == content
    both = read(name, answer.format(call) + WRITERS[name](b=2))
    assert calls(both) == [("add", {"b": 2})]


def test_a_thinking_marker_within_a_call_is_its_text() -> None:
    for text in ("</think>", "<think>x</think>", "a </think> b <think>"):
        message = read("hermes", f"So: {WRITERS['hermes']('say', text=text)}")
        assert calls(message) == [("say", {"text": text})]
        assert "reasoning_content" not in message


def test_a_call_of_lfm2_that_was_cut_does_not_take_the_next_one_with_it() -> None:
    text = '<|tool_call_start|>[say(text="a]<|tool_call_end|>\n<|tool_call_start|>[say(text="b")]<|tool_call_end|>'
    assert calls(read("lfm2", text)) == [("say", {"text": "b"})]


def test_markers_within_a_text_stay_in_it() -> None:
    assert read("granite3", "the </tool_call> tag") == {"role": "assistant", "content": "the </tool_call> tag"}


# Deviations of single families from their syntax.

SLOPPY = {
    "atem": ' to=add.add<|message|><atem:function_calls>\n<atem:invoke name="add.add">\n'
    '<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "pythonic": "I look. <|python_start|>[add(a=1)]<|python_end|>",
    "lfm2": '<|tool_call_start|>[{"name": "add", "arguments": {"a": 1}}]<|tool_call_end|>',
    "mistral_v11": '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]',
    "granite3": '[{"name": "add", "arguments": {"a": 1}}]',
    "command_r7b": '<|START_ACTION|>[{"name": "add", "arguments": {"a": 1}}]<|END_ACTION|>',
}


@pytest.mark.parametrize("name", SLOPPY)
def test_clear_calls_in_a_foreign_syntax(name: str) -> None:
    message = read(name, SLOPPY[name])
    assert calls(message) == [("add", {"a": 1})]
    assert "malformed" not in message


def test_a_list_without_a_marker_that_was_cut_is_malformed() -> None:
    message = read("granite3", SLOPPY["granite3"][:-5])
    assert (calls(message), len(errors(message))) == ([], 1)


def test_a_text_of_gemma_without_its_marks() -> None:
    assert calls(read("gemma4", "<|tool_call>call:say{text:Bern,a:1}<tool_call|>")) == [
        ("say", {"text": "Bern", "a": 1})
    ]


def test_a_message_of_harmony_to_the_assistant_itself_has_no_recipient() -> None:
    text = "<|channel|>commentary to=assistant<|channel|>final<|message|>Hi."
    assert read("harmony", text) == {"role": "assistant", "content": "Hi."}


# Thoughts that are closed twice, or begun twice.


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm4", "gemma4", "seed_oss"])
@pytest.mark.parametrize("thought", ["Hm.", None])
def test_a_second_closing_marker_does_not_swallow_the_answer(name: str, thought: str | None) -> None:
    opening, closing = WRITERS[name].thinking
    begun = f"{opening}{thought}{closing}" if thought else ""
    for behind in ("", "\n"):
        message = read(name, f"{begun}The answer is 42.{closing.strip()}{behind}")
        assert (message.get("content"), message.get("reasoning_content")) == ("The answer is 42.", thought)


@pytest.mark.parametrize("begun", ["<|channel>thought<channel|>", "<|channel><|channel>thought\n<channel|>"])
def test_empty_thoughts_of_gemma_leave_no_marker(begun: str) -> None:
    assert read("gemma4", f"{begun}Yes.") == {"role": "assistant", "content": "Yes.", "reasoning_content": ""}


@pytest.mark.parametrize("payload", ['[add(a=1, b="x")]', '[{"name": "add", "arguments": {"a": 1, "b": "x"}}]'])
@pytest.mark.parametrize("behind", ["", " Done."])
def test_a_call_that_is_repeated_behind_its_marker_is_one_call(payload: str, behind: str) -> None:
    """LFM2 repeats calls as plain text. The copy is neither a second call nor a part of the answer."""
    message = read("lfm2", f"<|tool_call_start|>{payload}<|tool_call_end|>\n{payload}{behind}")
    assert calls(message) == [("add", {"a": 1, "b": "x"})]
    assert message.get("content") == behind.strip()
    assert "malformed" not in message


def test_text_that_only_begins_like_a_call_stays() -> None:
    message = read("glm4", "<tool_call>a</tool_call> and more")
    assert (calls(message), message.get("content")) == ([("a", {})], "and more")
