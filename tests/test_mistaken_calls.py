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
