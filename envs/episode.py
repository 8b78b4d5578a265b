"""The record of an episode: its messages, its reward, the reason of its end, and its exact tokens.

- `Task`, `EpisodeSpec`: which episode to play.
- `ToolCallRecord`, `Turn`, `Failure`, `Episode`: the record of what happened.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal

import pydantic_core
from pydantic import ConfigDict, TypeAdapter

from .core import Message, StopReason, ToolSchema
from .images import Image, parts_of, read_image
from .json_values import encodable, jsonable, plain
from .runtime.message_text import Entry, as_html, as_text, cut, entries_of_turn, entry_of, written_arguments
from .runtime.user_calls import OUR_FOLDER
from .runtime.verdict import expected_of, given_by, untold
from .tokens import TokenTrace


@dataclass(kw_only=True, slots=True, frozen=True)
class Task:
    """One row of a data set, on its way through an episode."""

    id: str  # names the row within the run, e.g. "train-17"
    row: Mapping[str, Any] = field(default_factory=dict)  # the row itself, read by `Environment.reset`
    seed: int = 0  # seeds the environment; the same for every member of a group


@dataclass(kw_only=True, slots=True, frozen=True)
class EpisodeSpec:
    """Which episode to play: a task, and the episode's place in its group."""

    task: Task
    group: str  # episodes of one group share the task and the environment's seed
    member: int = 0  # place in the group, from 0
    seed: int = 0  # seeds the sampling of this episode


Outcome = Literal["ok", "unknown", "bad_arguments", "refused", "exception", "timeout", "not_run"]
"""How a tool call ended.

"refused": the tool raised a `ValueError`, or a file of a sandbox could not be used, to tell the model of its mistake.
"exception": the tool raised another exception, which may be a bug.
"""


@dataclass(kw_only=True, slots=True)
class ToolCallRecord:
    """The outcome of one tool call."""

    name: str
    call_id: str | None
    outcome: Outcome
    seconds: float = 0.0
    ends_episode: bool = False  # a final tool that succeeded
    error: str | None = None  # the message that the model got instead of a result
    traceback: str | None = None  # of an exception that the tool raised
    arguments: Any = None  # of a call from inside code, which no message shows
    inside: list[ToolCallRecord] = field(default_factory=list)  # the calls that the code of this call made

    @property
    def failed(self) -> bool:
        """True for every outcome but "ok" and "not_run" (a call over the limit)."""
        return self.outcome not in ("ok", "not_run")

    @property
    def trouble(self) -> str:
        """The outcome of a failed call, and the time of a slow one, as in ` [exception, 1.5 s]`; else empty."""
        return f" [{self.outcome}, {self.seconds:.2g} s]" if self.failed or self.seconds >= 1 else ""


@dataclass(kw_only=True, slots=True)
class Turn:
    """One answer of the model, and the environment's reply."""

    message: Message
    observation: list[Message] = field(default_factory=list)  # the environment's new messages
    reward: float = 0.0
    sample: int = 0  # the place of its trace in `Episode.traces`
    stop: StopReason | None = None  # the limit that cut the answer
    num_tokens: int = 0  # tokens that the model sampled
    num_prompt_tokens: int = 0  # tokens of the model's input
    num_cached_tokens: int = 0  # how many of the input tokens the engine had cached
    weight_version: int | None = None  # optimiser steps that the model's weights had seen
    began: float = field(default=0.0, compare=False)  # seconds since the episode began
    generation_seconds: float = 0.0
    waiting_seconds: float = 0.0  # of the generation, before the engine began with it, as far as it tells
    environment_seconds: float = 0.0
    html: str | None = None  # what `Environment.render_html` returned after the environment's reply
    tool_calls: list[ToolCallRecord] = field(default_factory=list)


Stage = Literal["create", "reset", "policy", "compact", "step", "grade", "reward", "close"]


@dataclass(kw_only=True, slots=True, frozen=True)
class Failure:
    """Why an episode failed: the stage, the exception and its traceback."""

    stage: Stage
    type: str  # the exception's class name
    message: str
    traceback: str

    @classmethod
    def of(cls, stage: Stage, error: BaseException, message: str | None = None) -> Failure:
        """Make a failure from an exception; `message` replaces the exception's own."""
        told = encodable(str(error) if message is None else message)
        return cls(stage=stage, type=type(error).__name__, message=told, traceback=encodable(traceback_of(error)))

    @property
    def kind(self) -> str:
        """The stage and the exception, as in `reset: ConnectionError`."""
        return f"{self.stage}: {self.type}"

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def traceback_of(error: BaseException) -> str:
    """Return the traceback as text, without the calls in this package that led to the user's code."""
    report: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    text, part = report, report
    while part is not None:
        theirs = [*dropwhile(lambda frame: frame.filename.startswith(OUR_FOLDER), part.stack)]
        part.stack = traceback.StackSummary.from_list(theirs or part.stack)
        part = part.__cause__ or part.__context__
    return "".join(text.format())


@dataclass(kw_only=True, slots=True)
class Episode:
    """Everything that happened in one episode."""

    # For pydantic: infinity and NaN become strings in JSON, and are read back as numbers.
    __pydantic_config__ = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64")

    spec: EpisodeSpec
    prompt: list[Message] = field(default_factory=list)  # the messages of reset, without `first_words`
    first_words: Message | None = None  # reset gave them as a last message of the assistant; the first answer goes on
    tools: list[ToolSchema] = field(default_factory=list)  # the tools that were shown to the model
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = StopReason.FAILED
    failure: Failure | None = None  # set exactly when stop is FAILED
    close_failure: Failure | None = None  # the environment did not close cleanly; the episode itself stands
    # The reward that training uses. None if the episode failed (unless on_failure is "zero"), if its prompt was too
    # long, or if neither its environment nor a function rewarded it (see `Environment.gives_rewards`).
    reward: float | None = None
    reward_parts: dict[str, float | None] = field(default_factory=dict)  # "environment", and each reward function
    metrics: dict[str, float] = field(default_factory=dict)  # numbers that the environment reports
    report: dict[str, Any] = field(default_factory=dict)  # `Environment.report`, such as the checks of a `CodeEnv`
    traces: list[TokenTrace] = field(default_factory=list)  # one for each line; see `TokenTrace`
    attempts: int = 1  # how often the episode was played; this is the record of the last time
    retried: list[Failure] = field(default_factory=list)  # failures of earlier attempts and calls of reward functions
    began: float = field(default=0.0, compare=False)  # seconds since 1970
    seconds: float = 0.0

    def fail(self, failure: Failure) -> None:
        """Make this a failed episode without a reward; its turns stay."""
        self.failure, self.stop = failure, StopReason.FAILED
        self.reward, self.reward_parts = None, {}

    @property
    def completion(self) -> list[Message]:
        """All messages after the prompt."""
        return [message for turn in self.turns for message in (turn.message, *turn.observation)]

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        return (self.prompt + self.completion) if self.turns else self.first_messages

    @property
    def first_messages(self) -> list[Message]:
        """The messages of reset."""
        return self.prompt if self.first_words is None else [*self.prompt, self.first_words]

    @property
    def is_overlong(self) -> bool:
        """Whether the prompt left no room for an answer; such an episode has no turns and is not a failure."""
        return self.stop is StopReason.CONTEXT_OVERFLOW and not self.turns

    @property
    def environment_reward(self) -> float:
        """The sum of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def num_sampled(self) -> int:
        """The number of tokens that the model sampled, over all traces; 0 for a policy without tokens."""
        return sum(trace.num_sampled for trace in self.traces)

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The records of all tool calls, each before those that its code made."""
        return [record for turn in self.turns for call in turn.tool_calls for record in (call, *call.inside)]

    @property
    def expected(self) -> str | None:
        """The right answer, if a column of the task's row has it, such as `answer` or `solution`."""
        return expected_of(self.spec.task.row)

    @property
    def given(self) -> str | None:
        """The arguments of the final tool's call, or else the text of the last answer; None without an answer."""
        return given_by(self.turns[-1].message, self.turns[-1].tool_calls) if self.turns else None

    @property
    def untold(self) -> dict[str, Any]:
        """The columns of the task's row that the prompt does not show, without the right answer."""
        return untold(self.spec.task.row, self.first_messages)

    def __str__(self) -> str:
        return as_text(self._heading, self._entries())

    def _repr_html_(self) -> str:
        return as_html(self._heading, self._entries())  # in a notebook

    @property
    def _heading(self) -> str:
        reward = "no reward" if self.reward is None else f"reward {self.reward:g}"
        turns = "1 turn" if len(self.turns) == 1 else f"{len(self.turns)} turns"
        tokens = f"{self.num_sampled} tokens, " if self.traces else ""
        place = f"{self.spec.group}[{self.spec.member}]"
        return f"{place}: {reward}, {self.stop.value} ({turns}, {tokens}{self.seconds:.2g} s)"

    def _entries(self) -> Iterator[Entry]:
        if self.untold:
            yield "task", cut(written_arguments(self.untold))
        yield from map(entry_of, self.prompt if self.turns else self.first_messages)
        for turn in self.turns:
            yield from entries_of_turn(turn.message, turn.observation, [record.trouble for record in turn.tool_calls])
            if turn.reward:
                yield "reward", f"{turn.reward:+g}"
        if self.reward_parts.keys() - {"environment"}:
            yield "rewards", ", ".join(f"{name} {value}" for name, value in self.reward_parts.items())
        if self.expected is not None:
            yield "given", cut(self.given or "nothing", 200)
            yield "expected", cut(self.expected, 200)
        if self.failure is not None:
            yield "failed", f"at {self.failure}"

    def to_json(self, images: dict[str, Image] | None = None) -> str:
        """Return the episode as one line of JSON.

        Values of the task's row that JSON cannot hold become their `repr`. A lone surrogate, which UTF-8 cannot hold,
        becomes its escape: the six characters of `\\ud800`. An image is written with its data as base64, or without it
        if there is a dict `images`, which then gets the image by its digest.
        """
        row = {str(name): jsonable(value, images) for name, value in self.spec.task.row.items()}
        spec = replace(self.spec, task=replace(self.spec.task, row=row))
        report = {str(name): jsonable(value, images) for name, value in self.report.items()}
        episode = replace(self, spec=spec, report=report)
        try:
            return _adapter().dump_json(episode, fallback=plain, context=images).decode()
        except pydantic_core.PydanticSerializationError:
            fields = encodable(_adapter().dump_python(episode, context=images))
            options: Any = {"inf_nan_mode": "strings", "bytes_mode": "base64", "fallback": plain, "context": images}
            return pydantic_core.to_json(fields, **options).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, images: Path | None = None) -> Episode:
        """Read an episode that `to_json` wrote; `images` is the folder of the pictures that it only names.

        Raises:
            ValueError: it is no such episode, or a picture is missing.
        """
        episode: Episode = _adapter().validate_json(text, context=images)
        for message in [*episode.first_messages, *episode.completion]:
            for part in parts_of(message):
                if isinstance(part.get("image"), dict):
                    part["image"] = read_image(part["image"], images)
        return episode


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Episode)
