"""The abilities of each chat template, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from gymnast.envs.core import ConfigurationError, Message
from gymnast.trainer import ChatFormat

from .families import QUESTION, TOOLS, chat_of, is_react, usable_chat
from .family_episodes import (
    ONE_CALL_AN_ANSWER,
    THOUGHT,
    Turn,
    call,
    encode,
    five_turns,
    format_name,
    one_question,
    prompts,
    rendered,
    rendered_answer,
    sampled_text,
    thinking_markers,
    thought_text,
    trace_of,
    turns_of,
)

TEXT = "I look it up."
YES, NO, ONE_QUESTION = "yes", "no", "within a question"
# Families whose models think, though their templates never render a thought.
SILENT_THINKERS = ("deepseek_r1", "deepseek_r1_distill", "deepseek_r1_distill_training", "nemotron_nano_v2")
# How a model writes a second call where the template refuses to render one.
SECOND_CALL = {"llama3": "; ", "harmony": "<|call|><|start|>assistant"}
# How a model writes a text before a call, where it is not just a paragraph.
TEXT_BEFORE = {
    "harmony": "<|channel|>commentary<|message|>{}<|end|><|start|>assistant",
    "atem": " to=user<|message|>{}<|eom|><|start|>assistant",
    "llama3": "{}<|python_tag|>",
}


# --- trials -------------------------------------------------------------------------------------------------------


@cache
def thoughts_of(stem: str, chat: ChatFormat) -> list[str]:
    """The thoughts to try: no thought if the prompt ends it, one thought if the prompt begins it."""
    prompt = rendered(stem, chat, [QUESTION], more=True).rstrip()
    opening, closing = thinking_markers(chat)
    if prompt.endswith(closing):
        return [""]
    if prompt.endswith(opening.rstrip()):
        return [THOUGHT]
    first = one_question(chat, THOUGHT)[0]
    shown = THOUGHT in (rendered_answer(stem, chat, [QUESTION], first) or "")
    return ["", THOUGHT] if shown or stem in SILENT_THINKERS else [""]


def read(stem: str, chat: ChatFormat, text: str) -> Message:
    """The message that an answer to the question means."""
    return chat.parse(chat.prompt_tokens([QUESTION], TOOLS), [*encode(chat, text), chat.call_end_id], TOOLS)


def write(stem: str, chat: ChatFormat, *cities: str, text: str = "", thought: str = "") -> str:
    """An answer with calls to the question, in the family's own syntax."""
    thought = thought or thoughts_of(stem, chat)[0]
    results = [f"Sunny in {city}." for city in cities]
    if len(cities) > 1 and format_name(chat) in ONE_CALL_AN_ANSWER:
        separator = SECOND_CALL[format_name(chat)]
        return separator.join(write(stem, chat, city) for city in cities)
    [turn] = turns_of(chat, (call(*cities, text=text, thought=thought), results))
    whole = rendered_answer(stem, chat, [QUESTION], turn) if text else sampled_text(stem, chat, [QUESTION], turn)
    as_thought = text and format_name(chat) == "harmony"  # its template turns a text before a call into a thought
    if whole is not None and text in whole and thought in whole and not as_thought:
        return whole
    calls = sampled_text(stem, chat, [QUESTION], turns_of(chat, (call(*cities), results))[0])
    prompt = rendered(stem, chat, [QUESTION], more=True)
    return (thought_text(chat, prompt, thought) if thought else "") + _text_before(chat, text) + calls


def _text_before(chat: ChatFormat, text: str) -> str:
    return TEXT_BEFORE.get(format_name(chat), "{}\n\n").format(text) if text else ""


def reads_calls(stem: str, chat: ChatFormat, *cities: str, text: str = "", thought: str = "") -> bool:
    """Whether exactly these calls, this text and this thought are read in the family's own syntax."""
    message = read(stem, chat, write(stem, chat, *cities, text=text, thought=thought))
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    content = str(message.get("content"))
    thought = thought or thoughts_of(stem, chat)[0]
    return (
        arguments == [{"city": city} for city in cities]
        and "malformed" not in message
        and message.get("reasoning_content", "").strip() == thought
        and (text in content if is_react(chat) else content.strip() == text)
    )


def reports_malformed(stem: str, chat: ChatFormat) -> bool:
    """Whether a call that breaks off within its arguments is reported and no tool is called."""
    text = write(stem, chat, "Zürich")
    message = read(stem, chat, text[: text.index("Zür") + 3])
    return "malformed" in message and "tool_calls" not in message


def takes_a_reply_beside_results(chat: ChatFormat) -> bool:
    """Whether a user's message may follow directly after the results of calls."""
    [turn] = turns_of(chat, (call("Bern"), ["Foggy in Bern.", {"role": "user", "content": "Hurry."}]))
    try:
        ids = chat.observation_tokens(turn.following, tools=TOOLS, ended_by=None, last=False).ids
    except ConfigurationError:
        return False
    text = chat.template.decode(ids)
    return 0 <= text.find("Foggy in Bern.") < text.find("Hurry.")


Episode = Callable[[ChatFormat, str], list[Turn]]


def preserves(stem: str, chat: ChatFormat, episode: Episode) -> bool:
    """Whether each prompt of an episode begins with the one before it."""
    texts = [prompts(stem, chat, episode(chat, thought)) for thought in thoughts_of(stem, chat)]
    shown = stem not in SILENT_THINKERS
    return shown and all(after.startswith(before) for text in texts for before, after in pairwise(text))


def is_exact(stem: str, chat: ChatFormat, episode: Episode) -> bool:
    """Whether the tokens of the trace are those of the whole conversation, rendered and tokenised at its end."""
    for thought in thoughts_of(stem, chat):
        turns = episode(chat, thought)
        trace, texts = trace_of(stem, chat, turns, over=True), prompts(stem, chat, turns)
        ids = encode(chat, texts[-1])
        if chat.recognition.described_in_prompt:  # the rendered conversation has no tools in its prompt
            if trace.ids[len(trace.prompt) :] != ids[len(encode(chat, texts[0])) :]:
                return False
        elif trace.ids != ids:
            return False
    return True


def _how_far(holds: Callable[[str, ChatFormat, Episode], bool], stem: str, chat: ChatFormat) -> str:
    return YES if holds(stem, chat, five_turns) else ONE_QUESTION if holds(stem, chat, one_question) else NO


# --- results ------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True, frozen=True)
class Abilities:
    """What works with one template."""

    tool_format: str
    renders_tools: bool
    one_call: bool
    two_calls: bool
    text_and_call: bool
    thinking_and_call: bool
    malformed: bool
    preserving: str
    exact: str
    answer_end: str
    call_end: str

    @property
    def cells(self) -> list[str]:
        tried = [self.one_call, self.two_calls, self.text_and_call, self.thinking_and_call, self.malformed]
        ends = [self.answer_end, self.call_end] if self.call_end != self.answer_end else [self.answer_end]
        return [
            self.tool_format,
            YES if self.renders_tools else NO,
            *(YES if outcome else NO for outcome in tried),
            self.preserving,
            self.exact,
            " / ".join(f"`{end}`" for end in ends),
        ]


@cache
def abilities_of(stem: str) -> Abilities:
    """The results of all trials with a template."""
    native, chat = chat_of(stem), usable_chat(stem)
    name = f"`{format_name(chat)}`"
    answer_end, call_end = (chat.template.decode([item]) for item in (chat.end_id, chat.call_end_id))
    return Abilities(
        tool_format=f"{name}, given" if native.recognition.problem else name,
        renders_tools=not native.template.tools_problem,
        one_call=reads_calls(stem, chat, "Zürich"),
        two_calls=reads_calls(stem, chat, "Rom", "Paris"),
        text_and_call=reads_calls(stem, chat, "Zürich", text=TEXT),
        thinking_and_call=reads_calls(stem, chat, "Zürich", thought=THOUGHT),
        malformed=reports_malformed(stem, chat),
        preserving=_how_far(preserves, stem, chat),
        exact=_how_far(is_exact, stem, chat),
        answer_end=answer_end,
        call_end=call_end,
    )
