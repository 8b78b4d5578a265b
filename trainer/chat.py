"""ChatFormat: from messages to exact tokens, and from tokens to a message.

The prompt is rendered once. From then on tokens are only appended: what the model sampled, and the observations. An
observation's tokens are found by rendering a minimal conversation (one question, one answer, the new messages) and
keeping what follows the answer, so a template that rewrites history does no harm, nothing that the model said is ever
tokenised again, and the cost does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_parsing.response_templates import load_response_template

from ..envs.calling import cut
from ..envs.core import ConfigurationError, Message, ToolSchema
from .template import ChatTemplate
from .tool_formats import (
    FORMATS,
    PROBE_TOOL,
    CallableFormat,
    PlainFormat,
    ResponseTemplateFormat,
    ToolFormat,
    ToolParser,
    reads_probe,
    recognise,
)
from .vllm_tools import VLLM_PREFIX, vllm_tool_format

PREFIX_TOKENS = 256  # more than any template begins an answer with


class ChatFormat:
    """A tokenizer's chat template as a mapping between messages and exact tokens.

    Args:
        tokenizer: Has a chat template.
        tool_format: How the model writes tool calls: a name in `FORMATS`, `vllm:` and the name of one of vLLM's tool
            parsers, a `ToolFormat`, or a function from text to an assistant message. By default the tokenizer's
            `response_template`, else the format that the chat template's markers tell.
        end_token_ids: Further ids that end a turn, as in the model's generation config.
        template_kwargs: Passed to the chat template, e.g. `{"enable_thinking": False}`.

    Raises:
        ConfigurationError: there is no chat template, the tokens of an observation are not well defined in it, or
            `tool_format` cannot be used.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tool_format: str | ToolFormat | ToolParser | None = None,
        end_token_ids: Collection[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer: Any = tokenizer
        self.template = ChatTemplate(tokenizer, template_kwargs or {})
        self.end_id = self.template.end_id
        self.end_ids = frozenset({self.end_id, *end_token_ids, *_as_list(self.tokenizer.eos_token_id)})
        self.tool_format, self.tool_format_reason = self._choose_tool_format(tool_format)

    @property
    def supports_tools(self) -> bool:
        """Whether the template tells the model of its tools."""
        return self.template.supports_tools

    # Tokens.

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """The tokens of an episode's first messages, up to where the model begins to write."""
        return self.template.encode(self.template.render(messages, tools=tools, more=True))

    def observation_ids(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), closed: bool, last: bool
    ) -> list[int]:
        """The tokens of the environment's new messages, as they follow the model's answer.

        Args:
            messages: The new messages.
            tools: The tools of the episode.
            closed: The answer ended with one of `end_ids`; otherwise the missing end token is supplied here.
            last: The episode is over, so no new answer is begun.

        Raises:
            ConfigurationError: the template does not render them after an answer.
        """
        ids = self.template.follow_ids(messages, tools=tools, more=not last)
        return ids[1:] if closed else ids

    def fit_observation(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        closed: bool,
        last: bool,
        max_tokens: int,
    ) -> list[int]:
        """`observation_ids`, with each text cut until all take at most `max_tokens`, markers of the cuts included.

        What the template writes is never cut, nor are the markers: where these alone take more, so does the result.
        """
        ids = self.observation_ids(messages, tools=tools, closed=closed, last=last)
        if len(ids) <= max_tokens:
            return ids
        best: list[int] | None = None
        low, high = 0, max((_text_length(message) for message in messages), default=0)
        while low <= high:  # the largest number of characters that fits; when none does, the last one tried is 0
            middle = (low + high) // 2
            shorter: list[Message] = [{**each, "content": cut(each.get("content") or "", middle)} for each in messages]
            ids = self.observation_ids(shorter, tools=tools, closed=closed, last=last)
            if len(ids) <= max_tokens:
                best, low = ids, middle + 1
            else:
                high = middle - 1
        return ids if best is None else best

    # The answer.

    def parse(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """The assistant message that the sampled tokens mean; never raises on what a model may write."""
        ids = sampled_ids[:-1] if sampled_ids and sampled_ids[-1] in self.end_ids else sampled_ids
        text, prefix = self.template.decode(ids), self.template.decode(prompt_ids[-PREFIX_TOKENS:])
        return (self.tool_format or PlainFormat()).parse(text, prefix=prefix, tools=tools)

    def check_tools(self, tools: Sequence[ToolSchema]) -> None:
        """Check that the model can be told of these tools and that its calls can be read.

        Raises:
            ConfigurationError: it cannot.
        """
        if not tools:
            return
        if self.template.call_problem:
            names = [each["function"]["name"] for each in tools]
            raise ConfigurationError(f"the environment has tools, {names}, but {self.template.call_problem}")
        if self.tool_format is None:
            raise ConfigurationError(
                f"the tool-call format of the chat template was not recognised ({self.tool_format_reason}); pass "
                f"tool_format= one of {sorted(FORMATS)}, or a function from text to an assistant message"
            )

    def _choose_tool_format(self, given: str | ToolFormat | ToolParser | None) -> tuple[ToolFormat | None, str]:
        if isinstance(given, str):
            if given.startswith(VLLM_PREFIX):
                name = given.removeprefix(VLLM_PREFIX)
                return vllm_tool_format(name, self.tokenizer, self.template), "given by name"
            if given not in FORMATS:
                known = f"{sorted(FORMATS)}, and {VLLM_PREFIX!r} with the name of one of vLLM's tool parsers"
                raise ConfigurationError(f"unknown tool_format {given!r}; known are {known}")
            return FORMATS[given], "given by name"
        if given is not None:
            if hasattr(given, "parse"):
                return given, "given"  # type: ignore[return-value]
            if callable(given):
                return CallableFormat(parser=given), "given"
            raise ConfigurationError(f"tool_format must be a name, a ToolFormat or a function, got {given!r}")
        if self.tokenizer.response_template is not None:
            return self._response_template()
        if self.template.call_problem:
            return None, self.template.call_problem
        source = self.tokenizer.get_chat_template(tools=[PROBE_TOOL])
        return recognise(source, lambda: self.template.probe_call()[1])

    def _response_template(self) -> tuple[ToolFormat | None, str]:
        try:
            load_response_template(self.tokenizer.response_template)
        except ValueError as error:
            raise ConfigurationError(f"the tokenizer's response_template cannot be used: {error}") from error
        found = ResponseTemplateFormat(tokenizer=self.tokenizer)
        if not self.template.call_problem:
            prefix, text = self.template.probe_call()
            if not reads_probe(found.parse(text, prefix=prefix, tools=[PROBE_TOOL])):
                return None, "the tokenizer's response_template does not read the call that its chat template renders"
        return found, "the tokenizer's response_template"


def _text_length(message: Message) -> int:
    content = message.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _as_list(ids: int | Sequence[int] | None) -> Sequence[int]:
    return () if ids is None else (ids,) if isinstance(ids, int) else ids
