"""Tool-call formats with any name, arguments and completion: written calls are read, and no text raises an error."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import trl.chat_template_utils as trl_templates
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gymnast.envs.core import Message, ToolSchema
from gymnast.envs.tokens import Tokens
from gymnast.trainer import FORMATS, ChatFormat, ToolFormat
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

from ..chat.families import STEMS, chat_of
from .reading_time import not_held
from .writers import KINDS, WRITERS

ANY = settings(
    derandomize=True,
    deadline=None,
    max_examples=20,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
JSON = dict[str, Any]

# Chat templates of each format. If they render no calls, or there is no template, only our own writer is used.
RENDERED = {
    "harmony": ("gptoss",),
    "atem": ("muse_glimmer",),
    "qwen3_coder": ("qwen3_coder", "qwen3_6", "nemotron_3_nano"),
    "seed_oss": ("seed_oss",),
    "minimax_m2": ("minimax_m2",),
    "glm4": ("glm4moe", "glm_4_7"),
    "gemma4": ("gemma4",),
    "functiongemma": ("functiongemma",),
    "deepseek_v3": ("deepseek_r1",),
    "deepseek_v3_1": ("deepseek_v3_1",),
    "kimi_k2": ("kimi_k2",),
    "mistral_v11": ("mistral_small_3_2", "magistral"),
    "mistral": ("mistral_nemo", "mistral_v3"),
    "command_r7b": ("command_r7b",),
    "command_r": ("command_r",),
    "lfm2": ("lfm2_v2", "lfm2_2_5"),
    "llama3": ("llama3_1",),
    "hermes": ("qwen3", "granite_4"),
}
WRITTEN = {
    "granite3": ("granite_3_3", "phi4_mini"),
    "pythonic": ("smollm3",),
    "react": ("chatml",),
    "olmo3": ("chatml",),
}


def rendering(name: str) -> tuple[str, ...]:
    """Templates that render calls of a format: those named above, or the first that is recognised."""
    if name in RENDERED or name in WRITTEN:
        return RENDERED.get(name, ())
    found = tuple(stem for stem in STEMS if getattr(chat_of(stem).tool_format, "name", "") == name)[:1]
    assert found, f"no template renders calls of {name}; if there is none, name it in WRITTEN"
    return found


# Contents of calls.

MARKERS = sorted({piece for writer in WRITERS.values() for piece in (*writer.pieces, *writer.thinking)})
MARKERS += [*(writer(a="x") for writer in WRITERS.values()), '"}}', "'", '"', "\\", "\\n", "{", "}", "]", "\n", "'''"]
MARKERS += ["<|im_end|>", "</s>", "<|eot_id|>", "\\u00e9", "\\ud83d\\ude00", "[INST]", "|", "True", "null", "75001"]
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
# Names of parameters and nested keys, for formats that write keys without quotes.
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True)
# Without the noncharacter that `ChatTemplate` cuts at: it is replaced in what a conversation says.
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0")
TEXTS = st.text(CHARACTERS, max_size=12)
TEXTS |= st.lists(st.sampled_from(MARKERS) | st.text(CHARACTERS, max_size=5), max_size=4).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS


def values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS, lambda item: st.lists(item, max_size=3) | st.dictionaries(keys, item, max_size=3), max_leaves=5
    )


ARGUMENTS = {
    "json": st.dictionaries(KEYS | TEXTS, values(TEXTS), max_size=4),
    "keys": st.dictionaries(KEYS, values(TEXTS), max_size=4),  # parameters have names, what nests in them is JSON
    "bare": st.dictionaries(KEYS, values(KEYS), max_size=4),  # no key has quotes
}
TEXTUAL, PYTHON, BRACES = (
    [name for name, writer in WRITERS.items() if writer.kind == kind] for kind in ("text", "python", "braces")
)
ARGUMENT_KINDS = {**dict.fromkeys([*TEXTUAL, *PYTHON], "keys"), **dict.fromkeys(BRACES, "bare")}


def kind_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def tool_for(name: str, arguments: Mapping[str, Any]) -> ToolSchema:
    """A tool that takes just these arguments."""
    properties = {key: {"type": kind_of(value)} for key, value in arguments.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


# Ambiguous texts, since a format or a template escapes nothing: the end of a value, and then text after a value.

XML_END = r"</parameter>\s*(?:<parameter[= ][^<>\n]+>|</function>|</invoke>|</(?:seed:|minimax:)?tool_call>)"
AMBIGUOUS = {
    "qwen3_coder": XML_END,
    "minimax_m2": XML_END,
    "glm4": r"</arg_value>\s*(?:<arg_key>|</tool_call>)|(?<!>)\n[ \t]*<arg_key>",
    # Two calls behind each other, or the beginning of one behind a quote and a comma.
    "olmo3": r"['\"]\s*,\s*[\w.\-]+\s*\(",
    "lfm2": r"<\|tool_call_end\|>\s*<\|tool_call_start\|>\[|['\"]\s*,\s*[\w.\-]+\s*\(",
    "pythonic": r"['\"]\s*,\s*[\w.\-]+\s*\(",
    # ATEM's reader also ends a broken call where the next message begins.
    "atem": r"</atem:parameter>\s*(?:<atem:(?:parameter )|</atem:(?:invoke|function_calls)>)|<\|start\|>assistant",
    "gemma4": r'<\|"\|>\s*[,}\]]',
}
UNESCAPED = {
    "lfm2_2_5": r"\\|'",  # texts are put between quotes as they are; lfm2_v2 escapes them
    "command_r": "[\x85\u2028\u2029]",  # its JSON is indented line by line, and these end a line for Python
}


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from texts_in(item)
    if isinstance(value, dict):
        yield from value


def finds(pattern: str | None, arguments: JSON) -> bool:
    return pattern is not None and any(re.search(pattern, text) for text in texts_in(arguments))


def same(message: Message, name: str, arguments: JSON) -> bool:
    """Whether the message is this call alone; 1 is not 1.0, and the order of keys says nothing."""
    found = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", [])]
    expected = json.dumps([[name, arguments]], sort_keys=True)
    return "malformed" not in message and json.dumps(found, sort_keys=True) == expected


def check_tokens(chat: ChatFormat, prefix: str, text: str, called: str, arguments: JSON) -> None:
    """Check that the tokens of a text are read as this call."""
    ids = [chat.tokenizer(item, add_special_tokens=False)["input_ids"] for item in (prefix, text)]
    assert chat.template.decode(ids[1]) == text
    message = chat.parse(Tokens(ids[0]), ids[1], [tool_for(called, arguments)])
    assert same(message, called, arguments), (text, message)


def check_written(name: str, called: str, arguments: JSON, before: str = "") -> None:
    """Check that calls of our own writer are read."""
    write, prefix = WRITERS[name], "<|start|>assistant" if name in ("harmony", "atem") else ""
    text = write.answer(write.call(called, write.arguments(arguments)), before=before if write.text_before else "")
    for stem in (WRITTEN.get(name) or rendering(name))[:1]:
        check_tokens(chat_of(stem, name), prefix, text, called, arguments)


def check_rendered(name: str, called: str, arguments: JSON) -> None:
    """Check that calls rendered by the chat templates are read."""
    for stem in rendering(name):
        chat = chat_of(stem, name)
        assert chat.endings.call_end is not None
        turn_ends = chat.endings.call_end.anchor in json.dumps(arguments, ensure_ascii=False)
        if not turn_ends and not finds(UNESCAPED.get(stem), arguments):
            rendered = chat.endings.render_call(called, arguments)
            assert rendered is not None
            check_tokens(chat, *rendered, called, arguments)


@pytest.mark.parametrize("check", [check_written, check_rendered])
@pytest.mark.parametrize("name", KINDS)
def test_markers_within_values_are_text(name: str, check: Callable[[str, str, JSON], None]) -> None:
    unclear = AMBIGUOUS.get(name)
    clear = [marker for marker in MARKERS if not finds(unclear, {"a": f"{marker}x{marker}", "b": f"{marker}{marker}"})]
    assert len(clear) > len(MARKERS) * 0.8
    for start in range(0, len(clear), 12):
        some = clear[start : start + 12]
        texts = {f"k{index}": f"{value}x{value}" for index, value in enumerate(some)}
        doubled = [{"a": value, "b": [value + value]} for value in some]
        check(name, "tool", {**texts, "last": doubled})


@pytest.mark.parametrize("name", KINDS)
def test_every_call_comes_back(name: str) -> None:
    @ANY
    @given(called=NAMES, arguments=ARGUMENTS[ARGUMENT_KINDS.get(name, "json")], before=st.sampled_from(["", "So:"]))
    def check(called: str, arguments: JSON, before: str) -> None:
        assume(not finds(AMBIGUOUS.get(name), arguments))
        check_written(name, called, arguments, before)
        check_rendered(name, called, arguments)

    check()


# Values that JSON, Python and text do not agree about.


def read(name: str, text: str) -> Message:
    return FORMATS[name].parse(text, prefix="<|start|>assistant" if name in ("harmony", "atem") else "", tools=TOOLS)


@pytest.mark.parametrize("name", FORMATS)
def test_the_last_of_two_equal_keys_counts(name: str) -> None:
    write = WRITERS[name]
    first, second = write.arguments({"a": 1}), write.arguments({"a": 2})
    between = "" if name in TEXTUAL else ", "
    if first.startswith("{"):
        first, second = first[:-1], second[1:]
    text = write.answer(write.call("add", first + between + second))
    assert same(read(name, text), "add", {"a": 2}), text


@pytest.mark.parametrize("name", FORMATS)
def test_huge_integers(name: str) -> None:
    """They are read up to the 4300 digits that Python takes. With more, a call is malformed, or text stays text."""
    write = WRITERS[name]
    assert same(read(name, write.answer(write(a=10**4000))), "add", {"a": 10**4000})
    message = read(name, write.answer(write(a=7)).replace("7", "7" * 5000))
    if name in TEXTUAL:
        assert same(message, "add", {"a": "7" * 5000})
    else:
        assert "tool_calls" not in message
        assert len(message.get("malformed", [])) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_half_of_a_surrogate_pair_is_malformed(name: str) -> None:
    """No tokenizer and no file can hold it."""
    write = WRITERS[name]
    for code in (0xD83D, 0xDE00):
        for text in (write.answer(write("say", text="x7y")), write.answer(write("s7y")), write.answer(write(k7=1))):
            message = read(name, text.replace("7", chr(code)))
            assert "tool_calls" not in message, text
            check_message(message)
        if name not in (*TEXTUAL, *BRACES):  # as an escape, which is text elsewhere
            escaped = read(name, write.answer(write("say", text="x7y")).replace("7", f"\\u{code:x}"))
            assert "tool_calls" not in escaped
            assert len(escaped.get("malformed", [])) == 1


# Anything at all.

HARMLESS = [*MARKERS, '{"name": "add"', '"parameters"', '"arguments"', ":", ",", ";", "[", "1e999", "-", "NaN", "\\u"]
HARMLESS += ["\\ud800", "\ud83d", "ü", "\x00", "Text. ", " ", "=", "(", "add", "a", "9" * 5000, "[" * 2000]
TOOLS = [tool_for("add", {"a": 1, "b": [], "c": {}, "d": None}), tool_for("say", {"text": "x"})]
SPOILT = ['{"a": 1', '{"a": NaN}', "[1]", "x", '{"a": 1, "a": {"b": "x"}}', '{"a": "\\ud800"}', "null", ""]


@cache
def own_pieces(name: str) -> list[str]:
    """Pieces that a model of the format may well write."""
    write = WRITERS[name]
    good = [write(a=1), write("say", text="x"), write(a=[1, {"b": None}], c="}"), write.answer(write(), write(a=2))]
    bad = [write.call("add", item) for item in SPOILT]
    return [*good * 3, *bad, *write.pieces, write.thinking[0] + "Hm." + write.thinking[1], write.thinking[0]]


def mutated(rng: random.Random, name: str) -> str:
    """A completion in the making: pieces put together, put in, taken out and swapped."""
    own = own_pieces(name)
    pieces = [rng.choice(own if rng.random() < 0.8 else HARMLESS) for _ in range(rng.randrange(1, 5))]
    text = "".join(pieces)
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice([*HARMLESS, ""]) + text[start + rng.randrange(6) :]
    return text


def check_message(message: Message) -> None:
    """Check that the message can be saved and sent to a model, whatever its content."""
    assert message["role"] == "assistant"
    assert isinstance(message.get("content"), str)
    assert isinstance(message.get("reasoning_content", ""), str)
    for call in message.get("tool_calls", []):
        assert call["function"]["name"]
        assert isinstance(call["function"]["arguments"], dict)
        assert isinstance(call.get("id", ""), str)
        json.dumps(call, ensure_ascii=False, allow_nan=False).encode()
    for piece in message.get("malformed", []):
        assert piece["error"]
        assert isinstance(piece["text"], str)
        json.dumps(piece["error"])


def templated() -> ToolFormat:
    tokenizer: Any = make_tiny_tokenizer(["x"], vocab_size=300)
    tokenizer.response_template = trl_templates.qwen3_template
    found = ChatFormat(tokenizer).tool_format
    assert found is not None
    return found


def test_no_text_raises_an_error() -> None:
    rng, names = random.Random(0), list(FORMATS)
    response_template = templated()
    seen = dict.fromkeys(["tool_calls", "malformed", "reasoning_content"], 0)
    for index in range(12_000):
        name = names[index % len(names)]
        prefix = rng.choice(["<|start|>assistant", "", "assistant\n<think>\n", WRITERS[name].thinking[0]])
        text, tools = mutated(rng, name), TOOLS if index % 50 else []
        readers: list[ToolFormat] = [FORMATS[name]]
        if index % 4 == 0:
            readers.append(FORMATS[rng.choice(names)])
        if index % 100 == names.index("hermes"):
            readers.append(response_template)
        for reader in readers:
            try:
                message = reader.parse(text, prefix=prefix, tools=tools)
                check_message(message)
            except Exception as error:
                raise AssertionError(f"{reader} on {text!r} after {prefix!r}") from error
            for key in seen:
                seen[key] += key in message
    assert min(seen.values()) > 100, seen


# Time.


def hostile_texts(name: str) -> Iterator[str]:
    """Texts that are hard for a format: its own marks, with and without a payload's beginning, and those of others."""
    write = WRITERS[name]
    for piece in (*write.pieces, *write.thinking):
        yield from ((piece + begun) * 1_000 for begun in ("", '{"a": "', "a='"))
    yield from (write.pieces[0] + piece * 2_000 for piece in ('{"name": ', "{", "[", '"', "<", "a=", "{a:", "\n", "\\"))
    for whole in (write(a=1), write("say", text="x, y")):
        yield from (whole[: round(len(whole) * part)] * 700 for part in (0.4, 0.6, 0.75, 0.9, 1))
    others = sorted({piece for writer in WRITERS.values() for piece in (*writer.pieces, *writer.thinking)})
    yield from ("".join(others[start : start + 10]) * 200 for start in range(0, len(others), 10))


@pytest.mark.parametrize("name", FORMATS)
def test_no_answer_blocks_a_reader_for_long(name: str) -> None:
    """A hostile answer must not stop the event loop."""
    for text in hostile_texts(name):
        with not_held(text):
            FORMATS[name].parse(text, prefix="<|start|>assistant", tools=TOOLS)
