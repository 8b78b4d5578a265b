"""FirstWords: an answer whose beginning stands in the prompt, because the environment's messages end with it.

The chat template renders such an answer left open, as transformers does with `continue_final_message`. A text that
begins with a thought is written behind the generation prompt instead, as the model would write it: templates close
thoughts, or drop them. The answer begins where the model itself would begin to write, so the whole of it is read later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from ...envs.core import ConfigurationError, Message, ToolSchema, text_of
from ..tool_calls.assistant_message import THINK
from ..tool_calls.channels import ChannelFormat
from ..tool_calls.formats import KnownFormat, TextFormat
from .chat_template import ChatTemplate, Verbatim
from .turn_endings import TurnEndings


class FirstWords:
    """Renders prompts that end with the first words of an answer.

    The words may contain the markers of the tool format and the tokens in a call; not tokens that end a turn.
    """

    def __init__(self, found: Any, template: ChatTemplate, endings: TurnEndings, end_ids: Collection[int]) -> None:
        self._template = template
        self._has_thoughts = not isinstance(found, ChannelFormat)
        self._opening, self._closing = found.thinking if isinstance(found, TextFormat) else THINK
        call = None if endings.call_end is None else endings.probe_call()
        markers = found.markers if isinstance(found, KnownFormat) else ()
        choices = [[marker] if isinstance(marker, str) else marker for marker in markers]
        obeyed = template.added_in("\n".join([*chain(*choices), *(call or ())[1:], self._opening, self._closing]))
        around = template.turn_tokens - {self._opening, self._closing}
        self._ending = around | {template.decode([end_id]) for end_id in end_ids}
        self._obeyed = re.compile("|".join(f"({re.escape(token)})" for token in obeyed - self._ending) or "(?!)")

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, str]:
        """Return the text before the answer that the last message begins, and the text of this answer so far.

        Raises:
            ConfigurationError: the template does not render an open answer behind the beginning of an answer.
            ValueError: the words contain a token that ends a turn.
        """
        *before, words = messages
        prompt = self._template.render(before, tools=tools, more=True)
        text = self._text(words)
        opened = prompt.rstrip().endswith(self._opening) and self._closing in text
        if self._has_thoughts and (opened or text.lstrip().startswith(self._opening)):
            return prompt, self._thought_behind(prompt, text)
        spelled: Message = {"role": "assistant", "content": [{"type": "text", "text": Verbatim(self._spelled(text))}]}
        whole = self._template.render([*before, spelled], tools=tools, goes_on=True)
        starts = (prompt, self._without_thought(prompt))
        start = next(filter(whole.startswith, starts), None)
        problem = ""
        if start is None or not whole[len(start) :].rstrip().endswith(self._spelled(text).strip()):
            problem = "the chat template does not render these words where an answer begins; leave them out"
        elif start.rstrip().endswith(self._opening) and self._closing not in whole[len(start) :]:
            problem = "they would be part of the thought that the chat template begins; give them as reasoning_content"
        if problem:
            raise ConfigurationError(f"the messages end with the first words of the answer, {text!r}, but {problem}")
        assert start is not None
        return start, whole[len(start) :]

    def _text(self, words: Message) -> str:
        """Return the words as the model would write them, with their thought."""
        text, thought = text_of(words), words.get("reasoning_content")
        for token in sorted(self._ending & self._template.added_in(f"{thought}{text}")):
            raise ValueError(
                f"the first words of the answer contain {token!r}, which the chat template writes around messages or "
                f"which ends an answer: leave it out"
            )
        if not thought:
            return text
        if not self._has_thoughts:
            raise ConfigurationError(
                "the first words of the answer have reasoning_content, but this model's thoughts are messages of their "
                "own, which cannot be begun; give content"
            )
        return f"{self._opening}\n{thought}" + (f"\n{self._closing}\n\n{text}" if text else "")

    def _thought_behind(self, prompt: str, text: str) -> str:
        """Return the text of an answer that begins with a thought, which the prompt may have opened."""
        if prompt.rstrip().endswith(self._closing):
            raise ConfigurationError(
                f"the first words of the answer begin a thought, but the prompt ends with {self._closing!r}: let "
                f"chat_template_kwargs enable thinking, or give words without a thought"
            )
        if prompt.rstrip().endswith(self._opening):
            text = text.lstrip().removeprefix(self._opening).lstrip("\n")
        return self._spelled(text)

    def _spelled(self, text: str) -> str:
        """Return the text with its special tokens spelled out, except those of calls and thoughts."""
        pieces = filter(None, self._obeyed.split(text))
        return self._template.spell([Verbatim(piece) if self._obeyed.fullmatch(piece) else piece for piece in pieces])

    def _without_thought(self, prompt: str) -> str:
        """Return the prompt without a thought that it begins, or that it ends at once."""
        rest = prompt.rstrip().removesuffix(self._closing).rstrip()
        return rest.removesuffix(self._opening) if rest.endswith(self._opening) else prompt
