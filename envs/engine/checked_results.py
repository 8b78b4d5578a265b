"""The contract of `reset` and `step`, checked on what an environment really gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .core import Message, StepResult, StopReason
from .episode import ToolCallRecord
from .spaces import check_messages


def checked_reset(result: Any, name: str) -> tuple[list[Message], dict[str, float]]:
    """The messages and the metrics of a `reset`.

    Raises:
        TypeError: it is not `(messages, info)`, or the info or its metrics are no dicts.
        ValueError: the messages are no chat messages, or a metric is no finite number.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{name}.reset() must return (messages, info), got {result!r}")
    messages, info = result
    check_messages(messages, f"{name}.reset()")
    return list(messages), _checked_metrics(info, f"{name}.reset()")


def checked_step(result: Any, name: str) -> StepResult:
    """The result of a `step`, with plain Python numbers.

    Raises:
        TypeError: it is not `(messages, reward, terminated, truncated, info)`, or one of these has the wrong type.
        ValueError: the messages are no chat messages, or the reward or a metric is not finite.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise TypeError(f"{name}.step() must return (messages, reward, terminated, truncated, info), got {result!r}")
    messages, reward, terminated, truncated, info = result
    check_messages(messages, f"{name}.step()")
    try:
        reward = float(reward)
    except (TypeError, ValueError):
        raise TypeError(f"{name}.step() must give a number as reward, got {reward!r}") from None
    if not math.isfinite(reward):
        raise ValueError(f"{name}.step() must give a finite reward, got {reward}")
    metrics = _checked_metrics(info, f"{name}.step()")
    records = info.get("tool_calls", [])
    if not isinstance(records, list) or not all(isinstance(record, ToolCallRecord) for record in records):
        raise TypeError(f"{name}.step(): info['tool_calls'] is a list of ToolCallRecord, got {records!r}")
    return StepResult(list(messages), reward, bool(terminated), bool(truncated), info | {"metrics": metrics})


def _checked_metrics(info: Any, place: str) -> dict[str, float]:
    """`info["metrics"]` with plain numbers: a text among them would be met only when the metrics are averaged."""
    if not isinstance(info, dict):
        raise TypeError(f"{place} must give a dict as info, got {type(info).__name__}")
    metrics = info.get("metrics", {})
    if not isinstance(metrics, Mapping) or not all(isinstance(key, str) for key in metrics):
        raise TypeError(f"{place}: info['metrics'] must be a dict with names as keys, got {metrics!r}")
    checked: dict[str, float] = {}
    for key, value in metrics.items():
        try:
            checked[key] = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError):
            checked[key] = math.nan
        if not math.isfinite(checked[key]):
            raise ValueError(f"{place}: metric {key!r} must be a finite number, got {value!r}")
    return checked


def ending(result: StepResult, name: str) -> StopReason | None:
    """Why the environment ends the episode; None when it does not.

    The environment's own end goes before a truncation in the same step, as a wrapper such as TimeLimit may add one.

    Raises:
        ValueError: `info["stop_reason"]` is no stop reason, or contradicts `terminated` and `truncated`.
    """
    given = result.info.get("stop_reason")
    if given is not None and given not in list(StopReason):
        raise ValueError(f"{name}.step(): info['stop_reason'] must be one of {[*map(str, StopReason)]}, got {given!r}")
    reason = None if given is None else StopReason(given)
    if result.terminated:
        default, agrees = StopReason.ENV_TERMINATED, reason is None or reason.is_termination
    elif result.truncated:
        default, agrees = StopReason.ENV_TRUNCATED, reason is None or reason.is_truncation
    else:
        default, agrees = None, reason is None
    if not agrees:
        raise ValueError(
            f"{name}.step(): info['stop_reason'] is {given!r}, which contradicts terminated={result.terminated} and "
            f"truncated={result.truncated}"
        )
    return reason or default
