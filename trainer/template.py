"""ChatTemplate: what a tokenizer's chat template writes after an answer, found by rendering probes.

An observation's text is what follows the answer's end token in a minimal conversation: one question, one answer, the
new messages. That is well defined if the template ends every answer with one token, whatever follows, and renders what
follows alike, whatever came before. Both are checked here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..envs.core import ConfigurationError, Message, ToolCall, ToolSchema
from .tool_formats import PROBE_CALL, PROBE_TOOL

SENTINEL = "qZ7answerZq"  # letters and a digit only, so that no template or JSON escape changes it
QUESTION: Message = {"role": "user", "content": "Hello."}
_RESULTS: tuple[Message, ...] = (
    {"role": "tool", "name": "probe_tool", "tool_call_id": "call_0", "content": "Sunny."},
    {"role": "tool", "name": "probe_tool", "tool_call_id": "call_1", "content": "Rainy."},
)
_NO_TOOLS = "the tokenizer's chat template does not render tools; use a model whose template does"
_UNDEFINED = (
    "the tokens of an observation are not well defined in this chat template: it does not render {what} as the answer, "
    "an end-of-turn token, and then what follows, whatever came before; use a template in which a turn's text depends "
    "neither on earlier nor on later turns, and ends with a special token"
)


class ChatTemplate:
    """A tokenizer's chat template as text and tokens.

    Attributes:
        end_id: The token that ends a turn; `end_text` is its text.
        supports_tools: The template tells the model of its tools.
        call_problem: Why results cannot follow calls; empty when they can.

    Raises:
        ConfigurationError: there is no template, or what follows a plain answer is not well defined in it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any]) -> None:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "the tokenizer has no chat template; set tokenizer.chat_template, or use an instruction-tuned model"
            )
        self._tokenizer: Any = tokenizer
        self._kwargs = dict(kwargs)
        self._one_call = False  # an answer with several calls cannot be rendered
        self.end_id, self.end_text, self._text_closing = self._probe_text_turn()
        self._check_follows(self._text_closing, [QUESTION], earlier=[{"role": "assistant", "content": "Hi."}, QUESTION])
        self.supports_tools = self._mentions_tools()
        self._call_closing, self.call_problem = self._probe_call_turn() if self.supports_tools else ("", _NO_TOOLS)

    # The tokenizer.

    def render(self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), more: bool = False) -> str:
        """The conversation as text; `more` begins the model's next answer.

        Raises:
            ConfigurationError: the template refuses it, or a message has content that is not text.
        """
        texts = [_as_text(each) for each in messages]
        options = {**self._kwargs, "tools": list(tools) or None, "add_generation_prompt": more}
        try:
            return self._tokenizer.apply_chat_template(texts, tokenize=False, **options)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:  # from the template's code
            roles = [message["role"] for message in messages]
            raise ConfigurationError(f"the chat template cannot render messages of roles {roles}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Tokens of a rendered text; the template itself has written the beginning-of-sequence token, if any."""
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    # What follows an answer.

    def follow_ids(self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool) -> list[int]:
        """The answer's end token, and the tokens of these messages after it.

        Raises:
            ConfigurationError: the template does not render them after an answer.
        """
        called = any(each["role"] == "tool" for each in messages)
        if called and self.call_problem:
            raise ConfigurationError(self.call_problem)
        closing = self._call_closing if called else self._text_closing
        tail = self._tail(messages, tools=tools, more=more)
        return self._encode_from_end(tail, closing, what="these messages")

    def probe_call(self) -> tuple[str, str]:
        """A prompt, and the text of an answer that calls `PROBE_CALL`."""
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
        before = self.render([QUESTION], tools=[PROBE_TOOL], more=True)
        whole = self.render([QUESTION, answer], tools=[PROBE_TOOL])
        common = next((i for i, (x, y) in enumerate(zip(before, whole, strict=False)) if x != y), len(before))
        return before[:common], whole[common:].partition(self.end_text)[0]

    def _probe_text_turn(self) -> tuple[int, str, str]:
        """The token that ends a turn, its text, and the text from an answer's last character to it (included)."""
        tail = self._after_sentinel([QUESTION, _text_answer()])
        special = {*self._tokenizer.all_special_ids, *self._tokenizer.get_added_vocab().values()}
        end_id = next((each for each in self.encode(tail or "") if each in special), None)
        if tail is None or end_id is None:
            raise ConfigurationError(_UNDEFINED.format(what="a plain answer"))
        end_text = self.decode([end_id])
        return end_id, end_text, tail[: tail.index(end_text)] + end_text

    def _probe_call_turn(self) -> tuple[str, str]:
        """The text from a call's last argument to the end token (included), and what is wrong, if anything is."""
        problems = []
        for self._one_call in (False, True):
            try:
                tail = self._after_sentinel([QUESTION, self._call_answer(_RESULTS)], tools=[PROBE_TOOL])
                before, found, _ = (tail or "").partition(self.end_text)
                closing = before + found if found else ""
                earlier = [self._call_answer(_RESULTS[:1], value="Paris"), _RESULTS[0]]
                for count in (1, 2):
                    self._check_follows(closing, _RESULTS[:count], earlier=earlier)
                return closing, ""
            except ConfigurationError as error:
                problems.append(str(error))
        return "", problems[0]

    def _check_follows(self, closing: str, messages: Sequence[Message], *, earlier: Sequence[Message]) -> None:
        """Check that these messages follow an answer's end token, and are rendered alike later in a conversation."""
        called = messages[0]["role"] == "tool"
        what = "a tool result after a call" if called else "a message after a plain answer"
        tools = [PROBE_TOOL] if called else []
        for more in (True, False):
            tail = self._tail(messages, tools=tools, more=more)
            self._encode_from_end(tail, closing, what=what)
            shown = all(str(each.get("content")) in str(tail) for each in messages)
            if not shown or tail != self._tail(messages, earlier=earlier, tools=tools, more=more):
                raise ConfigurationError(_UNDEFINED.format(what=what))

    def _encode_from_end(self, tail: str | None, closing: str, *, what: str) -> list[int]:
        """The tokens of what follows an answer, from its end token on."""
        if tail is None or not closing or not tail.startswith(closing):
            raise ConfigurationError(_UNDEFINED.format(what=what))
        ids = self.encode(self.end_text + tail[len(closing) :])
        if ids[0] != self.end_id:
            raise ConfigurationError(_UNDEFINED.format(what=what))
        return ids

    def _tail(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema], more: bool, earlier: Sequence[Message] = ()
    ) -> str | None:
        """What follows the text of the answer to which these messages reply."""
        messages = [_with_id(each, index) for index, each in enumerate(messages)]
        results = [each for each in messages if each["role"] == "tool"]
        answer = self._call_answer(results) if results else _text_answer()
        return self._after_sentinel([QUESTION, *earlier, answer, *messages], tools=tools, more=more)

    def _after_sentinel(self, messages: Sequence[Message], **options: Any) -> str | None:
        # After the first one: a later one is something that an environment repeats.
        _, found, tail = self.render(messages, **options).partition(SENTINEL)
        return tail if found else None

    def _call_answer(self, results: Sequence[Message], value: str = SENTINEL) -> Message:
        """An assistant message whose calls these results answer; the last argument of the last call is `value`."""
        answered: Sequence[Any] = results[:1] if self._one_call else results
        calls: list[ToolCall] = [
            {
                "id": each["tool_call_id"],
                "type": "function",
                "function": {"name": each["name"], "arguments": {"value": value if each is answered[-1] else "x"}},
            }
            for each in answered
        ]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _mentions_tools(self) -> bool:
        try:
            return "probe_tool" in self.render([QUESTION], tools=[PROBE_TOOL])
        except ConfigurationError:
            return False


def _text_answer() -> Message:
    return {"role": "assistant", "content": SENTINEL}


def _with_id(message: Message, index: int) -> Message:
    """A tool's message with name and id, which some templates look up in the calls that it answers."""
    if message["role"] != "tool":
        return message
    defaults: Message = {"role": "tool", "name": "unknown", "tool_call_id": f"call_{index}"}
    return {**defaults, **message}


def _as_text(message: Message) -> Message:
    """The message with its parts joined: many templates render strings only, and drop parts silently."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ConfigurationError(
                f"a message of role {message['role']!r} has a content part of type {kind!r}, which is not text: images "
                f"in messages are not supported yet"
            )
    return {**message, "content": "".join(part["text"] for part in content)}
