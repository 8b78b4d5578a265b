"""Reward functions, whose rewards are added to the environment's own."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any, TypeVar

import jmespath
from jmespath.exceptions import JMESPathError

from ..sandbox.limits import check_positive
from .core import ConfigurationError, Message
from .episode import Episode, Failure
from .runtime.user_calls import being_cancelled, call_function, within

RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]
"""Takes lists by keyword, one entry for each episode, and returns a list with one reward for each episode.

`prompts` and `completions` are lists of messages, `completion_ids` lists of token ids, `episodes` the records. Every
column of the data set is there under its own name, as in TRL. The episodes of one call are the members of one group,
or one episode where the function is marked with `per_episode`. None means that the reward does not apply.
"""

Function = TypeVar("Function", bound=Callable[..., Any])

LARGEST_REWARD = 3.4028234663852886e38
"""The largest number of float32, in which training computes advantages: beyond it the loss is infinite."""

OWN_ARGUMENTS = ("prompts", "completions", "completion_ids", "episodes")


def number_of(value: Any) -> float:
    """Return the value as a float; a TypeError if it is text or no number."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"expected a number, got {type(value).__name__}: {value!r}")
    return float(value)


def per_episode(function: Function) -> Function:
    """Mark a reward function that needs no group: it is called with lists of one entry as soon as an episode is over.

    It starts earlier than a function of a group, and if it fails, only one episode is lost.
    """
    setattr(function, "per_episode", True)  # noqa: B010  (a function's type has no such attribute)
    return function


class Rewards:
    """Reward functions with their weights.

    Args:
        functions: Synchronous or asynchronous reward functions. They run at the same time: a synchronous function in
            a thread for each call, so it must be thread-safe.
        weights: One for each function; 1.0 each by default.
        timeout: Seconds for one call; None = no limit.

    Raises:
        TypeError: a function is not callable.
        ValueError: two functions have the same name, the number of weights is wrong, or the timeout is not positive.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction] = (),
        weights: Sequence[float] | None = None,
        *,
        timeout: float | None = 600.0,
    ) -> None:
        if callable(functions):
            raise TypeError(f"Rewards takes a list of reward functions, got one: write Rewards([{_name(functions)}])")
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
        check_positive(timeout, "reward_timeout", "seconds")
        self.functions = dict(zip(names, functions, strict=True))
        self.weights = dict(zip(names, weights if weights is not None else [1.0] * len(names), strict=True))
        self.timeout = timeout
        single = [name for name, function in self.functions.items() if getattr(function, "per_episode", False)]
        self.for_episodes = single  # names of the functions that are called with one episode
        self.for_groups = [name for name in names if name not in single]  # those that are called with a whole group

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise a ValueError if a function cannot be called with these columns of the data set."""
        known = {*OWN_ARGUMENTS, *columns}
        for name, function in self.functions.items():
            parameters = inspect.signature(function).parameters
            missing = [
                taken.name
                for taken in parameters.values()
                if taken.default is taken.empty
                and taken.kind not in (taken.VAR_KEYWORD, taken.VAR_POSITIONAL)
                and (taken.name not in known or taken.kind is taken.POSITIONAL_ONLY)
            ]
            if not missing and (_takes_all(parameters) or known & set(parameters)):
                continue
            fault = f"requires {missing}, but is called with {sorted(known)} only"
            raise ValueError(
                f"reward function {name!r} {fault if missing else f'takes none of {sorted(known)}'}; write e.g. "
                f"`def {name}(completions, **columns)`"
            )

    async def add(self, names: Sequence[str], episodes: Sequence[Episode], *, retries: int = 0) -> None:
        """Call these functions at the same time, each with all these episodes, and add the rewards that they return.

        Episodes that failed, or whose prompt was too long, are left out. If a function raises, takes too long or
        returns something other than one number for each episode, and no retry is left, they become failures of the
        stage "reward". So does an episode whose reward float32 cannot hold. Only a ConfigurationError is raised.
        """
        played = [episode for episode in episodes if episode.failure is None and not episode.is_overlong]
        if not played:
            return
        calls = (self._call(name, played, retries) for name in names)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            rewards, failures = outcome
            if rewards is None:  # the first function in order is blamed, not the first one in time
                for episode in played:
                    episode.retried += failures[:-1]
                    episode.fail(failures[-1])
                return
            for episode, reward in zip(played, rewards, strict=True):
                episode.retried += failures
                episode.reward_parts[name] = reward
        for episode in played:
            self._add_up(episode)

    def _add_up(self, episode: Episode) -> None:
        """Compute the reward from its parts, always in the same order, so that rounding does not depend on timing."""
        weights = {"environment": 1.0, **self.weights}
        parts = {name: episode.reward_parts[name] for name in weights if name in episode.reward_parts}
        applicable = [weights[name] * part for name, part in parts.items() if part is not None]
        total = sum(applicable) if applicable else None
        episode.reward, episode.reward_parts = total, parts
        if total is not None and not abs(total) <= LARGEST_REWARD:  # or NaN, which infinities can add up to
            listed = " + ".join(f"{weights[name]:g} * {part:g} ({name})" for name, part in parts.items() if part)
            error = ValueError(f"the reward {listed} is out of the range of float32 ({LARGEST_REWARD:.1e})")
            episode.fail(Failure.of("reward", error))

    async def _call(
        self, name: str, episodes: Sequence[Episode], retries: int
    ) -> tuple[list[float | None] | None, list[Failure]]:
        """Call a function until it succeeds or no retry is left; returns its rewards, if any, and the failures."""
        function, failures = self.functions[name], []
        while len(failures) <= retries:
            limit = self.timeout or math.inf
            late = TimeoutError(f"did not finish within reward_timeout={limit:g} s")
            try:
                result = await within(limit, late, call_function(function, **_arguments(function, episodes)))
                return _checked(result, len(episodes)), failures
            except BaseException as error:
                if isinstance(error, ConfigurationError) or being_cancelled():
                    raise
                failures.append(Failure.of("reward", error, f"reward function {name!r}: {error}"))
        return None, failures


class ListOfMessages(list[Message]):
    """A prompt or a completion. To use it as text, which would always give False, is an error with the remedy."""

    def __contains__(self, item: object) -> bool:
        return super().__contains__(self._no_text(item))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(self._no_text(other))

    def __getattr__(self, name: str) -> Any:
        if hasattr(str, name):
            self._no_text("")
        raise AttributeError(f"a list of messages has no {name!r}")

    @staticmethod
    def _no_text(other: object) -> object:
        if isinstance(other, str):
            raise TypeError(
                "a completion or a prompt is a list of messages, not text: completion[-1]['content'] is the text of "
                "the last message"
            )
        return other


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _arguments(function: RewardFunction, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
    """Return the arguments that the function takes, by name."""
    rows = [episode.spec.task.row for episode in episodes]
    columns = {name: None for row in rows for name in row}
    arguments: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in columns}
    arguments["prompts"] = [ListOfMessages(episode.prompt) for episode in episodes]
    arguments["completions"] = [ListOfMessages(episode.completion) for episode in episodes]
    arguments["completion_ids"] = [
        [token for trace in episode.traces for token in trace.completion_ids] if episode.traces else None
        for episode in episodes
    ]
    arguments["episodes"] = list(episodes)
    parameters = inspect.signature(function).parameters
    return {name: values for name, values in arguments.items() if name in parameters or _takes_all(parameters)}


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(taken.kind is taken.VAR_KEYWORD for taken in parameters.values())


def _checked(rewards: Any, count: int) -> list[float | None]:
    """Return one number or None for each episode.

    Raises:
        TypeError: it is not a list of numbers.
        ValueError: its length is wrong, or a number is not finite.
    """
    try:
        if isinstance(rewards, str | bytes | Mapping | Set):  # iterable, but their items are not rewards in order
            raise TypeError
        values = [None if reward is None else number_of(reward) for reward in rewards]
    except TypeError:
        raise TypeError(f"must return a list of {count} numbers or None, got {rewards!r}") from None
    if len(values) != count:
        raise ValueError(f"returned {len(values)} rewards for {count} episodes")
    for index, value in enumerate(values):
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"returned {value} for episode {index} of {count}; return None where the reward does not apply"
            )
    return values


def matches(expression: str, *, value: Any = True, name: str | None = None) -> RewardFunction:
    """Return a reward function that gives 1.0 to episodes for which a JMESPath expression has this value, else 0.0.

    The expression is evaluated on `{"prompt": [...], "completion": [...], "task": {...}, "stop": "..."}`. With
    `value=True` any true result counts, as in `matches("completion[?role=='tool'] | length(@) > `0`")`.

    Raises:
        ValueError: the expression cannot be parsed.
    """
    try:
        compiled = jmespath.compile(expression)
    except JMESPathError as error:
        raise ValueError(f"not a JMESPath expression: {expression!r}: {error}") from None

    @per_episode
    def reward(episodes: Sequence[Episode], **columns: Any) -> list[float]:
        try:
            found = [compiled.search(_view(episode)) for episode in episodes]
        except JMESPathError as error:  # such as length() of null
            raise ValueError(f"the JMESPath expression {expression!r} does not fit the episode: {error}") from error
        return [float(bool(result) if value is True else result == value) for result in found]

    reward.__name__ = name or f"matches({expression})"
    return reward


def _view(episode: Episode) -> dict[str, Any]:
    row = dict(episode.spec.task.row)
    return {"prompt": episode.prompt, "completion": episode.completion, "task": row, "stop": episode.stop.value}
