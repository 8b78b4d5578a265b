"""ToolEnv: an environment made of tools."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Unpack

from ..cassettes.tape import Tape, tape_grade
from ..core import Message, StepResult, StopReason, ToolCall, ToolSchema
from ..runtime.message_text import as_transcript
from ..runtime.user_calls import call_function
from ..spaces import check_action, check_messages
from ..tools.chosen_tools import check_final_tools, tools_of_row, with_final
from ..tools.execution import CallRules, call_tools
from ..tools.results import cut, with_text_of
from ..tools.runner import Call
from ..tools.sources import ToolLike, ToolSource
from ..tools.step_reward import StepReward
from ..tools.tool import Tool, collect_tools
from .forgotten import warn_of_forgotten_return, warn_of_forgotten_tools
from .methods import check_hooks, check_tool_methods, tool_methods
from .options import OnMalformed, ToolEnvOptions, set_options

Messages = Sequence[Mapping[str, Any]]
"""Chat messages as a subclass may write them: plain dicts in a list."""


class ToolEnv(StepReward):
    """An environment whose actions are tool calls: methods marked with `@tool`, and plain functions.

    Within a tool, set `self.reward` to reward this step, and `self.terminated = True` to end the episode after it, or
    `self.truncated = True` if a limit ends it; a tool marked `@tool(final=True)` ends it by succeeding.
    `self.metrics["name"] = number` is logged as `environment/name`. The tool calls of one turn run one after the other,
    in call order; neighbouring calls of tools marked `@tool(parallel=True)` run at the same time.

        class Calculator(ToolEnv):
            def reset_task(self, task):
                self.expected = task["answer"]
                return [{"role": "user", "content": task["question"]}]

            @tool(final=True)
            def final_answer(self, answer: int) -> str:
                '''Give the final answer.

                Args:
                    answer: The answer.
                '''
                self.reward = float(answer == self.expected)
                return "done"
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (Gymnasium's own attribute)

    # A subclass may set these options as class attributes; an argument of the constructor goes before.
    tool_timeout: float | None = 60.0
    max_result_chars: int | None = 20_000
    on_malformed: OnMalformed = "feedback"
    max_malformed: int = 3
    final_tools: Collection[str] = ()

    grade_in_replay: bool = False  # True: `grade` runs again in a replay, as a tool marked `replay="run"`

    _tape: Tape | None = None
    _tool_methods: tuple[str, ...] = ()
    _functions: tuple[Callable[..., Any] | Tool, ...] = ()
    _sources: tuple[ToolSource, ...] = ()
    _opened = AsyncExitStack()  # before the first reset; then one of its own closes all that the episode has opened
    _of_sources: tuple[Tool, ...] = ()  # the tools of the open sources
    _tools: dict[str, Tool] | None = None
    _malformed_turns: int = 0
    _over: bool = True  # before the first reset, too
    _transcript: Sequence[Message] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        check_tool_methods(cls)  # first, since the base class derives methods from those that it finds
        check_hooks(cls)
        super().__init_subclass__(**kwargs)
        cls._tool_methods = tool_methods(cls)
        if "agrade" in vars(cls):  # the class writes a form of it
            tape_grade(cls)

    def __init__(
        self,
        tools: Sequence[ToolLike] = (),
        *,
        tasks: Sequence[Mapping[str, Any]] | None = None,
        render_mode: str | None = None,
        record: str | Path | None = None,
        replay: str | Path | None = None,
        **options: Unpack[ToolEnvOptions],
    ) -> None:
        """Make the environment.

        Args:
            tools: Plain functions as tools, beside the methods marked with `@tool`; and sources such as `MCPTools`.
            tasks: Rows to draw from when `reset` is given no task.
            render_mode: None, or "ansi" for the transcript as text.
            record: A cassette, a `.jsonl` file, to which the results of all calls are appended.
            replay: A cassette that answers the calls, so that no tool runs. A call that is not in it fails the episode
                with an `UnrecordedCallError`.
            tool_timeout: Seconds for a tool without a `timeout` of its own; None = no limit. A synchronous tool that
                takes longer is abandoned in its thread.
            max_result_chars: Characters of a result that the model sees: its head and its tail. None for no limit.
            on_malformed: What to do about a tool call that cannot be read: `feedback` tells the model the error, `end`
                ends the episode with `StopReason.MALFORMED`, `text` treats the call as part of the message's text.
            max_malformed: The episode ends after this many turns in a row with malformed calls, also with `feedback`.
            final_tools: Names of tools that end the episode by succeeding, as if they were marked `@tool(final=True)`;
                for tools of others, such as those of `MCPTools`.
            stop_tool_names: Another name of `final_tools`, for people who come from TRL.

        Raises:
            TypeError: a tool's parameter has no type hint, `tools` is not a sequence of functions, `final_tools` is not
                a list of names, or an option is unknown.
            ValueError: two tools of one name, a tool without docstring entry, no tool of a name in `final_tools`, an
                option out of its range, or a broken cassette.
            FileNotFoundError: there is no cassette to replay.
        """
        super().__init__(tasks=tasks, render_mode=render_mode)
        if not isinstance(tools, Sequence):
            raise TypeError(f"tools must be a list or a tuple, since every copy reads it again, got {tools!r}")
        set_options(self, options)
        if type(self) is ToolEnv:
            self.gives_rewards = False  # plain functions cannot set `self.reward`
        self._functions = tuple(tool for tool in tools if not isinstance(tool, ToolSource))
        self._sources = tuple(tool for tool in tools if isinstance(tool, ToolSource))
        if record is not None or replay is not None:
            self._tape = Tape(self, record, replay)
        known = self._all_tools()  # here, so that a wrong tool is an error when the environment is made
        some_open_later = bool(self._sources) or type(self)._all_tools is not ToolEnv._all_tools
        check_final_tools(self.final_tools, None if some_open_later else known, type(self).__name__)
        self.tools = known

    # The hooks that a subclass writes.

    def reset_task(self, task: Mapping[str, Any]) -> Messages | Awaitable[Messages]:
        """Return the first messages of an episode; may be `async`. By default the row's `prompt`: text, or messages.

        Raises:
            ValueError: the row has no `prompt`.
        """
        if "prompt" not in task:
            raise ValueError(
                f"{type(self).__name__}: the row has no 'prompt' (its columns: {sorted(task)}); add the column, or "
                f"override reset_task"
            )
        prompt = task["prompt"]
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else copy.deepcopy(list(prompt))

    def reply(self, message: Message) -> Messages | Awaitable[Messages | None] | None:
        """Return the reply to a message without tool calls; may be `async`. None, the default, ends the episode."""
        return None

    # The episode's tools.

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools of this episode by name; assign functions or tools in `reset_task` to change them."""
        if self._tools is None:
            self.tools = self._all_tools()
        assert self._tools is not None
        return self._tools

    @tools.setter
    def tools(self, tools: Mapping[str, Tool] | Iterable[Callable[..., Any] | Tool]) -> None:
        functions = tools.values() if isinstance(tools, Mapping) else tools
        self._tools = with_final(collect_tools(functions, type(self).__name__), self.final_tools)

    @property
    def _shown(self) -> Mapping[str, Tool]:
        """The tools that the model sees and calls itself; for the environments of this package."""
        return self.tools

    @property
    def _within(self) -> Mapping[str, Tool]:
        """The tools that code calls which the model wrote."""
        return {}

    def _call_rules(self, tools: Mapping[str, Tool], **others: Any) -> CallRules:
        return CallRules(
            tools=tools, is_final=self.is_final, timeout=self.tool_timeout, max_chars=self.max_result_chars, **others
        )

    def _all_tools(self) -> dict[str, Tool]:
        methods = [getattr(self, name) for name in self._tool_methods]
        return collect_tools([*methods, *self._functions, *self._of_sources], type(self).__name__)

    def tool_schemas(self) -> list[ToolSchema]:
        return [tool.schema for tool in self._shown.values()]

    def is_final(self, call: ToolCall) -> bool:
        found = self.tools.get(call["function"]["name"])
        return found is not None and found.final

    # The environment.

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self._over = True  # until all of this has gone well
        await super().areset(seed=seed)
        self._forget_step()
        self._malformed_turns = 0
        task = self.task_of(options)
        await self._close_opened()
        self._opened = AsyncExitStack()
        for source in self._sources:
            self._of_sources += tuple(await self._opened.enter_async_context(source.open()))
        await self._prepare(task)
        if self._tape is not None:
            self._tape.begin(task, seed)
        if self._tape is None or not self._tape.is_replay:
            await self._acquire()
        self.tools = every = self._all_tools()
        check_final_tools(self.final_tools, every, type(self).__name__)
        messages = await _ask(self.reset_task, task, default=ToolEnv.reset_task)
        if (column := task.get("tools")) is not None:  # afterwards, since reset_task may have chosen tools too
            self.tools = tools_of_row(column, self.tools, type(self).__name__)
        check_messages(messages, f"{type(self).__name__}.reset_task()")
        if not every and not self.tools:  # a row may take all tools away
            warn_of_forgotten_tools(self, ToolEnv)
        self._transcript = list(messages)
        self._over = False
        return list(messages), {"metrics": dict(self.metrics)}

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        """Prepare a task before `reset_task` is called; for the environments of this package."""

    async def _acquire(self) -> None:
        """Acquire what the tools run in. It is not called in a replay."""

    async def astep(self, action: Message) -> StepResult:
        check_action(action, type(self).__name__)
        if self._over:
            raise RuntimeError(f"{type(self).__name__} has no episode to step in: call reset() first")
        result = await self._one_step(self._answer(action))
        self._over = result.terminated or result.truncated
        self._transcript = [*self._transcript, action, *result.messages]
        return result

    async def aclose(self) -> None:
        self._over = True
        await self._close_opened()

    async def _close_opened(self) -> None:
        self._of_sources = ()
        await self._opened.aclose()

    def render(self) -> str | None:  # type: ignore[override]
        """Return the episode so far as text, with `render_mode="ansi"`."""
        return None if self.render_mode is None else as_transcript(self._transcript)

    async def _answer(self, action: Message) -> StepResult:
        malformed = action.get("malformed") or []
        if malformed and self.on_malformed == "text":
            action, malformed = with_text_of(malformed, action), []
        self._malformed_turns = self._malformed_turns + 1 if malformed else 0
        calls = action.get("tool_calls") or []
        too_many = bool(malformed) and (self.on_malformed == "end" or self._malformed_turns >= self.max_malformed)
        if too_many and not any(map(self.is_final, calls)):  # a final answer goes before every cap
            return self._end(StopReason.MALFORMED)
        if calls or malformed:
            runner = None if self._tape is None else self._tape.tool
            rules = self._call_rules(self._shown, within=self._within, runner=runner)
            messages, records = await call_tools(calls, rules)
            for call in malformed:
                text = f"Error: the tool call could not be read: {call['error']}"
                messages.append({"role": "tool", "content": cut(text, self.max_result_chars)})
            if any(record.ends_episode for record in records):
                return self._end(StopReason.FINAL_ANSWER, messages, tool_calls=records)
            result = self._go_on(messages, tool_calls=records)
            if too_many and not result.terminated:
                return self._end(StopReason.MALFORMED, result.messages, tool_calls=result.info["tool_calls"])
            return result
        reply = await self._reply_to(action)
        if reply is None:
            if type(self).reply is not ToolEnv.reply:
                warn_of_forgotten_return(self)
            return self._end(StopReason.MODEL_STOPPED)
        check_messages(reply, f"{type(self).__name__}.reply()")
        if not reply and not self.terminated and not self.truncated:
            raise ValueError(f"{type(self).__name__}.reply() gave no message: return None to end the episode")
        return self._go_on(reply)

    async def _reply_to(self, action: Message) -> Any:
        if self._tape is None or type(self).reply is ToolEnv.reply:
            return await _ask(self.reply, action, default=ToolEnv.reply)
        call = Call(kind="reply", name="reply", arguments={"message": action}, function=type(self).reply)
        return await self._tape.hook(call, lambda: call_function(self.reply, action))

    def _end(self, reason: StopReason, messages: Sequence[Message] = (), **info: Any) -> StepResult:
        info |= {"stop_reason": reason, "metrics": dict(self.metrics)}
        return StepResult(list(messages), self.reward, True, False, info)

    def _go_on(self, messages: Sequence[Message], **info: Any) -> StepResult:
        if self.terminated:
            return self._end(StopReason.ENV_TERMINATED, messages, **info)
        return StepResult(list(messages), self.reward, False, self.truncated, info | {"metrics": dict(self.metrics)})


async def _ask(hook: Callable[[Any], Any], about: Any, *, default: Callable[..., Any]) -> Any:
    """Return the result of a hook. Our own default does not block, so it is called without a thread."""
    if inspect.ismethod(hook) and hook.__func__ is default:
        return hook(about)
    return await call_function(hook, about)
