"""Our environments in smolagents: `SmolagentsEpisode`, one episode that an agent plays with the environment's tools."""

from __future__ import annotations

import functools
import importlib
import json
import keyword
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ..core import BrokenEnvironmentError, Message, StepResult, StopReason, text_of
from ..engine.checked_results import ending
from ..episode import ToolCallRecord
from ..extras import needs_extra
from ..policy import tool_call
from ..tool_env.tool_env import ToolEnv
from ..tools.tool import Tool
from .smolagents_schemas import inputs_of

FINAL = "final_answer"  # the tool that ends the run of each agent of smolagents
ENDED = (StopReason.ENV_TERMINATED, StopReason.ENV_TRUNCATED)  # by the environment, of which the agent knows nothing
ANSWER = {"answer": {"type": "any", "description": "The final answer."}}


class ToolError(ValueError):
    """The text of an error, or of a reply, as the environment gives it to the model."""


class SmolagentsEpisode:
    """One episode of a `ToolEnv`, played by an agent of smolagents in place of the engine.

        with SmolagentsEpisode(Calculator(), {"question": "What is 3 times 4?", "answer": 12}) as episode:
            smolagents.ToolCallingAgent(tools=episode.tools, model=model).run(episode.prompt)
        print(episode.reward, episode.stop)

    Each call of a tool is a `step` of the environment, so arguments, time limits, rewards and endings are its own. The
    environment's final tool is the agent's `final_answer`; without a final tool, the agent's final answer is the
    model's message, to which `reply` may answer. An agent that shows a result to its model (`ToolCallingAgent`) gets
    the text that the model saw in training, errors too. Code (`CodeAgent`) gets a value of the tool's return type, and
    an error as a ValueError. Calls of several threads run one after the other. The code of a `CodeAgent` must run in
    this process (`executor_type="local"`), since the tools are here.

    Attributes:
        tools: The tools, for the agent.
        messages: The first messages of the episode.
        prompt: The text of their user message, for the agent's `run`.
        instructions: The text of their system message, for the agent's `instructions`; None without one.
        tool_calls: The records of all calls that reached the environment.
        stop: Why the episode ended; None before.
        reward: The rewards of the steps, and after the `with` block also the grade.
    """

    tools: list[Any]
    messages: list[Message]
    prompt: str
    instructions: str | None

    def __init__(self, environment: ToolEnv, task: Mapping[str, Any] | None = None, *, seed: int | None = None) -> None:
        """Name the environment, of which a copy plays, and the task's row; None to draw one.

        Raises:
            MissingExtraError: smolagents is not installed.
            TypeError: it is not a `ToolEnv`.

        The `with` statement raises a ValueError if the episode does not begin with one user message, or if a tool has a
        name that smolagents cannot take; and a BrokenEnvironmentError at its end if the environment broke.
        """
        if not isinstance(environment, ToolEnv):
            raise TypeError(f"SmolagentsEpisode takes a ToolEnv, whose tools an agent can call, got {environment!r}")
        with needs_extra("smolagents", "SmolagentsEpisode"):
            importlib.import_module("smolagents")
        self._environment = environment.clone()
        self._options = None if task is None else {"task": task}
        self._seed = seed
        self._lock = threading.Lock()  # agents call several tools at the same time
        self._broken: Exception | None = None
        self.tool_calls: list[ToolCallRecord] = []
        self.stop: StopReason | None = None
        self.reward = 0.0

    def __enter__(self) -> Self:
        try:
            self.messages, _ = self._environment.reset(seed=self._seed, options=self._options)
            self.instructions, self.prompt = _texts(self.messages)
            self.tools = self._tools()
        except BaseException:
            self._environment.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._broken is not None:
                raise BrokenEnvironmentError("the episode failed, so it has no reward") from self._broken
            if kind is None:
                self.stop = self.stop or StopReason.MAX_TURNS  # the agent ended its run without an answer
                self.reward += float(self._environment.grade(self.stop) or 0.0)
        finally:
            self._environment.close()

    def _tools(self) -> list[Any]:
        described = self._environment.tools
        final = [name for name, tool in described.items() if tool.final]
        if len(final) > 1:
            raise ValueError(f"an agent of smolagents has one final tool, and the environment has {final}: offer one")
        if final != [FINAL] and FINAL in described:
            raise ValueError(
                f"the tool {FINAL!r} ends the run of an agent, but not the episode: give it another name with "
                f"@tool(name=...), or mark it @tool(final=True)"
            )
        for name in described:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise ValueError(f"smolagents takes names of Python only, not {name!r}; give one with @tool(name=...)")
        make = _tool_class()
        tools = [make(FINAL if tool.final else name, tool, self._call) for name, tool in described.items()]
        return tools if final else [*tools, make(FINAL, None, self._answer)]

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, ToolCallRecord | None]:
        """Call a tool of the environment; return the text of its result, and its record."""
        with self._lock:
            if self.stop in ENDED and self._environment.tools[name].final:  # so that the agent can end its run
                return "The episode is over.", None
            result = self._step(tool_call(name, **arguments))
            [record] = result.info["tool_calls"]
            self.tool_calls.append(record)
        return "".join(map(_text, result.messages)), record

    def _answer(self, name: str, arguments: dict[str, Any]) -> tuple[str, None]:
        text = str(arguments.get("answer", ""))
        with self._lock:
            if self.stop in ENDED:
                return text, None
            result = self._step({"role": "assistant", "content": text})
        if self.stop is None:
            raise ToolError("\n".join(map(_text, result.messages)))  # the agent shows it to the model, and goes on
        return text, None

    def _step(self, action: Message) -> StepResult:
        if self.stop is not None:
            raise RuntimeError(f"the episode is over ({self.stop}): play the next one in a new SmolagentsEpisode")
        try:
            result = self._environment.step(action)
        except Exception as error:  # the agent would show it to the model and go on
            self._broken, self.stop = error, StopReason.FAILED
            raise
        self.reward += result.reward
        self.stop = ending(result, type(self._environment).__name__)
        return result


@functools.cache
def _tool_class() -> Any:
    """Return the class of an episode's tools, made here since smolagents is imported lazily."""
    smolagents: Any = importlib.import_module("smolagents")

    class EpisodeTool(smolagents.Tool):
        skip_forward_signature_validation = True

        def __init__(self, name: str, described: Tool | None, call: Callable[..., Any]) -> None:
            self.name, self.call = name, call
            self.schema = None if described is None else described.schema  # as the model saw it in training
            if described is None or self.schema is None:
                self.description, self.inputs, self.output_type = "Give the final answer.", ANSWER, "any"
            else:
                function = self.schema["function"]
                self.description, self.inputs = function["description"], inputs_of(name, function["parameters"])
                self.output_type = (described.returns or {}).get("type", "any")
            super().__init__()

        def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> Any:
            if len(args) > len(self.inputs):
                raise TypeError(f"{self.name} takes the arguments {list(self.inputs)}, got {len(args)}")
            arguments = dict(zip(self.inputs, args, strict=False)) | kwargs
            text, record = self.call(self.schema["function"]["name"] if self.schema else FINAL, arguments)
            shown = sanitize_inputs_outputs and self.name != FINAL  # each call of the final tool would end the run
            if record is not None and record.failed and not shown:
                raise ToolError(text)
            return text if sanitize_inputs_outputs else _value(text, self.output_type)

        forward = __call__

    return EpisodeTool


def _texts(messages: Sequence[Message]) -> tuple[str | None, str]:
    """Return the text of the system message, if there is one, and that of the user message."""
    roles = [message["role"] for message in messages]
    if roles not in (["user"], ["system", "user"]):
        raise ValueError(
            f"an agent begins with one text, and this environment with messages of {roles}: give one user message, "
            f"perhaps after a system message"
        )
    return _text(messages[0]) if len(roles) == 2 else None, _text(messages[-1])


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list) and any(part["type"] != "text" for part in content):
        raise ValueError(f"an agent of smolagents gets text only, and this message has other parts: {message!r}")
    return text_of(message)


def _value(text: str, output_type: str) -> Any:
    """Return a result as a value for code. A result that was cut is no JSON, and stays the text that says so."""
    try:
        return text if output_type in ("string", "any") else json.loads(text)
    except ValueError:
        return text
