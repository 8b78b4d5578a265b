"""The record of an episode: what was said, what it was worth, why it ended, and the exact tokens.

- `EpisodeSpec`: which episode to play.
- `TokenTrace`: the tokens of an episode, append-only.
- `ToolCallRecord`, `Turn`, `Failure`, `Episode`: what happened.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import pydantic_core
from pydantic import ConfigDict, TypeAdapter

from .core import Message, StopReason, Task, ToolSchema


@dataclass(kw_only=True, slots=True, frozen=True)
class EpisodeSpec:
    """Which episode to play: a task, and the episode's place in its group."""

    task: Task
    group: str  # episodes of one group share the task and the environment's seed
    member: int = 0  # place in the group, from 0
    seed: int = 0  # seeds the sampling of this episode


@dataclass(kw_only=True, slots=True)
class TokenTrace:
    """The exact tokens of an episode; the three lists of the completion have one length by construction (T).

    Only two things ever happen to a completion: the model samples, or the environment speaks.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)  # (T,) everything after the prompt
    mask: list[int] = field(default_factory=list)  # (T,) 1 where the model sampled the token, 0 elsewhere
    logprobs: list[float] = field(default_factory=list)  # (T,) log-probability when sampled; 0.0 where mask is 0
    drift: int = 0  # tokens on which the engine's record of its input differed from this trace

    def append_sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append what the model sampled.

        Raises:
            ValueError: not one log-probability for each token.
        """
        if len(ids) != len(logprobs):
            raise ValueError(f"got {len(ids)} sampled tokens and {len(logprobs)} log-probabilities")
        self._append(ids, 1, logprobs)

    def append_observation(self, ids: Sequence[int]) -> None:
        """Append what the environment (or the chat template) added."""
        self._append(ids, 0, [0.0] * len(ids))

    def _append(self, ids: Sequence[int], mask: int, logprobs: Sequence[float]) -> None:
        self.completion_ids.extend(ids)
        self.mask.extend([mask] * len(ids))
        self.logprobs.extend(logprobs)

    @property
    def ids(self) -> list[int]:
        """Prompt and completion: what the model sees before its next token."""
        return self.prompt_ids + self.completion_ids

    @property
    def num_sampled(self) -> int:
        """The number of loss tokens."""
        return sum(self.mask)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


Outcome = Literal["ok", "unknown", "bad_arguments", "exception", "timeout", "not_run"]


@dataclass(kw_only=True, slots=True)
class ToolCallRecord:
    """What became of one tool call."""

    name: str
    call_id: str | None
    outcome: Outcome
    seconds: float = 0.0
    ends_episode: bool = False  # a final tool that succeeded
    error: str | None = None  # what the model was told instead of a result

    @property
    def failed(self) -> bool:
        """The call was run, or could not be, and went wrong; a call that was not run for want of budget has not."""
        return self.outcome not in ("ok", "not_run")


@dataclass(kw_only=True, slots=True)
class Turn:
    """One answer of the model and what the environment made of it."""

    message: Message
    observation: list[Message] = field(default_factory=list)  # the environment's new messages
    reward: float = 0.0
    num_tokens: int = 0  # tokens that the model sampled
    num_prompt_tokens: int = 0  # tokens that it was shown
    num_cached_tokens: int = 0  # of these, the ones that the engine had computed in an earlier turn
    weight_version: int | None = None  # optimiser steps that its weights had seen
    generation_seconds: float = 0.0
    environment_seconds: float = 0.0
    tool_calls: list[ToolCallRecord] = field(default_factory=list)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate can be no JSON


Stage = Literal["create", "reset", "policy", "step", "close"]


@dataclass(kw_only=True, slots=True, frozen=True)
class Failure:
    """Why an episode broke: where, by what, and the traceback for the person who mends it."""

    stage: Stage
    type: str  # the exception's class name
    message: str
    traceback: str

    @classmethod
    def of(cls, stage: Stage, error: BaseException) -> Failure:
        return cls(
            stage=stage,
            type=type(error).__name__,
            message=_encodable(str(error)),
            traceback=_encodable("".join(traceback.format_exception(error))),
        )

    def __str__(self) -> str:
        return f"{self.stage}: {self.type}: {self.message}"


@dataclass(kw_only=True, slots=True)
class Episode:
    """Everything that happened in one episode."""

    # For pydantic: what JSON has no word for is kept as a string, which is read back as the number it was.
    __pydantic_config__ = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64")

    spec: EpisodeSpec
    prompt: list[Message] = field(default_factory=list)  # the messages of reset
    tools: list[ToolSchema] = field(default_factory=list)  # what the model was told of
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = StopReason.FAILED
    failure: Failure | None = None  # set exactly when stop is FAILED
    close_failure: Failure | None = None  # the environment did not close cleanly; the episode itself stands
    # What training uses. None for an episode that cannot be scored: it failed (unless the user asked for zero), its
    # prompt was too long to be answered, or no reward function applied to it (see `RewardFunction`).
    reward: float | None = None
    reward_parts: dict[str, float | None] = field(default_factory=dict)  # "environment", and each reward function
    metrics: dict[str, float] = field(default_factory=dict)  # what the environment reports beside its reward
    trace: TokenTrace | None = None  # None for a policy without tokens
    attempts: int = 1  # 2 or more after a retry
    seconds: float = 0.0

    @property
    def completion(self) -> list[Message]:
        """All messages after the prompt."""
        return [message for turn in self.turns for message in (turn.message, *turn.observation)]

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        return self.prompt + self.completion

    @property
    def environment_reward(self) -> float:
        """The sum of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The records of all tool calls, in order."""
        return [record for turn in self.turns for record in turn.tool_calls]

    def to_json(self) -> str:
        """The episode as one line of JSON; values of the task's row that JSON cannot hold become their `repr`."""
        row = {str(name): _jsonable(value) for name, value in self.spec.task.row.items()}
        spec = replace(self.spec, task=replace(self.spec.task, row=row))
        return _adapter().dump_json(replace(self, spec=spec), fallback=plain).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Episode:
        """The episode that `to_json` wrote."""
        return _adapter().validate_json(text)


def plain(value: Any) -> Any:
    """For a value that JSON does not know: arrays and tensors as lists of numbers, all else as its `repr`."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _jsonable(value: Any) -> Any:
    try:
        return pydantic_core.from_json(pydantic_core.to_json(value, inf_nan_mode="strings", fallback=plain))
    except ValueError:  # bytes that are no text, lone surrogates, circular references
        return repr(value)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Episode)
