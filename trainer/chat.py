"""ChatFormat: from messages to exact tokens, and from tokens to a message.

The prompt is rendered once. From then on tokens are only appended: what the model sampled, and the observations. An
observation's tokens are found by rendering a minimal conversation (one question, one answer, the new messages) and
keeping what follows the answer, so a template that rewrites history does no harm, nothing that the model said is ever
tokenised again, and the cost does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..envs.calling import cut
from ..envs.core import ConfigurationError, Message, ToolCall, ToolSchema
from .tool_formats import (
    FORMATS,
    PROBE_CALL,
    PROBE_TOOL,
    CallableFormat,
    ResponseTemplateFormat,
    ToolFormat,
    ToolParser,
    recognise,
)

_SENTINEL = "qZ7answerZq"  # letters only, so that no template or JSON escape changes it
_QUESTION: Message = {"role": "user", "content": "Hello."}


class ChatFormat:
    """A tokenizer's chat template as a mapping between messages and exact tokens.

    Args:
        tokenizer: Has a chat template.
        tool_format: How the model writes tool calls: a name in `FORMATS`, a `ToolFormat`, or a function from text to
            an assistant message. By default the tokenizer's `response_template`, else the format that the chat
            template's markers tell.
        end_token_ids: Further ids that end a turn, as in the model's generation config.
        template_kwargs: Passed to the chat template, e.g. `{"enable_thinking": False}`.

    Raises:
        ConfigurationError: there is no chat template, or the tokens of an observation are not well defined in it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tool_format: str | ToolFormat | ToolParser | None = None,
        end_token_ids: Collection[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "the tokenizer has no chat template; set tokenizer.chat_template, or use an instruction-tuned model"
            )
        self.tokenizer = tokenizer
        self._template_kwargs = dict(template_kwargs or {})
        self.end_id, self._text_closer = self._probe_text_turn()
        self.end_ids = frozenset({self.end_id, *end_token_ids, *_as_list(tokenizer.eos_token_id)})
        self._call_closer: str | None = None
        self._call_problem = ""
        self.supports_tools = self._mentions_tools()
        if self.supports_tools:
            self._call_closer, self._call_problem = self._probe_call_turn()
        self.tool_format, self.tool_format_reason = self._choose_tool_format(tool_format)

    # Tokens.

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """The tokens of an episode's first messages, up to where the model begins to write."""
        return self._encode(self._render(messages, tools=tools or None, add_generation_prompt=True))

    def observation_ids(self, messages: Sequence[Message], *, closed: bool, last: bool) -> list[int]:
        """The tokens of the environment's new messages, as they follow the model's answer.

        Args:
            messages: The new messages.
            closed: The answer ended with one of `end_ids`; otherwise the missing end token is supplied here.
            last: The episode is over, so no new answer is begun.

        Raises:
            ConfigurationError: the template does not render them after an answer.
        """
        called = bool(messages) and messages[0]["role"] == "tool"
        closer = self._call_closer if called else self._text_closer
        if closer is None:
            raise ConfigurationError(self._call_problem)
        answer = _probe_calls(messages) if called else _probe_text()
        text = self._render([_QUESTION, answer, *messages], add_generation_prompt=not last)
        tail = _after_sentinel(text)
        if tail is None or not tail.startswith(closer + self._end_text):
            raise ConfigurationError(_UNDEFINED.format(what="these messages"))
        ids = self._encode(tail[len(closer) :])
        assert ids[0] == self.end_id, "an added token is never merged with its neighbours"
        return ids[1:] if closed else ids

    def fit_observation(
        self, messages: Sequence[Message], *, closed: bool, last: bool, max_tokens: int
    ) -> list[int] | None:
        """`observation_ids`, with the texts cut (marker included) until they take at most `max_tokens`.

        Returns None when even the empty messages do not fit.
        """
        ids = self.observation_ids(messages, closed=closed, last=last)
        if len(ids) <= max_tokens:
            return ids
        best: list[int] | None = None
        low, high = 0, max((_text_length(message) for message in messages), default=0)
        while low <= high:  # the largest number of characters that fits
            middle = (low + high) // 2
            shorter: list[Message] = [{**each, "content": cut(each.get("content") or "", middle)} for each in messages]
            ids = self.observation_ids(shorter, closed=closed, last=last)
            if len(ids) <= max_tokens:
                best, low = ids, middle + 1
            else:
                high = middle - 1
        return best

    def parse(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """The assistant message that the sampled tokens mean; never raises on what a model may write."""
        ids = list(sampled_ids[:-1] if sampled_ids and sampled_ids[-1] in self.end_ids else sampled_ids)
        text = self._decode(ids)
        if self.tool_format is None:
            return {"role": "assistant", "content": text}
        return self.tool_format.parse(text, prefix=self._decode(prompt_ids[-PREFIX_TOKENS:]), tools=tools)

    def check_tools(self, tools: Sequence[ToolSchema]) -> None:
        """Check that the model can be told of these tools and that its calls can be read.

        Raises:
            ConfigurationError: it cannot.
        """
        if not tools:
            return
        if not self.supports_tools:
            raise ConfigurationError(
                "the tokenizer's chat template does not render tools, but the environment has some: "
                f"{[each['function']['name'] for each in tools]}; use a model whose template knows tools"
            )
        if self._call_closer is None:
            raise ConfigurationError(self._call_problem)
        if self.tool_format is None:
            raise ConfigurationError(
                f"the tool-call format of the chat template was not recognised ({self.tool_format_reason}); pass "
                f"tool_format= one of {sorted(FORMATS)}, or a function from text to an assistant message"
            )

    # How the template ends a turn.

    @property
    def _end_text(self) -> str:
        return self._decode([self.end_id])

    def _probe_text_turn(self) -> tuple[int, str]:
        """The token that ends a turn, and the text between an answer and that token (usually none)."""
        tail = _after_sentinel(self._render([_QUESTION, _probe_text()]))
        ids = self._encode(tail) if tail else []
        special = {*self.tokenizer.all_special_ids, *getattr(self.tokenizer, "added_tokens_decoder", {})}
        position = next((index for index, each in enumerate(ids) if each in special), None)
        if tail is None or position is None:
            raise ConfigurationError(_UNDEFINED.format(what="a plain answer"))
        end_id = ids[position]
        closer = tail[: tail.index(self._decode([end_id]))]
        follow = _after_sentinel(self._render([_QUESTION, _probe_text(), _QUESTION], add_generation_prompt=True))
        if follow is None or not follow.startswith(closer + self._decode([end_id])):
            raise ConfigurationError(_UNDEFINED.format(what="a question after a plain answer"))
        return end_id, closer

    def _probe_call_turn(self) -> tuple[str | None, str]:
        """The text between a tool call's last argument and the end token; or None and what is wrong."""
        result: Message = {"role": "tool", "name": "probe_tool", "tool_call_id": "call_0", "content": "Sunny."}
        answer = _probe_calls([result])
        try:
            tail = _after_sentinel(self._render([_QUESTION, answer], tools=[PROBE_TOOL]))
            follow = _after_sentinel(self._render([_QUESTION, answer, result], add_generation_prompt=True))
        except ConfigurationError as error:
            return None, f"{_UNDEFINED.format(what='a tool result')} ({error})"
        if tail is None or self._end_text not in tail or follow is None:
            return None, _UNDEFINED.format(what="a tool call")
        closer = tail[: tail.index(self._end_text)]
        if not follow.startswith(closer + self._end_text) or "Sunny." not in follow:
            return None, _UNDEFINED.format(what="a tool result")
        return closer, ""

    def _mentions_tools(self) -> bool:
        try:
            return "probe_tool" in self._render([_QUESTION], tools=[PROBE_TOOL])
        except ConfigurationError:
            return False

    # How the model writes a call.

    def _choose_tool_format(self, given: str | ToolFormat | ToolParser | None) -> tuple[ToolFormat | None, str]:
        if isinstance(given, str):
            if given not in FORMATS:
                raise ConfigurationError(f"unknown tool_format {given!r}; known are {sorted(FORMATS)}")
            return FORMATS[given], "given by name"
        if given is not None:
            if hasattr(given, "parse"):
                return given, "given"  # type: ignore[return-value]
            if callable(given):
                return CallableFormat(parser=given), "given"
            raise ConfigurationError(f"tool_format must be a name, a ToolFormat or a function, got {given!r}")
        if getattr(self.tokenizer, "response_template", None) is not None:
            return ResponseTemplateFormat(tokenizer=self.tokenizer), "the tokenizer's response_template"
        if not self.supports_tools:
            return None, "the template does not render tools"
        template = self.tokenizer.get_chat_template(tools=[PROBE_TOOL])
        return recognise(template, self._render_probe_call)

    def _render_probe_call(self) -> str:
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
        before = self._render([_QUESTION], tools=[PROBE_TOOL], add_generation_prompt=True)
        whole = self._render([_QUESTION, answer], tools=[PROBE_TOOL])
        common = next((i for i, (x, y) in enumerate(zip(before, whole, strict=False)) if x != y), len(before))
        return whole[common:].partition(self._end_text)[0]

    # The tokenizer.

    def _render(self, messages: Sequence[Message], **kwargs: Any) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, **{**self._template_kwargs, **kwargs}
            )  # type: ignore[return-value]
        except (TemplateError, TypeError, KeyError) as error:
            roles = [message["role"] for message in messages]
            raise ConfigurationError(f"the chat template cannot render messages of roles {roles}: {error}") from error

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)  # type: ignore[return-value]


PREFIX_TOKENS = 32  # enough of the prompt's end to see whether the template has begun the answer

_UNDEFINED = (
    "the tokens of an observation are not well defined in this chat template: it does not render {what} as the answer, "
    "an end-of-turn token, and then the rest; use a template in which a turn's text does not depend on later messages"
)


def _probe_text() -> Message:
    return {"role": "assistant", "content": _SENTINEL}


def _probe_calls(results: Sequence[Message]) -> Message:
    """An assistant message whose calls these results answer; the last argument of the last call is the sentinel."""
    answered = [each for each in results if each["role"] == "tool"]
    calls: list[ToolCall] = [
        {
            "id": each.get("tool_call_id", f"call_{index}"),
            "type": "function",
            "function": {"name": each.get("name", "probe_tool"), "arguments": {"value": _SENTINEL}},
        }
        for index, each in enumerate(answered)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _after_sentinel(text: str) -> str | None:
    """What follows the last sentinel; None without one."""
    _, found, tail = text.rpartition(_SENTINEL)
    return tail if found else None


def _text_length(message: Message) -> int:
    content = message.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _as_list(ids: int | Sequence[int] | None) -> Sequence[int]:
    return () if ids is None else (ids,) if isinstance(ids, int) else ids
