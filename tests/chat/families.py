"""The chat templates of the model families, each with a tokenizer and a `ChatFormat`.

The templates are those that TRL ships as package data, and those of `tests/chat/chat_templates`. Each gets a tokenizer
of single bytes that has the family's special tokens (`tokens.json`) as single tokens.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import trl
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from gymnast.envs.core import Message, ToolSchema
from gymnast.trainer import ChatFormat
from gymnast.trainer.tool_calls.react import ReActFormat

OWN = Path(__file__).parent / "chat_templates"
FOLDERS = (Path(str(trl.__file__)).parent / "chat_templates", OWN)
TEMPLATES = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.jinja"))}
TOKENS: dict[str, dict[str, Any]] = json.loads((OWN / "tokens.json").read_text())
STEMS = sorted(TEMPLATES)

IN_PARTS = ("idefics3", "llava_next", "smolvlm")  # their templates only take content as a list of parts
# Templates that render calls and results but not tools; their format has to be given by name.
GIVEN = {"deepseekv3": "deepseek_v3", "deepseekv3_training": "deepseek_v3", "deepseek_v3_1": "deepseek_v3_1"}

WEATHER: ToolSchema = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A city."}},
            "required": ["city"],
        },
    },
}
TOOLS = [WEATHER]
QUESTION: Message = {"role": "user", "content": "What is the weather in Zürich?"}


@cache
def _bytes() -> str:
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    tokenizer.decoder = ByteLevelDecoder()  # type: ignore[assignment]
    return tokenizer.to_str()


@cache
def tokenizer_of(stem: str) -> Any:
    """A tokenizer of bytes with the template and the special tokens of a family."""
    known = TOKENS[stem]
    named = {"eos_token": known["eos"][0], "bos_token": known["bos"]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bytes()),
        clean_up_tokenization_spaces=False,
        **{key: token for key, token in named.items() if token},
    )
    others = [token for token in [*known["special"], *known["eos"]] if token not in named.values()]
    tokenizer.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(others))})
    tokenizer.add_tokens(known["added"])
    tokenizer.chat_template = TEMPLATES[stem].read_text()
    return tokenizer


@cache
def chat_of(stem: str, tool_format: str | None = None) -> ChatFormat:
    """The template's `ChatFormat`, which knows the end tokens of the family's generation config."""
    tokenizer = tokenizer_of(stem)
    ends = tokenizer.convert_tokens_to_ids(TOKENS[stem]["eos"])
    return ChatFormat(tokenizer, tool_format=tool_format, end_token_ids=ends)


@cache
def usable_chat(stem: str) -> ChatFormat:
    """The template's `ChatFormat`, with the tool format that a user has to give if the template renders no tools."""
    chat = chat_of(stem)
    return chat_of(stem, GIVEN.get(stem, "react")) if chat.recognition.problem else chat


def is_react(chat: ChatFormat) -> bool:
    return isinstance(chat.tool_format, ReActFormat)
