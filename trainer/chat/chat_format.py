"""ChatFormat: from messages to exact tokens, and from tokens to a message.

The prompt is rendered once. From then on tokens are only appended: the model's samples, and the observations. An
observation's tokens are found by rendering a minimal conversation (one question, one answer, the new messages) and
keeping what follows the answer, so a template that rewrites history does no harm, no sampled text is ever
tokenised again, and the cost does not grow with the history.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...envs.core import ConfigurationError, Message, ToolSchema, text_of
from ...envs.images import images_of
from ...envs.policy import text_before
from ...envs.tokens import Tokens
from ...envs.tools.results import cut
from ..models.images import ImageEncoder
from ..tool_calls.custom import PlainFormat, ToolParser
from ..tool_calls.families import FORMATS
from ..tool_calls.formats import KnownFormat, ToolFormat, parse_ended
from .chat_template import TEMPLATE_DATE, ChatTemplate
from .first_words import FirstWords
from .prompted_tools import PromptTools
from .recognition import Recognition, marked_formats, recognise
from .template_probe import numbered
from .turn_endings import TurnEndings

CHARACTERS_A_TOKEN = 128  # at most: no vocabulary has longer runs of spaces
PREFIX_TOKENS = 256  # more than any template begins an answer with


class ChatFormat:
    """A tokenizer's chat template as a mapping between messages and exact tokens.

    Args:
        tokenizer: Has a chat template.
        tool_format: How the model writes tool calls: a name in `FORMATS`, `vllm:` and the name of one of vLLM's tool
            parsers, a `ToolFormat`, or a function from text to an assistant message. By default the tokenizer's
            `response_template`, else the format whose markers are in the chat template.
        end_token_ids: Further ids that end a turn, as in the model's generation config.
        template_kwargs: Passed to the chat template, e.g. `{"enable_thinking": False}`.
        today: The date for chat templates that ask for it.
        images: Encodes the pictures in messages, for models that take them.

    Attributes:
        end_ids: Every token that ends a turn.
        end_id: The token that ends an answer in text.
        recognition: The tool-call format, and how it was found.

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
        today: datetime.date = TEMPLATE_DATE,
        images: ImageEncoder | None = None,
    ) -> None:
        self.tokenizer: Any = tokenizer
        self.template = ChatTemplate(tokenizer, template_kwargs or {}, today=today, images=images)
        known = {*end_token_ids, self.tokenizer.eos_token_id, *self._ends_of(tool_format)} - {None}
        self.endings = TurnEndings(self.template, known)
        self.recognition = recognise(tool_format, tokenizer, self.template, self.endings)
        self.tool_format = self.recognition.format
        self._rendered: set[tuple[str, ...]] = set()  # sequences of roles of which no message is dropped
        in_prompt = self.recognition.described_in_prompt
        self._prompted = PromptTools(self.tool_format, self.template, self.endings) if in_prompt else None
        self.end_id = self.endings.text_end.end_id
        # Text between an answer and its end token is the template's only if it contains an added token. Otherwise the
        # model may have written it.
        closing = self.endings.text_end.closing
        self._closing = closing if self.template.added_in(closing) else ""
        self.call_end_id = self.end_id if self.endings.call_end is None else self.endings.call_end.end_id
        self.end_ids = frozenset({*known, self.end_id, self.call_end_id})
        self._first_words = FirstWords(self.tool_format, self.template, self.endings, self.end_ids)

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[Tokens, list[int]]:
        """Return the tokens of an episode's first messages, up to where the model goes on to write, in two parts.

        The second part belongs to the first answer: `parse` takes it as the answer's first tokens, so it holds no
        image. It is empty if the messages do not end with a message of the assistant.

        Raises:
            ConfigurationError, ValueError: the template cannot render the messages; see `FirstWords.render`.
        """
        if not messages or messages[-1]["role"] != "assistant":
            return self.prompt_tokens(messages, tools), []
        messages, tools = self._shown(messages, tools)
        self._check_prompt(messages[:-1], tools)
        prompt, answer = self._first_words.render(messages, tools)
        return self.template.encode(prompt, images=images_of(messages)), self.template.encode(answer, behind=True).ids

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Tokens:
        """Return the tokens of messages behind which the model begins to write an answer."""
        messages, tools = self._shown(messages, tools)
        self._check_prompt(messages, tools)
        text = self.template.render(messages, tools=tools, more=True)
        return self.template.encode(text, images=images_of(messages))

    def _shown(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[list[Message], Sequence[ToolSchema]]:
        """Return the messages and the tools in the form that the template takes."""
        if self._prompted is not None:
            messages, tools = self._prompted.prompt(messages, tools), ()
        return self.endings.in_style(messages), tools

    def _check_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """Raise ConfigurationError if the template drops a message; checked once for each sequence of roles."""
        roles = tuple(message["role"] for message in messages)
        if roles in self._rendered:
            return
        probes = numbered(messages)
        text = self.template.render(probes, tools=tools, more=True)
        others = [probe for probe in probes if probe["role"] != "assistant"]
        lost = [probe["role"] for probe in others if str(probe.get("content")) not in text]
        if lost:
            raise ConfigurationError(
                f"the chat template drops messages of roles {lost} from first messages of roles {list(roles)}"
            )
        self._rendered.add(roles)

    def observation_tokens(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), ended_by: int | None, last: bool
    ) -> Tokens:
        """Return the tokens of the environment's new messages, as they follow the model's answer.

        Args:
            ended_by: The token of `end_ids` with which the answer ended; None where it was cut. A missing end token
                is supplied here.
            last: The episode is over, so no new answer is begun.

        Raises:
            ConfigurationError: the template does not render them after an answer.
        """
        if self._prompted is not None:
            messages, tools = self._prompted.observation(messages), ()
        elif self.endings.call_end is None and any(message["role"] == "tool" for message in messages):
            raise ConfigurationError(self.recognition.problem)
        end, tokens = self.endings.follow(messages, tools=tools, more=not last)
        known = (self.endings.text_end, self.endings.call_end)
        openings = {other.end_id for other in known if other is not None and other.opens_next}
        # An end token that opens one kind of message ends no answer before another kind.
        supplied = ended_by is None or (ended_by != end.end_id and (end.opens_next or ended_by in openings))
        return tokens if supplied else tokens[1:]

    def fit_observation(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        ended_by: int | None,
        last: bool,
        max_tokens: int,
    ) -> tuple[Tokens, Sequence[Message]]:
        """Return at most `max_tokens` tokens of an observation, and the messages, whose texts are cut until they fit.

        Images, the template's own text and the markers of the cuts are never cut: if these alone take more tokens, so
        does the result.
        """

        def tokens_of(shown: Sequence[Message]) -> Tokens:
            return self.observation_tokens(shown, tools=tools, ended_by=ended_by, last=last)

        def cut_to(characters: int) -> list[Message]:
            return [{**message, "content": cut(message.get("content") or "", characters)} for message in messages]

        longest = max((len(text_of(message)) for message in messages), default=0)
        most = max_tokens * CHARACTERS_A_TOKEN
        if longest <= most and len(tokens := tokens_of(messages)) <= max_tokens:
            return tokens, messages
        numbers = range(min(longest, most), -1, -1)
        index = bisect_left(numbers, True, key=lambda characters: len(tokens_of(cut_to(characters))) <= max_tokens)
        shorter = cut_to(numbers[min(index, len(numbers) - 1)])
        return tokens_of(shorter), shorter

    def parse(
        self,
        prompt: Tokens,
        sampled_ids: Sequence[int],
        tools: Sequence[ToolSchema],
        *,
        calls_before: int = 0,
        stop: Sequence[str] = (),
        given: int = 0,
    ) -> Message:
        """Return the assistant message that the sampled tokens mean; never raise, whatever the model wrote.

        A call without an id gets one. `calls_before`, the number of earlier calls in the episode, makes the id
        unique. The message ends before the first of the texts `stop`; the first `given` tokens are not searched for it.
        """
        ended = bool(sampled_ids) and sampled_ids[-1] in self.end_ids
        text = self._text_of(sampled_ids, stop, given)
        prefix = self.template.decode(prompt.ids[-PREFIX_TOKENS:])
        found = self.tool_format or PlainFormat()
        parse = partial(parse_ended, found) if ended and tools else found.parse
        message = parse(text, prefix=prefix, tools=tools)
        calls = message.get("tool_calls")
        return {**message, "tool_calls": self.endings.style.with_ids(calls, calls_before)} if calls else message

    def as_history(
        self, message: Message, sampled_ids: Sequence[int], *, stop: Sequence[str] = (), given: int = 0
    ) -> Message:
        """Return the message that `parse` returned, in a form that the template renders.

        Calls that could not be read, or that the template does not render, become the text that the model wrote.
        """
        calls, style = message.get("tool_calls") or [], self.endings.style
        refuses_calls = self.endings.call_end is None or style.written or (style.single and len(calls) > 1)
        if not message.get("malformed") and not (calls and refuses_calls):
            return message
        return {"role": "assistant", "content": self._text_of(sampled_ids, stop, given)}

    def _text_of(self, sampled_ids: Sequence[int], stop: Sequence[str], given: int) -> str:
        """Return the text of an answer, without its end."""
        ended = bool(sampled_ids) and sampled_ids[-1] in self.end_ids
        text = self.template.decode(sampled_ids[:-1] if ended else sampled_ids).removesuffix(self._closing)
        return text_before(text, stop, len(self.template.decode(sampled_ids[:given]))) if stop else text

    def check_tools(self, tools: Sequence[ToolSchema]) -> None:
        """Raise a ConfigurationError unless these tools can be shown to the model, and its calls can be read."""
        if not tools or self._prompted is not None:
            return
        names = [tool["function"]["name"] for tool in tools]
        if self.recognition.problem:
            raise ConfigurationError(
                f"the environment has tools, {names}, but {self.recognition.problem}; use another model, or a "
                f"tool_format that describes tools itself ('react', or one of yours with instructions and "
                f"observation). See docs/families.md"
            )
        if self.tool_format is None:
            raise ConfigurationError(
                f"the environment has tools, {names}, but the tool-call format of the chat template was not "
                f"recognised: {self.recognition.reason}; pass tool_format= a format that reads it: one named above, if "
                f"any, a TextFormat of your own, 'vllm:' with the name of one of vLLM's tool parsers, a function from "
                f"text to an assistant message, or 'react', which describes the tools in the prompt. See "
                f"docs/parsers.md"
            )

    def _ends_of(self, given: str | ToolFormat | ToolParser | None) -> set[int]:
        """Return the end tokens of the given format, or of the formats whose markers the template has."""
        given = FORMATS.get(given, given) if isinstance(given, str) else given
        formats = [given] if isinstance(given, KnownFormat) else marked_formats(self.template.source())[0]
        tokens = {token for known_format in formats for token in known_format.end_tokens}
        known = self.tokenizer.get_vocab()
        return {known[token] for token in tokens if token in known}


def recognise_tool_format(tokenizer: PreTrainedTokenizerBase) -> Recognition:
    """Find the tool-call format of a tokenizer's chat template, the reason, and the formats that it is not."""
    try:
        return ChatFormat(tokenizer).recognition
    except ConfigurationError as error:
        return Recognition(format=None, reason=str(error), problem=str(error))
