"""Answers that are easily taken for something else: what is run is what the model meant, or nothing."""

from __future__ import annotations

import pytest

from .test_tool_formats import calls, errors, read
from .writers import WRITERS


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss", "minimax_m2", "glm4"])
def test_a_value_without_its_end_does_not_take_the_next_call_with_it(name: str) -> None:
    write = WRITERS[name]
    end = "</arg_value>" if name == "glm4" else "</parameter>"
    bad = write(a=1).replace(end, "")
    assert len(errors(read(name, bad))) == 1
    message = read(name, write.answer(write(c=3), bad, write(b=2)))
    assert calls(message) == [("add", {"c": 3}), ("add", {"b": 2})]
    assert len(errors(message)) == 1


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


def test_an_answer_in_json_is_no_llama_call() -> None:
    text = '{"name": "Rome", "population": 3}'
    assert read("llama3", text) == {"role": "assistant", "content": text}


def test_the_opening_marker_that_qwen3_coder_leaves_out() -> None:
    text = WRITERS["qwen3_coder"](a=1).replace("<tool_call>", "")
    assert calls(read("qwen3_coder", f"So:\n{text}")) == [("add", {"a": 1})]


def test_text_behind_a_list_of_calls() -> None:
    message = read("granite3", '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]\nDone.')
    assert calls(message) == [("add", {"a": 1})]
    assert message.get("content") == "Done."


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


@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2", "seed_oss", "glm4"])
def test_an_argument_without_its_end_does_not_take_the_next_one_with_it(name: str) -> None:
    end = "</arg_value>" if name == "glm4" else "</parameter>"
    text = WRITERS[name]("add", a="x", b="y").replace(end, "", 1)
    text = text.replace("x<", "x\n<")  # as models write, each on a line of its own
    message = read(name, text)
    assert calls(message) == []
    assert len(errors(message)) == 1


def test_a_call_of_lfm2_that_was_cut_does_not_take_the_next_one_with_it() -> None:
    text = '<|tool_call_start|>[say(text="a]<|tool_call_end|>\n<|tool_call_start|>[say(text="b")]<|tool_call_end|>'
    assert calls(read("lfm2", text)) == [("say", {"text": "b"})]


def test_markers_within_a_text_stay_in_it() -> None:
    assert read("granite3", "the </tool_call> tag") == {"role": "assistant", "content": "the </tool_call> tag"}
