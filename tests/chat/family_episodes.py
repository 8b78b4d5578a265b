"""Episodes with the model families: the template's text, the model's text, and the tokens that `ChatFormat` appends."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import TemplateError

from gymnast.envs.core import Message, ToolCall
from gymnast.envs.policy import tool_calls
from gymnast.envs.tokens import Tokens
from gymnast.trainer import ChatFormat
from gymnast.trainer.chat.chat_template import TEMPLATE_DATE
from gymnast.trainer.tool_calls.react import ReActFormat

from .families import IN_PARTS, QUESTION, TOOLS, is_react, tokenizer_of

THOUGHT = "I ask for the weather first."

# Facts about formats and templates that are needed to render conversations.
IDS = {
    "kimi_k2": "functions.weather:{}",
    "mistral": "call{:05}",
    "mistral_v11": "call{:05}",
    "command_r7b": "{}",  # its template counts the calls by itself
}
ONE_CALL_AN_ANSWER = ("llama3", "harmony")  # their templates refuse more, or drop them
ARGUMENTS_AS_TEXT = (
    *("deepseekv3", "deepseek_r1", "deepseek_v3_1", "functionary_3_1", "functionary_3_2", "internlm2_5"),
)  # others take objects
CALLS_AS_TEXT = ("granite_3_0", "granite_3_3", "lfm2", "lfm2_training", "phi4_mini", "smollm3")  # they render none
ROLE_OF_RESULTS = {"granite_3_0": "tool_response"}


# --- conversations ------------------------------------------------------------------------------------------------


def call(*cities: str, text: str = "", thought: str = "") -> Message:
    """An answer that asks for the weather of these cities."""
    message: Message = {**tool_calls(*(("weather", {"city": city}) for city in cities)), "content": text}
    return {**message, "reasoning_content": thought} if thought else message


def say(text: str, thought: str = "") -> Message:
    """An answer without calls."""
    message: Message = {"role": "assistant", "content": text}
    return {**message, "reasoning_content": thought} if thought else message


def ask(text: str) -> Message:
    return {"role": "user", "content": text}


@dataclass(kw_only=True, slots=True, frozen=True)
class Turn:
    """An answer, and the messages that follow it."""

    answer: Message
    following: list[Message]


def turns_of(chat: ChatFormat, *answers: tuple[Message, Sequence[Message | str]]) -> list[Turn]:
    """Answers with what follows them, results of calls as texts; calls get ids as the family has them."""
    turns, count = [], 0
    for answer, following in answers:
        results: list[Message] = []
        calls: list[ToolCall] = []
        for call, text in zip(answer.get("tool_calls", []), following, strict=False):
            call_id = IDS.get(format_name(chat), "call_{}").format(count)
            calls.append({**call, "id": call_id})
            name = call["function"]["name"]
            results.append({"role": "tool", "name": name, "tool_call_id": call_id, "content": str(text)})
            count += 1
        messages = [item for item in following if not isinstance(item, str)]
        made: Message = {**answer, "tool_calls": calls} if calls else answer
        turns.append(Turn(answer=made, following=[*results, *messages]))
    return turns


def one_question(chat: ChatFormat, thought: str = "") -> list[Turn]:
    """A call, two calls (one where the template refuses more), and a call: all after one question of the user."""
    return turns_of(chat, *_two_rounds(chat, thought), (call("Genf", thought=thought), ["Windy in Geneva."]))


def five_turns(chat: ChatFormat, thought: str = "") -> list[Turn]:
    """A call, two calls (one where the template refuses more), a text and a reply, a call, and a final text."""
    return turns_of(
        chat,
        *_two_rounds(chat, thought),
        (say("It is warm in both.", thought), [ask("And in Bern?")]),
        (call("Bern", thought=thought), ["Foggy in Bern."]),
        (say("Still fog.", thought), [ask("Thanks.")]),
    )


def _two_rounds(chat: ChatFormat, thought: str) -> list[tuple[Message, list[str]]]:
    cities = ["Rom"] if format_name(chat) in ONE_CALL_AN_ANSWER else ["Rom", "Paris"]
    return [
        (call("Zürich", thought=thought), ["Sunny in Zurich."]),
        (call(*cities, thought=thought), [f"Warm in {city}." for city in cities]),
    ]


# --- models' answers that the template does not render ---------------------------------------------------------------


def _json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _json_call(function: Any) -> str:
    return _json({"name": function["name"], "arguments": function["arguments"]})


def _hermes(functions: Sequence[Any]) -> str:
    return "\n".join(f"<tool_call>\n{_json_call(function)}\n</tool_call>" for function in functions)


def _granite(functions: Sequence[Any]) -> str:
    return f"<|tool_call|>[{', '.join(map(_json_call, functions))}]"


def _lfm(functions: Sequence[Any]) -> str:
    arguments = [
        ", ".join(f"{key}={value!r}" for key, value in function["arguments"].items()) for function in functions
    ]
    calls = [f"{argument['name']}({text})" for argument, text in zip(functions, arguments, strict=True)]
    return f"<|tool_call_start|>[{', '.join(calls)}]<|tool_call_end|>"


def _command_r(functions: Sequence[Any]) -> str:
    calls = [{"tool_name": function["name"], "parameters": function["arguments"]} for function in functions]
    return f"Action:\n```json\n{_json(calls, indent=4)}```"


def _deepseek(functions: Sequence[Any]) -> str:
    calls = [f"{function['name']}\n```json\n{_json(function['arguments'])}\n```" for function in functions]
    wrapped = [f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call}<｜tool▁call▁end｜>" for call in calls]
    return "<｜tool▁calls▁begin｜>" + "\n".join(wrapped) + "<｜tool▁calls▁end｜>"


def _listed(functions: Sequence[Any], *, tag: str, before: str = "") -> str:
    return f"{before}<{tag}>[{', '.join(map(_json_call, functions))}]</{tag}>"


def _react(functions: Sequence[Any]) -> str:
    calls = [f"Action: {function['name']}\nAction Input: {_json(function['arguments'])}" for function in functions]
    return "\n".join(["Thought: I use a tool.", *calls])


WRITERS: dict[str, Callable[[Sequence[Any]], str]] = {
    "hermes": _hermes,
    "granite3": _granite,
    "lfm2": _lfm,
    "command_r": _command_r,
    "deepseek_v3": _deepseek,
    "apriel": partial(_listed, tag="tool_calls", before="\n"),
    "nemotron_nano_v2": partial(_listed, tag="TOOLCALL"),
    "react": _react,
}


def written(chat: ChatFormat, answer: Message) -> str:
    """Content and calls of an answer as the model writes them."""
    functions = [call["function"] for call in answer.get("tool_calls", [])]
    content = str(answer.get("content"))
    if not functions:
        return content
    calls = WRITERS[format_name(chat)](functions)
    return f"{content}\n{calls}" if content else calls


def thought_text(chat: ChatFormat, prompt: str, thought: str) -> str:
    """A thought as the model writes it after a prompt, which may have begun one."""
    if format_name(chat) == "harmony":
        return f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
    opening, closing = thinking_markers(chat)
    begun = "" if prompt.rstrip().endswith(opening.rstrip()) else f"{opening.rstrip()}\n"
    return f"{begun}{thought}\n{closing}\n\n"


def thinking_markers(chat: ChatFormat) -> tuple[str, str]:
    return getattr(chat.tool_format, "thinking", ("<think>", "</think>"))


def format_name(chat: ChatFormat) -> str:
    return chat.tool_format.name  # type: ignore[union-attr]


# --- the template's text ------------------------------------------------------------------------------------------


def rendered(stem: str, chat: ChatFormat, messages: Sequence[Message], *, more: bool) -> str:
    """The whole conversation as the tokenizer renders it without gymnast.

    The tools are left out if gymnast describes them in the prompt.

    Raises:
        TemplateError: the template refuses it.
    """
    taken: list[Any] = []
    results: list[Message] = []
    for message in messages:
        if is_react(chat) and message["role"] == "tool":
            results.append(message)
            taken = taken[:-1] if len(results) > 1 else taken
            taken.append({"role": "user", "content": ReActFormat().observation(results).get("content")})
            continue
        results = []
        taken.append(_as_taken(stem, chat, message))
    if stem.removesuffix("_training") in IN_PARTS:
        taken = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in taken]
    tools: Any = None if chat.recognition.described_in_prompt else TOOLS
    if stem == "phi4_mini":
        functions = _json([tool["function"] for tool in TOOLS])
        taken, tools = [{"role": "system", "content": "", "tools": functions}, *taken], None
    moment = datetime.datetime.combine(TEMPLATE_DATE, datetime.time())
    return tokenizer_of(stem).apply_chat_template(
        taken, tools=tools, tokenize=False, add_generation_prompt=more, strftime_now=moment.strftime
    )


def _as_taken(stem: str, chat: ChatFormat, message: Message) -> Any:
    """A message in the form that the family's template takes."""
    calls = message.get("tool_calls", [])
    made: dict[str, Any] = dict(message)
    if stem.startswith("gptoss") and "reasoning_content" in made:
        made["thinking"] = made.pop("reasoning_content")
    if message["role"] == "tool":
        made["role"] = ROLE_OF_RESULTS.get(stem, "tool")
    elif calls and (stem in CALLS_AS_TEXT or is_react(chat)):
        del made["tool_calls"]
        made["content"] = written(chat, message)
    elif calls and stem in ARGUMENTS_AS_TEXT:
        functions: list[Any] = [{**call["function"]} for call in calls]
        texts = [{**function, "arguments": _json(function["arguments"])} for function in functions]
        made["tool_calls"] = [{**call, "function": text} for call, text in zip(calls, texts, strict=True)]
    return made


def prompts(stem: str, chat: ChatFormat, turns: Sequence[Turn]) -> list[str]:
    """The conversation up to each answer, and as a whole."""
    messages, texts = [QUESTION], []
    for turn in turns:
        texts.append(rendered(stem, chat, messages, more=True))
        messages += [turn.answer, *turn.following]
    return [*texts, rendered(stem, chat, messages, more=False)]


def rendered_answer(stem: str, chat: ChatFormat, before: Sequence[Message], turn: Turn) -> str | None:
    """The template's text for an answer between the prompt and the end of the turn; None if it lacks the prompt."""
    prompt = rendered(stem, chat, before, more=True)
    try:
        whole = rendered(stem, chat, [*before, turn.answer, *turn.following], more=False)
    except TemplateError:
        return None
    called = turn.answer.get("tool_calls") and not is_react(chat)
    end = chat.endings.call_end if called else chat.endings.text_end
    assert end is not None
    return whole[len(prompt) :].partition(end.anchor)[0] if whole.startswith(prompt) else None


def sampled_text(stem: str, chat: ChatFormat, before: Sequence[Message], turn: Turn) -> str:
    """The model's text of an answer: the template's, if the template renders the answer after its own prompt."""
    thought, alone = turn.answer.get("reasoning_content", ""), Turn(answer=turn.answer, following=[])
    for answer in (turn, alone):  # some templates render the thought of the last answer only
        text = rendered_answer(stem, chat, before, answer)
        if text is not None and thought in text:
            return text
    bare = Turn(answer=without_thought(turn.answer), following=turn.following)
    texts = (rendered_answer(stem, chat, history, bare) for history in (before, [QUESTION]))
    text = next((text for text in texts if text is not None), None)
    text = written(chat, turn.answer) if text is None else text
    if not thought:
        return text
    empty = r"\s*".join(map(re.escape, thinking_markers(chat)))
    prompt = rendered(stem, chat, before, more=True)
    return thought_text(chat, prompt, thought) + re.sub(rf"^\s*{empty}\s*", "", text)


def without_thought(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}  # type: ignore[return-value]


# --- the trace ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True, frozen=True)
class Step:
    """One turn of a trace: the tokens of the answer with its end token, their message, and the appended tokens."""

    turn: Turn
    sampled: list[int]
    message: Message
    observation: list[int]


@dataclass(kw_only=True, slots=True, frozen=True)
class Trace:
    """A prompt's tokens, and those of the turns."""

    prompt: list[int]
    steps: list[Step]

    @property
    def ids(self) -> list[int]:
        ids = list(self.prompt)
        for step in self.steps:
            ids += [*step.sampled, *step.observation]
        return ids


def encode(chat: ChatFormat, text: str) -> list[int]:
    """Tokens of a text in which special tokens are meant."""
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


def trace_of(stem: str, chat: ChatFormat, turns: Sequence[Turn], *, over: bool) -> Trace:
    """The trace of an episode, as in a rollout; `over`: no answer follows the last turn."""
    prompt = chat.prompt_tokens([QUESTION], TOOLS).ids
    messages, ids, steps, calls = [QUESTION], list(prompt), [], 0
    for turn in turns:
        answer = turn.answer
        ended_by = chat.call_end_id if answer.get("tool_calls") and not is_react(chat) else chat.end_id
        sampled = [*encode(chat, sampled_text(stem, chat, messages, turn)), ended_by]
        message = chat.parse(Tokens(ids), sampled, TOOLS, calls_before=calls)
        last = over and turn is turns[-1]
        observation = chat.observation_tokens(turn.following, tools=TOOLS, ended_by=ended_by, last=last).ids
        steps.append(Step(turn=turn, sampled=sampled, message=message, observation=observation))
        ids += [*sampled, *observation]
        messages += [answer, *turn.following]
        calls += len(answer.get("tool_calls", []))
    return Trace(prompt=prompt, steps=steps)
