"""ChatTemplate: a tokenizer's chat template as text and tokens.

The content of a message is text. If it spells a special token, as a web page with `</s>` does, the token is spelled out
and has no effect, so neither a tool nor a row of a data set can forge the end of a turn. In the result of a tool this
holds for every added token that the template uses, special or not. Other messages may mention such tokens: "think
between <think> and </think>".

A template that asks for today's date gets a fixed one, so that a run does not depend on its day.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...envs.core import ConfigurationError, Message, ToolSchema
from ...envs.images import Image
from ...envs.tokens import ImageSpan, Tokens
from ..models.images import ImageEncoder

_ESCAPED = re.compile(r"\\ufdd([012])")  # as written by a template that shows lists in Python's syntax
_SPEAKERS = ("system", "developer", "user", "assistant")
TEMPLATE_DATE = datetime.date(2025, 1, 1)
# Noncharacters, which no text contains.
_BREAK = "\ufdd0"  # the place to cut a spelled-out special token
_IMAGE = re.compile("\ufdd1([0-9]+)\ufdd2")  # the place of the image of this number among those of the messages
_NONCHARACTERS = re.compile("[\ufdd0-\ufdd2]")


class ChatTemplate:
    """A tokenizer's chat template, with the arguments that are passed to it, and the date if it asks for one.

    With `images` it shows pictures, in messages of every role: the text that it writes for a picture of the user takes
    the picture's place in the text of the message.

    Raises:
        ConfigurationError: there is no template, or it writes nothing for a picture.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        kwargs: Mapping[str, Any],
        *,
        today: datetime.date,
        images: ImageEncoder | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "the tokenizer has no chat template; set tokenizer.chat_template, or use an instruction-tuned model. "
                "See docs/tokens.md"
            )
        self._tokenizer: Any = tokenizer
        moment = datetime.datetime.combine(today, datetime.time())
        self._kwargs = {"strftime_now": moment.strftime, **kwargs}
        added = self._tokenizer.get_added_vocab()
        control = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        special = frozenset({*self._tokenizer.all_special_tokens, *control})
        self.special_ids = frozenset({*self._tokenizer.all_special_ids, *added.values()})
        self._added, source = frozenset(added), self.source()
        self._speakers = _any_of(special)
        self._control = _any_of(frozenset({*special, *(token for token in added if token in source)}))
        self._in_parts = False
        self._tools_in_system = False
        self.least_tools: Sequence[ToolSchema] = ()  # without them the template fails
        written = self._find_least()
        # Added tokens that the template writes around messages, without the markers of thoughts.
        self.turn_tokens = frozenset(token for token in self.added_in(written) if "think" not in token.lower())
        self._speakers = _any_of(self.turn_tokens | special)
        self.tools_problem = self._find_tools()
        self.images = images
        self._around_image = ("", "") if images is None else self._find_image(images)

    def probe_tools(self, messages: Sequence[Message]) -> Sequence[ToolSchema]:
        """Return the tools for a probe. Templates render tool results only if tools are given."""
        return [PROBE_TOOL] if messages[0]["role"] == "tool" else self.least_tools

    def source(self) -> str:
        """Return the Jinja source that is used when there are tools, without its comments."""
        try:
            source = self._tokenizer.get_chat_template(tools=[PROBE_TOOL])
        except ValueError as error:
            raise ConfigurationError(f"the tokenizer's chat template cannot be chosen: {error}") from error
        return re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        more: bool = False,
        goes_on: bool = False,
    ) -> str:
        """Return the conversation as text, for `encode`.

        With `more` it begins the model's next answer; with `goes_on` it leaves the last message open.

        Raises:
            ConfigurationError: the template refuses it or drops a picture, or a message has content that is neither
                text nor a picture.
        """
        numbers = itertools.count()
        texts: list[Any] = [self._as_text(message, numbers) for message in messages]
        if tools and self._tools_in_system:
            texts = _with_tools_in_system(texts, _break(list(tools), self._control))
            tools = ()
        schemas = _break(list(tools), self._control) or None
        options = {**self._kwargs, "tools": schemas, "add_generation_prompt": more, "continue_final_message": goes_on}
        try:
            text: str = self._tokenizer.apply_chat_template(texts, tokenize=False, **options)
        except Exception as error:  # the template's own code may raise anything
            roles = [message["role"] for message in messages]
            missing = " without tools" if self.least_tools and not tools else ""
            raise ConfigurationError(
                f"the chat template cannot render messages of roles {roles}{missing}: {error}"
            ) from error
        text = _ESCAPED.sub(lambda match: chr(0xFDD0 + int(match[1])), text)
        shown = sorted(int(number) for number in _IMAGE.findall(text))
        if shown != [*range(count := next(numbers))]:
            roles = [message["role"] for message in messages]
            raise ConfigurationError(
                f"the chat template does not show each of {count} pictures in messages of roles {roles} once"
            )
        return text

    def after_answer(self, messages: Sequence[Message], **options: Any) -> str:
        """Return the rendered text after the first `SENTINEL`; empty if that is lost."""
        return self.render(messages, **options).partition(SENTINEL)[2]

    def encode(self, text: str, *, behind: bool = False, images: Sequence[Image] = ()) -> Tokens:
        """Return the tokens of a rendered text, which may stand behind another one; `images` are `images_of` it.

        The template itself has written the beginning-of-sequence token, if any.
        """
        first, *others = text.split(_BREAK)
        tokens = self._encode_piece(first, images, behind=behind)
        for piece in others:
            tokens += self._encode_piece(piece, images, behind=True)
        return tokens

    def _encode_piece(self, text: str, images: Sequence[Image], *, behind: bool) -> Tokens:
        # Behind a special token, SentencePiece puts no space before a text that goes on.
        before = self._tokenizer.eos_token or "" if behind else ""
        whole, places = before, list[tuple[int, int, Image]]()
        for index, piece in enumerate(_IMAGE.split(text)):  # texts and numbers in turn
            if index % 2:
                assert self.images is not None
                image = self.images.shown(images[int(piece)])
                piece = self.images.text(image)
                places.append((len(whole), len(whole) + len(piece), image))
            whole += piece
        # A text longer than the context ends its episode: transformers would warn of errors that do not come.
        encoded = self._tokenizer(whole, add_special_tokens=False, verbose=False)
        skipped = 1 if before else 0
        spans, last = list[ImageSpan](), 0
        for start, end, image in places:  # a token that reaches over the border belongs to the image
            first = max(last, encoded.char_to_token(start) - skipped)
            last = encoded.char_to_token(end - 1) - skipped + 1
            spans.append(ImageSpan(first, last - first, image))
        shared: dict[int, int] = {}  # an image is one id many times, and each int would take 32 bytes
        return Tokens([shared.setdefault(i, i) for i in encoded["input_ids"][skipped:]], tuple(spans))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of these tokens, special ones included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def added_in(self, text: str) -> set[str]:
        """Return the added tokens that the text spells, special or not."""
        return {token for token in self._added if token in text}

    def spell(self, pieces: Sequence[str]) -> str:
        """Return a text of the assistant as `render` writes it: only `Verbatim` pieces keep their special tokens."""
        return self._joined(pieces, self._speakers)

    def _find_least(self) -> str:
        """Return the text of a small conversation; empty if the template cannot render it.

        Find thereby whether the template takes content as a list of parts only (some vision models), or needs tools.
        """
        answer: Message = {"role": "assistant", "content": "Sunny."}
        for tools, in_parts in itertools.product(((), (PROBE_TOOL,)), (False, True)):
            self._in_parts = in_parts
            try:
                text = self.render([QUESTION, answer, QUESTION], tools=tools)
            except ConfigurationError:
                continue
            if "Hello." in text and "Sunny." in text:
                self.least_tools = tools
                return text
        self._in_parts = False
        return ""

    def _find_tools(self) -> str:
        """Return why the template cannot render tools; empty if it can, as they are or in the system message."""
        problem = ""
        for self._tools_in_system in (False, True):
            try:
                if PROBE_TOOL["function"]["name"] in self.render([QUESTION], tools=[PROBE_TOOL]):
                    return ""
            except ConfigurationError as error:
                problem = problem or f" ({error})"
        self._tools_in_system = False
        return f"the tokenizer's chat template does not render tools{problem}"

    def _find_image(self, images: ImageEncoder) -> tuple[str, str]:
        """Return the text that the template writes before and behind the placeholder of a picture."""
        parts: Any = [{"type": "text", "text": "qZa"}, {"type": "image"}, {"type": "text", "text": "bZq"}]
        messages, tools = [{"role": "user", "content": parts}], [*self.least_tools] or None
        remedy = "set tokenizer.chat_template to the one of the model's processor"
        try:
            written = self._tokenizer.apply_chat_template(messages, tokenize=False, **self._kwargs, tools=tools)
        except Exception as error:  # the template's own code may raise anything
            raise ConfigurationError(
                f"the model takes images, but the chat template fails where a user's message has one ({error}): "
                f"{remedy}"
            ) from error
        text = written.partition("qZa")[2].partition("bZq")[0]
        if text.count(images.placeholder) != 1:
            raise ConfigurationError(
                f"the model takes images, but the chat template writes {text!r} for one in a user's message, without "
                f"{images.placeholder!r}: {remedy}"
            )
        before, behind = text.split(images.placeholder)
        return before, behind

    def _as_text(self, message: Message, numbers: Iterator[int]) -> Message:
        """Return the message with broken tokens, and with joined parts, since many templates drop parts silently."""
        role = message["role"]
        pattern = self._speakers if role in _SPEAKERS else self._control
        broken = {key: value if key == "role" else _break(value, pattern) for key, value in message.items()}
        content = message.get("content")
        if isinstance(content, str | list):
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts = [self._text_of(part, role, numbers) for part in parts]
            broken["content"] = self._joined(texts, pattern)
        if self._in_parts and "content" in broken:
            broken["content"] = [{"type": "text", "text": broken["content"] or ""}]
        return broken  # type: ignore[return-value]

    def _text_of(self, part: Any, role: str, numbers: Iterator[int]) -> str:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind == "text" and isinstance(part.get("text"), str):
            return part["text"]
        if kind != "image":
            raise ConfigurationError(
                f"a message of role {role!r} has a content part of type {kind!r}: a model is shown text and images"
            )
        if self.images is None:
            raise ConfigurationError(
                f"a message of role {role!r} has an image, and this model is shown text only: use a model with a "
                f"processor for images, or replace the image by text"
            )
        before, behind = self._around_image
        return Verbatim(f"{before}\ufdd1{next(numbers)}\ufdd2{behind}")

    def _joined(self, texts: Sequence[str], pattern: re.Pattern[str]) -> str:
        """Join texts. Neighbours of one kind are broken as a whole, since they may share a token."""
        joined = ""
        for kind, run in itertools.groupby(texts, key=type):
            text = "".join(run)
            joined += text if kind is Verbatim else _break(text, self._control if kind is FromTool else pattern)
        return joined


class Verbatim(str):
    """Text in which special tokens count as such; only gymnast's own words are `Verbatim`."""


class FromTool(str):
    """A tool's result within a user's message."""


def _break(value: Any, pattern: re.Pattern[str]) -> Any:
    """Break the tokens in the texts of a JSON-like value, and replace characters that no tokenizer takes."""
    if isinstance(value, str):
        if not value.isascii():
            value = _NONCHARACTERS.sub("\ufffd", value).encode("utf-8", "replace").decode()
        value = value.replace("\\ufdd", f"\\{_BREAK}ufdd")  # spelled out: no template has escaped it
        return pattern.sub(lambda match: match[0][0] + _BREAK + match[0][1:], value)
    if isinstance(value, Mapping):
        return {_break(key, pattern): _break(item, pattern) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_break(item, pattern) for item in value]
    return value


@lru_cache(maxsize=16)  # a tokenizer may have thousands, and mostly they are the same for all kinds of messages
def _any_of(tokens: frozenset[str]) -> re.Pattern[str]:
    named = sorted((re.escape(token) for token in tokens if len(token.strip()) > 1), key=len, reverse=True)
    return re.compile("|".join(named) or "(?!)")


def _with_tools_in_system(messages: list[Any], tools: Sequence[ToolSchema]) -> list[Any]:
    """Put the tools as JSON into the system message's `tools`, where Phi-4-mini's template looks."""
    if not messages or messages[0]["role"] != "system":
        messages = [{"role": "system", "content": ""}, *messages]
    functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    return [{**messages[0], "tools": functions}, *messages[1:]]


SENTINEL = "qZ7answerZq"  # letters and a digit only, so that no template or JSON escape changes it
QUESTION: Message = {"role": "user", "content": "Hello."}
PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool that shows how the template renders tools.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city."},
                "days": {"type": "integer", "description": "A number of days."},
            },
            "required": ["city", "days"],
        },
    },
}
