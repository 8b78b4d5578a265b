"""Checks the results of an environment's `reset`, `step` and `grade`.

Each check raises a TypeError for a value of the wrong type, and a ValueError for one that is out of its range or no
chat message. The error begins with the name of the environment and the method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core import Message, StepResult, StopReason, text_of
from ..episode import ToolCallRecord
from ..images import checked_part, with_parts
from ..rewards import LARGEST_REWARD, number_of
from ..spaces import check_messages


def checked_reset(result: Any, name: str) -> tuple[list[Message], dict[str, Any]]:
    """Return the messages and the info of a `reset`, with its metrics as plain numbers."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{name}.reset() must return (messages, info), got {result!r}")
    messages, info = result
    return _checked_messages(messages, f"{name}.reset()"), _checked_info(info, f"{name}.reset()")


def _checked_messages(messages: Any, source: str) -> list[Message]:
    """Return a list of chat messages, with an `Image` for each picture in any other form."""
    check_messages(messages, source)
    try:
        return [with_parts(message, checked_part) for message in messages]
    except (TypeError, ValueError, OSError) as error:
        raise ValueError(f"{source} gave a picture that cannot be shown: {error}") from error


def split_first_words(messages: list[Message], name: str) -> tuple[list[Message], Message | None]:
    """Return the messages of a `reset`, and the words with which the model's first answer has to begin, if it gave any.

    They are the last message, if it is the assistant's. It may have neither calls nor parts that are not text.
    """
    if not messages or messages[-1]["role"] != "assistant":
        return messages, None
    words, problem = messages[-1], ""
    content = words.get("content")
    if words.get("tool_calls"):
        problem = "has tool_calls, which are whole already; let the results of these calls follow"
    elif isinstance(content, list) and any(part["type"] != "text" for part in content):
        problem = "has parts that are not text"
    elif not (text_of(words) or words.get("reasoning_content")):
        problem = "has no text; leave the message out"
    if problem:
        raise ValueError(
            f"{name}.reset() ended with a message of the assistant, with which the answer begins, but it {problem}"
        )
    return messages[:-1], words


def checked_step(result: Any, name: str) -> StepResult:
    """Return the result of a `step` with plain Python numbers."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise TypeError(f"{name}.step() must return (messages, reward, terminated, truncated, info), got {result!r}")
    messages, reward, terminated, truncated, info = result
    messages = _checked_messages(messages, f"{name}.step()")
    if messages and messages[-1]["role"] == "assistant" and not (terminated or truncated):
        raise ValueError(
            f"{name}.step() ended with a message of the assistant. Only the messages of reset() may end with the words "
            f"that the model goes on with; end with a message of the user or a tool"
        )
    reward = checked_reward(reward, f"{name}.step()")
    info = _checked_info(info, f"{name}.step()")
    records = info.get("tool_calls", [])
    if not isinstance(records, list) or not all(isinstance(record, ToolCallRecord) for record in records):
        raise TypeError(f"{name}.step(): info['tool_calls'] must be a list of ToolCallRecord, got {records!r}")
    return StepResult(messages, reward, bool(terminated), bool(truncated), info)


def checked_reward(reward: Any, place: str) -> float:
    """Return a reward as a plain float."""
    try:
        number = number_of(reward)
    except TypeError:
        raise TypeError(f"{place} must give a number as reward, got {reward!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{place} must give a finite reward, got {number}")
    if abs(number) > LARGEST_REWARD:
        raise ValueError(f"{place} must give a reward within the range of float32 ({LARGEST_REWARD:.1e}), got {number}")
    return number


def _checked_info(info: Any, place: str) -> dict[str, Any]:
    if not isinstance(info, dict):
        raise TypeError(f"{place} must give a dict as info, got {type(info).__name__}")
    return info | {"metrics": checked_metrics(info.get("metrics", {}), place, "info['metrics']")}


def checked_metrics(metrics: Any, place: str, source: str) -> dict[str, float]:
    """Return metrics as plain floats. Text among them would raise an error only later, when they are averaged."""
    if not isinstance(metrics, Mapping) or not all(isinstance(key, str) for key in metrics):
        raise TypeError(f"{place}: {source} must be a dict with names as keys, got {metrics!r}")
    checked: dict[str, float] = {}
    for key, value in metrics.items():
        try:
            checked[key] = number_of(value)
        except TypeError:
            checked[key] = math.nan
        if not math.isfinite(checked[key]):
            raise ValueError(f"{place}: metric {key!r} must be a finite number, got {value!r}")
    return checked


def ending(result: StepResult, name: str) -> StopReason | None:
    """Return the reason why the environment ends the episode, or None if it does not.

    If a step is both terminated and truncated, it is terminated: a wrapper such as TimeLimit may add the truncation.
    """
    given = result.info.get("stop_reason")
    if given is not None and given not in list(StopReason):
        raise ValueError(f"{name}.step(): info['stop_reason'] must be one of {[*map(str, StopReason)]}, got {given!r}")
    is_over, reason = result.terminated or result.truncated, None if given is None else StopReason(given)
    agrees = reason is None or (reason.is_termination if result.terminated else is_over and reason.is_truncation)
    if not agrees:
        raise ValueError(
            f"{name}.step(): info['stop_reason'] is {given!r}, which contradicts terminated={result.terminated} and "
            f"truncated={result.truncated}"
        )
    default = StopReason.ENV_TERMINATED if result.terminated else StopReason.ENV_TRUNCATED
    return reason or (default if is_over else None)
