"""Reward functions beside the environment's own reward: checking, calling and weighing them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from .core import Message
from .episode import Episode
from .threads import call_function

RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]
"""Takes lists by keyword, one entry for each episode, and returns one reward for each: None = not applicable.

`prompts` and `completions` are lists of messages, `completion_ids` lists of token ids, `episodes` the records, and
every column of the data set is there under its own name, as in TRL. Where the environment rewards none of the
episodes, one to which no function applies cannot be scored: its `reward` is None, and it leaves its group without
counting as a failure.
"""

OWN_ARGUMENTS = ("prompts", "completions", "completion_ids", "episodes")


class Rewards:
    """Reward functions with their weights.

    Args:
        functions: Synchronous or asynchronous reward functions.
        weights: One for each function; 1.0 each by default.

    Raises:
        TypeError: a function is not callable.
        ValueError: two functions have one name, or there is not one weight for each.
    """

    def __init__(self, functions: Sequence[RewardFunction] = (), weights: Sequence[float] | None = None) -> None:
        for function in functions:
            if not callable(function):
                raise TypeError(f"a reward function must be callable, got {type(function).__name__}: {function!r}")
        names = [_name(function) for function in functions]
        if len({*names, "environment"}) <= len(names):
            raise ValueError(
                f"reward functions need distinct names, none of them 'environment', got {names}; set `__name__` of "
                f"a function (functools.partial has none of its own) to give it another"
            )
        if weights is not None and len(weights) != len(functions):
            raise ValueError(f"got {len(functions)} reward functions and {len(weights)} reward_weights")
        if not all(map(math.isfinite, weights or ())):
            raise ValueError(f"reward_weights must be finite, got {weights}")
        self.functions = dict(zip(names, functions, strict=True))
        self.weights = list(weights) if weights is not None else [1.0] * len(functions)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Check that each function can be called with these columns of the data set.

        Raises:
            ValueError: a function requires an argument that nothing provides, or takes no `completions`.
        """
        for name, function in self.functions.items():
            parameters = inspect.signature(function).parameters
            takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
            known = {*OWN_ARGUMENTS, *columns}
            missing = [
                each.name
                for each in parameters.values()
                if each.default is each.empty
                and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
                and (each.name not in known or each.kind is each.POSITIONAL_ONLY)
            ]
            if missing:
                raise ValueError(
                    f"reward function {name!r} requires {missing}, but what it is called with is {sorted(known)}; "
                    f"write e.g. `def {name}(completions, **columns)`"
                )
            if not takes_all and not known & set(parameters):
                raise ValueError(
                    f"reward function {name!r} takes none of {sorted(known)}; write e.g. "
                    f"`def {name}(completions, **columns)`"
                )

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Add each function's reward, weighed, to the episodes that did not fail and could be begun.

        Raises:
            ValueError: a function returned the wrong number of rewards, or one that is not finite.
        """
        scored = [episode for episode in episodes if not episode.stop.is_failure and episode.reward is not None]
        if not scored or not self.functions:
            return
        for (name, function), weight in zip(self.functions.items(), self.weights, strict=True):
            rewards = _checked(name, await _call(function, _arguments(scored)), len(scored))
            for episode, reward in zip(scored, rewards, strict=True):
                episode.reward_parts[name] = reward
                if reward is not None:
                    episode.reward = (episode.reward or 0.0) + weight * reward
        # A zero of an environment that rewards is a wrong answer; of one that never does, it is no reward at all.
        if not self.functions or any(turn.reward for episode in scored for turn in episode.turns):
            return
        for episode in scored:
            if all(episode.reward_parts[name] is None for name in self.functions):
                episode.reward = None


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _arguments(episodes: Sequence[Episode]) -> dict[str, list[Any]]:
    columns = {name: None for episode in episodes for name in episode.spec.task.row}
    arguments: dict[str, list[Any]] = {
        name: [episode.spec.task.row.get(name) for episode in episodes] for name in columns
    }
    arguments["prompts"] = [episode.prompt for episode in episodes]
    arguments["completions"] = [episode.completion for episode in episodes]
    arguments["completion_ids"] = [episode.trace.completion_ids if episode.trace else None for episode in episodes]
    arguments["episodes"] = list(episodes)
    return arguments


async def _call(function: RewardFunction, arguments: Mapping[str, list[Any]]) -> Any:
    parameters = inspect.signature(function).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    return await call_function(function, **arguments)


def _checked(name: str, rewards: Any, count: int) -> list[float | None]:
    try:
        values = [None if reward is None else float(reward) for reward in rewards]
    except (TypeError, ValueError):
        raise ValueError(
            f"reward function {name!r} must return a list of {count} numbers or None, got {rewards!r}"
        ) from None
    if len(values) != count:
        raise ValueError(f"reward function {name!r} returned {len(values)} rewards for {count} episodes")
    for index, value in enumerate(values):
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"reward function {name!r} returned {value} for episode {index} of {count}; return None where the "
                f"reward does not apply"
            )
    return values


def matches(expression: str, *, value: Any = True, name: str | None = None) -> RewardFunction:
    """A reward function: 1.0 where a JMESPath expression over the episode has this value, else 0.0.

    The expression sees `{"prompt": [...], "completion": [...], "task": {...}, "stop": "..."}`; with `value=True` any
    true result counts, as in `matches("completion[?role=='tool'] | length(@) > `0`")`.

    Raises:
        ValueError: the expression cannot be parsed.
    """
    try:
        compiled = jmespath.compile(expression)
    except JMESPathError as error:
        raise ValueError(f"not a JMESPath expression: {expression!r}: {error}") from None

    def reward(episodes: Sequence[Episode], **columns: Any) -> list[float]:
        try:
            found = [compiled.search(_view(episode)) for episode in episodes]
        except JMESPathError as error:  # such as length() of null
            raise ValueError(f"the JMESPath expression {expression!r} does not fit the episode: {error}") from error
        return [float(bool(each) if value is True else each == value) for each in found]

    reward.__name__ = name or f"matches({expression})"
    return reward


def _view(episode: Episode) -> dict[str, Any]:
    completion: list[Message] = episode.completion
    return {
        "prompt": episode.prompt,
        "completion": completion,
        "task": dict(episode.spec.task.row),
        "stop": episode.stop.value,
    }
