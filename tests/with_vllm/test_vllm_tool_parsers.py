"""vLLM's tool parsers by name: they read calls as their families' templates write them, and report unreadable ones."""

from __future__ import annotations

import copy
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import RolloutEngine
from gymnast.envs.core import ConfigurationError, Message, StopReason, ToolSchema
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.tokens import Tokens
from gymnast.trainer import ChatFormat, GRPOTrainer, Sampling, TokenBudgets, TokenPolicy
from gymnast.trainer.testing.tiny import CHAT_TEMPLATE, make_tiny_tokenizer

from ..training.buttons import ROWS, Buttons, ScriptedGenerator, config, model
from ..training.buttons import tokenizer as buttons_tokenizer

TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a table.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "guests": {"type": "integer"},
                "outside": {"type": "boolean"},
                "dishes": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
}
OBJECTS = (
    "{%- for call in message.tool_calls -%}{{- ', ' if not loop.first -}}"
    """{{- '{"name": ' ~ call.function.name | tojson ~ ', "arguments": ' ~ call.function.arguments | tojson ~ '}' -}}"""
    "{%- endfor -%}"
)
EACH = "{%- for call in message.tool_calls -%}{%- set name = call.function.name -%}"
ARGUMENTS = "{%- for key, value in call.function.arguments.items() -%}"
TEXT = "{%- set text = value if value is string else value | tojson -%}"
XML = (
    EACH
    + "{{- '\n<tool_call>\n<function=' ~ name ~ '>\n' -}}"
    + ARGUMENTS
    + TEXT
    + "{{- '<parameter=' ~ key ~ '>\n' ~ text ~ '\n</parameter>\n' -}}{%- endfor -%}"
    + "{{- '</function>\n</tool_call>' -}}{%- endfor -%}"
)
KEYS = (
    EACH
    + "{{- '\n<tool_call>' ~ name ~ '\n' -}}"
    + ARGUMENTS
    + TEXT
    + "{{- '<arg_key>' ~ key ~ '</arg_key>\n<arg_value>' ~ text ~ '</arg_value>\n' -}}{%- endfor -%}"
    + "{{- '</tool_call>' -}}{%- endfor -%}"
)
INVOKE = (
    "{{- '\n<minimax:tool_call>\n' -}}"
    + EACH
    + """{{- '<invoke name="' ~ name ~ '">\n' -}}"""
    + ARGUMENTS
    + TEXT
    + """{{- '<parameter name="' ~ key ~ '">' ~ text ~ '</parameter>\n' -}}{%- endfor -%}"""
    + "{{- '</invoke>\n' -}}{%- endfor -%}{{- '</minimax:tool_call>' -}}"
)
PYTHONIC = (
    "{{- '[' -}}"
    + EACH
    + "{{- ', ' if not loop.first -}}{{- name ~ '(' -}}"
    + ARGUMENTS
    + "{{- ', ' if not loop.first -}}"
    + "{%- set text = value | tojson if value is string or value is not boolean else value | string -%}"
    + "{{- key ~ '=' ~ text -}}{%- endfor -%}{{- ')' -}}{%- endfor -%}{{- ']' -}}"
)
LLAMA = OBJECTS.replace("arguments\": '", "parameters\": '").replace("', '", "'; '")
DEEPSEEK = (
    "{{- '<｜tool▁calls▁begin｜>' -}}"
    + EACH
    + "{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' ~ name ~ '\n```json\n' -}}"
    + "{{- call.function.arguments | tojson ~ '\n```<｜tool▁call▁end｜>' -}}{%- endfor -%}"
    + "{{- '<｜tool▁calls▁end｜>' -}}"
)
HERMES = CHAT_TEMPLATE[CHAT_TEMPLATE.index("{%- for tool_call in") :]
HERMES = HERMES[: HERMES.index("{%- endfor -%}") + len("{%- endfor -%}")]
DEEPSEEK_TOKENS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {  # how an answer's calls are rendered, and the tokens this needs
    "hermes": (HERMES, ()),
    "granite4": (HERMES, ()),
    "qwen3_xml": (XML, ()),
    "qwen3_coder": (XML, ()),
    "glm45": (KEYS, ()),
    "minimax_m2": (INVOKE, ()),
    "xlam": ("{{- '[' -}}" + OBJECTS + "{{- ']' -}}", ()),
    "granite": ("{{- '<tool_call>[' -}}" + OBJECTS + "{{- ']' -}}", ()),
    "pythonic": (PYTHONIC, ()),
    "jamba": ("{{- '<tool_calls>[\n' -}}" + OBJECTS + "{{- '\n]</tool_calls>' -}}", ("<tool_calls>", "</tool_calls>")),
    "llama3_json": (LLAMA, ("<|python_tag|>",)),
    "deepseek_v3": (DEEPSEEK, DEEPSEEK_TOKENS),
}


def tokenizer_of(calls: str = HERMES, tokens: tuple[str, ...] = ()) -> Any:
    made = make_tiny_tokenizer([])
    made.add_tokens(list(tokens))
    made.chat_template = template(calls)
    return made


def template(calls: str) -> str:
    return CHAT_TEMPLATE.replace(HERMES, "{%- if message.tool_calls -%}" + calls + "{%- endif -%}")


@cache
def chat(name: str) -> ChatFormat:
    return ChatFormat(tokenizer_of(*FAMILIES[name]), tool_format=f"vllm:{name}")


def written(name: str, message: Message) -> str:
    """The text with which a model of this family expresses the message."""
    render: Any = chat(name).template.render
    before = render([{"role": "user", "content": "Go."}], more=True)
    return render([{"role": "user", "content": "Go."}, message]).removeprefix(before).removesuffix("<|im_end|>\n")


def read(name: str, text: str, prompt: str = "<|im_start|>assistant\n") -> Message:
    """Encode the text, and parse the tokens as in an episode."""
    encode = chat(name).tokenizer.encode
    return chat(name).parse(Tokens(encode(prompt)), encode(text + "<|im_end|>"), [TOOL])


def calling(*arguments: dict[str, Any]) -> Message:
    calls: Any = [
        {"id": f"call_{index}", "type": "function", "function": {"name": "book", "arguments": argument}}
        for index, argument in enumerate(arguments)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def arguments_of(message: Message) -> list[Any]:
    return [call["function"]["arguments"] for call in message.get("tool_calls", [])]


ALL = pytest.mark.parametrize("name", FAMILIES)


@ALL
@pytest.mark.parametrize(
    "arguments",
    [
        [{"place": "Zum Löwen, 1. Stock", "guests": 3, "outside": True, "dishes": ["Rösti", "日本"]}],
        [{"guests": 1}, {"guests": 2, "place": "here"}, {"outside": False}],
        [{}],
    ],
    ids=["one", "several", "no arguments"],
)
def test_calls_are_read_correctly(name: str, arguments: list[dict[str, Any]]) -> None:
    message = calling(*arguments)
    assert read(name, written(name, message)) == message


@ALL
@pytest.mark.parametrize("text", ["Plain.", "", " two  spaces \n", '{"a": 1}', "[1, 2]", "a < b", "The set {1, 2}."])
def test_answers_without_calls_stay_unchanged(name: str, text: str) -> None:
    assert read(name, text) == {"role": "assistant", "content": text}


@ALL
def test_thinking_is_kept_apart(name: str) -> None:
    call = written(name, calling({"guests": 3}))
    message = calling({"guests": 3}) | {"reasoning_content": f"I could write {call}."}
    assert read(name, f"<think>\nI could write {call}.\n</think>\n\n{call}") == message
    assert read(name, f"I could write {call}.\n</think>\n\n{call}", "<|im_start|>assistant\n<think>\n") == message


@ALL
def test_a_call_that_was_cut_is_never_plain_text(name: str) -> None:
    """Some parsers read the part that is there; the others silently find nothing."""
    whole = written(name, calling({"place": "here", "guests": 3}))
    messages = [read(name, whole[:end]) for end in range(len(whole))]
    kinds = ["tool_calls" in message or "malformed" in message for message in messages]
    begun = kinds.index(True)
    assert begun <= len("<｜tool▁calls▁begin｜>") + 1
    assert kinds[begun:] == [True] * (len(whole) - begun)


BROKEN = {
    "hermes": ['<tool_call>\n{"name": "book", "arguments": {"guests": 3}\n</tool_call>', "<tool_call>book</tool_call>"],
    "granite4": ['<tool_call>{"name": "book"}</tool_call>'],
    "qwen3_xml": ["<tool_call>\nbook(guests=3)\n</tool_call>", "<tool_call>\n<func=book>\n</tool_call>"],
    "glm45": ["<tool_call></tool_call>"],
    "minimax_m2": ["<minimax:tool_call>\nbook\n</minimax:tool_call>"],
    "xlam": ['[{"name": "book", "arguments": {"guests": 3}]', '[{ "name" : "book"}]'],
    "granite": ['<tool_call>{"name": "book", "arguments": {}', "<tool_call>[book(guests=3)]"],
    "pythonic": ["[book(guests=3)", "[book(3)]", "[book(guests=3)] or so", "[book(guests=other)]"],
    "jamba": ["<tool_calls>[book]</tool_calls>"],
    "llama3_json": ['{"name": "book", "parameters": {"guests": 3}', '{"name": "book"}'],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>book<｜tool▁calls▁end｜>"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN.items() for text in texts])
def test_a_call_that_cannot_be_read_is_malformed(name: str, text: str) -> None:
    error = f"vLLM's tool parser {name!r} could not read it"
    assert read(name, text) == {"role": "assistant", "content": "", "malformed": [{"text": text, "error": error}]}


def test_text_before_a_malformed_call_is_content() -> None:
    message = read("hermes", "Let me see.\n<tool_call>\n{</tool_call> So.")
    assert message.get("content") == "Let me see."
    assert message.get("malformed", [])[0]["text"] == "<tool_call>\n{</tool_call> So."


def test_the_error_in_the_arguments_is_reported() -> None:
    text = '<tool_call>\n{"name": "book", "arguments": %s}\n</tool_call>'
    [malformed] = read("hermes", text % "[3]").get("malformed", [])
    assert malformed["text"] == text % "[3]"
    assert malformed["error"].startswith("the arguments of 'book' must be a JSON object: ")
    [malformed] = read("hermes", text % '{"guests": NaN}').get("malformed", [])
    assert "NaN is not a JSON number" in malformed["error"]


def test_a_broken_call_beside_a_good_one_is_reported() -> None:
    good = written("qwen3_xml", calling({"guests": 3}))
    message = read("qwen3_xml", f"So.\n<tool_call>\nbook\n</tool_call>{good}")
    assert arguments_of(message) == [{"guests": 3}]
    assert [piece["text"] for piece in message.get("malformed", [])] == [f"<tool_call>\nbook\n</tool_call>{good}"]
    assert message.get("content") == "So."


@pytest.mark.parametrize("name", ["hermes", "qwen3_xml", "glm45", "xlam", "granite", "pythonic", "llama3_json"])
def test_text_like_a_call_within_an_argument_is_not_a_call(name: str) -> None:
    beginning = written(name, calling({}))[:14]
    message = calling({"place": beginning, "guests": 2})
    assert read(name, written(name, message)) == message


def test_a_tag_of_every_answer_begins_no_call() -> None:
    tagging = tokenizer_of()
    tagging.chat_template = CHAT_TEMPLATE.replace("'<|im_start|>assistant\\n' -", "'<|im_start|>assistant\\n<final>' -")
    format = ChatFormat(tagging, tool_format="vllm:hermes").tool_format
    assert format is not None
    assert "malformed" not in format.parse("<final>Hello.", prefix="", tools=[TOOL])
    assert "malformed" in format.parse("<final><tool_call>{", prefix="", tools=[TOOL])


def mutated(rng: random.Random, texts: list[str]) -> str:
    text = rng.choice(texts) + rng.choice(["", " And: ", "\n"]) + rng.choice([*texts, "", ""])
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        piece = rng.choice(["<tool_call>", "{", "}", "[", "]", '"', "\n", "<", ">", "NaN", "\\ud800", "\ud83d", ""])
        text = text[:start] + piece + text[start + rng.randrange(6) :]
    return text


@ALL
def test_no_text_raises_an_error_or_stays_in_the_parser(name: str) -> None:
    """If the parser `granite4` is used again after some texts, it reads the next text differently."""
    rng = random.Random(0)
    texts = [written(name, calling({"place": "here"}, {"guests": 3})), written(name, calling({})), "Text."]
    samples = [mutated(rng, texts) for _ in range(150)]
    format = chat(name).tool_format
    assert format is not None
    first = [format.parse(sample, prefix="", tools=[TOOL]) for sample in samples]
    again = [format.parse(sample, prefix="", tools=[TOOL]) for sample in reversed(samples)]
    assert first == again[::-1]
    for message in first:
        json.dumps(message.get("tool_calls", []), ensure_ascii=False).encode()
    assert sum("tool_calls" in generation for generation in first) > 0
    assert sum("malformed" in generation for generation in first) > 10


# Errors.


def test_an_unknown_parser() -> None:
    with pytest.raises(ConfigurationError, match=r"'vllm:hermess': vLLM has no tool parser.*did you mean hermes\?"):
        ChatFormat(tokenizer_of(), tool_format="vllm:hermess")
    with pytest.raises(ConfigurationError, match=r"it has .*hermes, .*qwen3_xml, "):
        ChatFormat(tokenizer_of(), tool_format="vllm:1234")


def test_a_parser_that_does_not_read_what_the_template_renders() -> None:
    with pytest.raises(ConfigurationError, match=r"does not read the call.*parsers that fit: .*hermes, ") as caught:
        ChatFormat(tokenizer_of(), tool_format="vllm:pythonic")
    assert "pythonic" not in str(caught.value).partition("that fit:")[2]


def test_a_parser_whose_tokens_are_missing() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be used with this tokenizer: .*<\|python_tag\|>"):
        ChatFormat(tokenizer_of(LLAMA), tool_format="vllm:llama3_json")


def test_a_template_without_tools() -> None:
    plain = tokenizer_of()
    plain.chat_template = "{% for m in messages %}{{ '<|im_start|>' ~ m.content ~ '<|im_end|>' }}{% endfor %}"
    with pytest.raises(ConfigurationError, match="has no effect: the tokenizer's chat template does not render tools"):
        ChatFormat(plain, tool_format="vllm:hermes")


def test_a_template_without_calls() -> None:
    with pytest.raises(ConfigurationError, match=r"has no effect: .* does not render tool calls, so no parser can be"):
        ChatFormat(tokenizer_of("{{- '' -}}"), tool_format="vllm:hermes")


# In episodes.


def xml_buttons() -> Any:
    tokenizer = copy.deepcopy(buttons_tokenizer())
    tokenizer.chat_template = template(XML)
    return tokenizer


def press(name: str) -> str:
    return f"<tool_call>\n<function={name}>\n</function>\n</tool_call><|im_end|>"


def scripted(tokenizer: Any, *answers: str) -> ScriptedGenerator:
    """Each turn's answer in an episode. The answers in the prompt give the number of the turn."""
    start = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)

    def answer(request: Any) -> list[int]:
        text = tokenizer.decode(request.prompt.ids)
        return tokenizer.encode(answers[text.count(tokenizer.decode(start)) - 1], add_special_tokens=False)

    return ScriptedGenerator(answer)


async def test_an_episode() -> None:
    tokenizer = xml_buttons()
    generator = scripted(tokenizer, press("look"), "<tool_call>\nleft\n</tool_call><|im_end|>", press("left"))
    policy = TokenPolicy(
        ChatFormat(tokenizer, tool_format="vllm:qwen3_xml"),
        generator,
        sampling=Sampling(),
        budgets=TokenBudgets(max_completion_length=400, max_model_len=800),
    )
    engine = RolloutEngine(Buttons, policy, on_failure="raise")
    [episode] = await engine.run(episode_specs(ROWS[:1], group_size=1, seed=0))
    assert episode.stop is StopReason.FINAL_ANSWER
    assert episode.reward == 1.0
    assert [[call.name for call in turn.tool_calls] for turn in episode.turns] == [["look"], [], ["left"]]
    [result] = episode.turns[1].observation
    assert "could not be read: vLLM's tool parser 'qwen3_xml'" in str(result.get("content"))
    [trace] = episode.traces
    assert trace.drift == 0
    sampled = [item for item, mask in zip(trace.completion_ids, trace.mask, strict=True) if mask]
    assert tokenizer.decode(sampled).count("<function=") == 2


def test_a_training_step(tmp_path: Path) -> None:
    tokenizer = xml_buttons()
    trainer = GRPOTrainer(
        model=model(),
        environment=Buttons(),
        args=config(tmp_path, max_completion_length=200),
        train_dataset=ROWS,
        processing_class=tokenizer,
        tool_format="vllm:qwen3_xml",
        generator=scripted(tokenizer, press("look"), press("left")),
    )
    trainer.train()
    assert trainer.state.log_history[0]["environment/success"] == 1.0
