"""The nouns of an episode, and the contract of an environment.

- `Message`, `ToolCall`, `MalformedCall`: one chat message, in the format that chat templates and model servers share.
- `StopReason`: why an episode ended, and what kind of ending that is.
- `StepResult`: the result of one step of an environment.
- `Environment`: a `gymnasium.Env` over chat messages, with a synchronous and an asynchronous form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Required, Self

import gymnasium
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from .runtime.rows import own_copy
from .runtime.sync_and_async import derive_other_form
from .spaces import MessageSpace, MessagesSpace


@with_config(ConfigDict(extra="allow"))  # a model family's own keys survive the round trip through JSON
class FunctionCall(TypedDict):
    """The name of a tool and its arguments (a mapping, or a string that holds JSON)."""

    name: str
    arguments: dict[str, Any] | str


@with_config(ConfigDict(extra="allow"))
class ToolCall(TypedDict, total=False):
    """One tool call of an assistant message."""

    id: str
    type: Literal["function"]
    function: Required[FunctionCall]


class MalformedCall(TypedDict):
    """A tool call that could not be read: the text that the model wrote, and the error in it."""

    text: str
    error: str


@with_config(ConfigDict(extra="allow"))
class Message(TypedDict, total=False):
    """One chat message; `content` is text, or a list of parts such as `{"type": "text", "text": ...}`."""

    role: Required[str]
    content: str | list[dict[str, Any]] | None
    reasoning_content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    malformed: list[MalformedCall]


ToolSchema = dict[str, Any]
"""A tool as chat templates take it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


class StopReason(StrEnum):
    """Why an episode ended: each reason is exactly one of a termination, a truncation or a failure."""

    FINAL_ANSWER = "final_answer"  # a final tool was called and succeeded
    ENV_TERMINATED = "env_terminated"  # the environment said so
    MODEL_STOPPED = "model_stopped"  # an answer without tool calls, to which the environment has no reply
    MALFORMED = "malformed"  # malformed tool calls, and the environment does not allow (more of) them
    ENV_TRUNCATED = "env_truncated"  # the environment, or a wrapper such as TimeLimit, cut the episode
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOKENS = "max_tokens"  # the episode's token budget is spent
    TURN_TRUNCATED = "turn_truncated"  # one turn's token budget ran out before the turn was over
    CONTEXT_OVERFLOW = "context_overflow"  # the model's context is full; without a turn: an `OverlongPromptError`
    TIME_LIMIT = "time_limit"  # the environment's own time for the task is over, as in a `TaskEnv`; learned from
    TIMEOUT = "timeout"  # `episode_timeout` is over: graded, but not learned from, since the machine may be to blame
    FAILED = "failed"  # something broke; see `Episode.failure`

    @property
    def is_termination(self) -> bool:
        """The episode came to its own end (Gymnasium's `terminated`)."""
        return self in _TERMINATIONS

    @property
    def is_truncation(self) -> bool:
        """A limit cut the episode (Gymnasium's `truncated`)."""
        return not self.is_termination and not self.is_failure

    @property
    def is_failure(self) -> bool:
        """The episode broke, so its reward means nothing."""
        return self is StopReason.FAILED


_TERMINATIONS = frozenset(
    {StopReason.FINAL_ANSWER, StopReason.ENV_TERMINATED, StopReason.MODEL_STOPPED, StopReason.MALFORMED}
)


class StepResult(NamedTuple):
    """What `Environment.step` returns; `info["stop_reason"]` may say why the episode ended."""

    messages: list[Message]  # the new messages only
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class ConfigurationError(ValueError):
    """A mistake that every episode would meet again. It stops the run; it is not a failed episode."""


class BrokenEnvironmentError(Exception):
    """The environment itself is broken, for instance its database is down: the episode fails and has no reward.

    Raise it in a tool. The model sees any other error of a tool as a message, and the episode goes on.
    """


class LimitReachedError(ValueError):
    """A limit leaves no further answer of the model. A policy raises it; the episode ends with `stop`."""

    def __init__(self, message: str = "", *, stop: StopReason) -> None:
        super().__init__(message)
        self.stop = stop


class OverlongPromptError(LimitReachedError):
    """The messages leave no room for an answer in the model's context.

    If they are the first ones, the episode has no reward. It is dropped and counted, and not a failure.
    """

    def __init__(self, message: str = "", *, length: int | None = None) -> None:
        super().__init__(message, stop=StopReason.CONTEXT_OVERFLOW)
        self.length = length  # the number of their tokens, where the policy knows it


class Environment(gymnasium.Env[list[Message], Message]):
    """A Gymnasium environment that speaks chat messages: the action is the model's message, the observation the reply.

    Write `reset` and `step`, or their asynchronous forms `areset` and `astep`; each form is derived from the other. The
    engine awaits the asynchronous form. If it is derived from the synchronous one, that runs in a thread and may block.
    `reset(options={"task": row})` chooses the task; without one, a task is drawn from `tasks`.

        class Guess(Environment):
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.number = self.task_of(options)["number"]
                return [{"role": "user", "content": "Guess my number."}], {}

            def step(self, message):
                right = str(self.number) in message["content"]
                return StepResult([], float(right), True, False, {})
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own attribute)

    tasks: Sequence[Mapping[str, Any]] | None = None
    render_mode: str | None = None
    gives_rewards: bool = True  # False: its steps give 0 because it judges nothing, so only reward functions count
    min_step_seconds: float | None = None  # seconds that one step may take; a `step_timeout` must be longer
    own_seconds: float = 0.0  # that a step or a grade of this episode limits itself to: `step_timeout` is no shorter
    metrics: dict[str, float]  # numbers to log; the engine reads them when the episode has been graded
    report: dict[str, Any]  # other facts about the episode, for people; kept in `Episode.report`

    _constructor: tuple[tuple[Any, ...], dict[str, Any]]
    _was_reset: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step", "grade", "close"):
            derive_other_form(cls, name)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # The arguments are recorded here, not in __init__, so that a subclass cannot forget to.
        environment = super().__new__(cls)
        environment._constructor = (args, kwargs)
        environment.action_space = MessageSpace()
        environment.observation_space = MessagesSpace()
        environment.metrics, environment.report = {}, {}
        return environment

    def __init__(self, *, tasks: Sequence[Mapping[str, Any]] | None = None, render_mode: str | None = None) -> None:
        """Make the environment; `reset` without a task draws one from `tasks`.

        Raises:
            TypeError: `tasks` is no list of rows.
            ValueError: the render mode is not one of `metadata["render_modes"]`.
        """
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"{type(self).__name__} has the render modes {modes}, got {render_mode!r}")
        if tasks is not None:
            if isinstance(tasks, str | Mapping) or not hasattr(tasks, "__getitem__"):
                raise TypeError(f"tasks must be a list of rows, got {type(tasks).__name__}: {tasks!r:.200}")
            self.tasks = tasks
        self.render_mode = render_mode

    def clone(self) -> Self:
        """Make a fresh environment from the same constructor arguments, which both share."""
        args, kwargs = self._constructor
        return type(self)(*args, **kwargs)

    def task_of(self, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the task's row: `options["task"]`, or else a row drawn from `tasks` with `np_random`.

        Raises:
            ValueError: there is neither.
            TypeError: the task is not a mapping.
        """
        task = None if options is None else options.get("task")
        if task is None:
            return self.sample_task()
        if not isinstance(task, Mapping):
            raise TypeError(f"a task is a row of a data set, which is a mapping, got {type(task).__name__}: {task!r}")
        return task

    def sample_task(self) -> Mapping[str, Any]:
        """Draw a task when `reset` is given none; by default a row of `tasks`, or a ValueError if there are none."""
        if not self.tasks:
            raise ValueError(
                f"{type(self).__name__} has no task: call reset(options={{'task': row}}), "
                f"or construct it with tasks=[row, ...]"
            )
        return self.task_of({"task": own_copy(self.tasks[int(self.np_random.integers(len(self.tasks)))])})

    # Questions of the engine and of the policy, besides reset and step.

    def tool_schemas(self) -> list[ToolSchema]:
        """Return the tools of this episode; the engine reads them after `reset`."""
        return []

    def is_final(self, call: ToolCall) -> bool:
        """Return whether a successful call ends the episode; such a call is run even if a limit is reached.

        The limits ask about the arguments that the model wrote, which may be wrong. The end is decided by the arguments
        that the tool gets.
        """
        return False

    # The synchronous form.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Begin an episode and return its first messages; an override calls `super().reset(seed=seed)` first."""
        super().reset(seed=seed)
        self.metrics, self.report, self._was_reset = {}, {}, True
        return [], {}

    def step(self, action: Message) -> StepResult:
        """Reply to the model's message with new messages, the reward of this step, and whether it was the last."""
        raise NotImplementedError(f"{type(self).__name__} must implement step() or astep()")

    def grade(self, stop: StopReason) -> float | None:
        """Judge the episode that has just ended; the engine asks exactly once, for every reason of the end.

        A number is added to the reward of the last turn; None, the default, leaves the rewards of the steps as they
        are. A failed episode is not graded. In a loop of your own over `step`, call it yourself at the end.
        """
        return None

    def close(self) -> None:
        """Release what the environment holds; the engine calls it exactly once for each environment that it made."""

    def render(self) -> str | None:  # type: ignore[override]
        """Return the episode in the form that `render_mode` names; None if there is no `render_mode`."""
        if self.render_mode is None:
            return None
        raise NotImplementedError(f"{type(self).__name__} declares render modes and must implement render()")

    def render_html(self) -> str | None:
        """Return the state of the episode as HTML: `gymnast view` shows it beside the turn, without scripts.

        The engine asks after each step of every episode, so it should be quick. None, the default, shows nothing.
        """
        return None

    # The asynchronous form, which the engine awaits.

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Asynchronous `reset`; an override awaits `super().areset(seed=seed)` first."""
        return Environment.reset(self, seed=seed)

    async def astep(self, action: Message) -> StepResult:
        """Asynchronous `step`."""
        raise NotImplementedError(f"{type(self).__name__} must implement step() or astep()")

    async def agrade(self, stop: StopReason) -> float | None:
        """Asynchronous `grade`."""
        return None

    async def aclose(self) -> None:
        """Asynchronous `close`."""

    async def aprepare(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Begin to get ready for episodes of these tasks, which may come much later, and return at once.

        The engine calls it on the prototype, which has no episode of its own.
        """


def text_of(message: Message) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
