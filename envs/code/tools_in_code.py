"""An environment in which the model's code calls the tools: they are functions in its box, and run outside of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from ...sandbox.base import ExecutionResult, Executor, Status
from ...sandbox.limits import check_positive
from ..core import ConfigurationError, Message, StepResult, ToolCall, ToolSchema, text_of
from ..episode import ToolCallRecord
from ..tool_env.leased_box import LeasedBoxEnv
from ..tools.execution import call_within
from ..tools.runner import CallResult
from ..tools.tool import Tool
from .actions import Language, code_of
from .files import files_of
from .functions import declaration, name_in_python, source
from .inside import InsideCalls

ToolsIn = Literal["python", "bash", "calls"]

_CODE = {"python": "code", "bash": "command"}  # the tools that run code, and the name of their argument
_SHADOWING = {"tools.py", "tools/__init__.py"}  # files of the workspace that Python imports in place of ours
_IMPORT = 'if not hasattr(__import__("tools"), "_is_bound"): from tools import *; __import__("tools")._is_bound = True'
_FORGET = '__import__("sys").modules.pop("tools", None)'
_ENDINGS = ("final_answer",)  # tools of ours that code may call; alone they are no reason to put tools into the code
_HEADING = {
    "python": "The code can import these functions: `from tools import {name}`.",
    "bash": "The command `tools NAME --argument value` calls these functions:",
}
_ACTIONS = """\
You act by writing code, in a block that begins with a line ```{language} and ends with a line ```. The block is run, \
and the next message has what it prints and the value of its last expression. Its state stays for the next block."""
_FUNCTIONS = {"python": "These functions are defined:", "bash": _HEADING["bash"]}


class ToolsInCodeEnv(LeasedBoxEnv[Executor]):
    """The part of `CodeEnv` that lets code call tools."""

    tools_in: ToolsIn = "python"
    code_actions: bool = False
    max_code_calls: int = 100

    _calls: InsideCalls
    _offered: str | None = None  # the source of the functions in the box

    def _set_options(self, **given: Any) -> None:
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)
        if self.tools_in not in get_args(ToolsIn):
            raise ValueError(f"tools_in must be one of {get_args(ToolsIn)}, got {self.tools_in!r}")
        if self.code_actions and self.tools_in == "calls":
            raise ValueError("code_actions needs tools in the code: give tools_in='python' or 'bash'")
        check_positive(self.max_code_calls, "max_code_calls")

    # What the model sees.

    @property
    def _shown(self) -> Mapping[str, Tool]:
        if self.code_actions:
            return {name: self._tool_of(name) for name in _CODE}
        inside = self._within
        if not inside:
            return self.tools
        shown = self._tool_of(self.tools_in)
        heading = _HEADING[self.tools_in].format(name=name_in_python(next(iter(inside.values()))))
        text = "\n\n".join([shown.description, heading, _declared(inside)])
        return {self.tools_in: dataclasses.replace(shown, description=text)}

    @property
    def _within(self) -> Mapping[str, Tool]:
        return self._callable(self.tools)

    def tool_schemas(self) -> list[ToolSchema]:
        return [] if self.code_actions else super().tool_schemas()

    def _tool_of(self, language: str) -> Tool:
        return self.tools[language] if language in self.tools else Tool.of(getattr(self, language))

    def _callable(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Return those of the tools that code calls."""
        names = sorted(tools.keys() - _CODE.keys(), key=lambda name: (tools[name].final, list(tools).index(name)))
        functions = {name: tools[name] for name in names}
        wanted = self.code_actions or functions.keys() - set(_ENDINGS)
        return functions if wanted and self.tools_in != "calls" else {}

    # The episode.

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        await super()._prepare(task)
        self._calls, self._offered = InsideCalls(self._call, self.max_code_calls), None

    async def _acquire(self) -> None:
        await super()._acquire()
        for path, data in files_of(self.task).items():
            await self.box.write_file(path, data)
        await self._offer(self._all_tools())  # before `reset_task`, which may run code

    async def _begin(self, messages: list[Message]) -> None:
        if self._box is not None:  # None in a replay
            await self._offer(self.tools)
        if self._within:
            self.metrics["code_calls"] = float(self._calls.made)  # of `reset_task`
        if self.code_actions:
            language = self.tools_in
            text = "\n\n".join([_ACTIONS.format(language=language), _FUNCTIONS[language], _declared(self._within)])
            if messages and messages[0]["role"] == "system":
                text = f"{text_of(messages.pop(0))}\n\n{text}"
            messages.insert(0, {"role": "system", "content": text})
            self._transcript = list(messages)

    async def _offer(self, tools: Mapping[str, Tool]) -> None:
        functions = source(self._callable(tools).values())
        if not functions or functions == self._offered:
            return
        if shadowing := _SHADOWING & files_of(self.task).keys():
            raise ConfigurationError(
                f"the row's file {min(shadowing)!r} hides the module `tools`, by which code calls the tools: give "
                f"the file another name, or the environment tools_in='calls'"
            )
        await self.box.offer(functions, self._answer_call)
        if self._offered is not None:
            await self.box.python(_FORGET)
        self._offered = functions

    async def _answer_call(self, call: bytes) -> bytes:
        self.metrics["code_calls"] = self._calls.made + 1.0
        return await self._calls.answer(call)

    async def _call(self, call: ToolCall) -> tuple[CallResult, ToolCallRecord]:
        runner = None if self._tape is None else self._tape.inside
        return await call_within(call, self._call_rules(self._within, runner=runner))

    async def _execute(self, language: Language, code: str, timeout: float) -> ExecutionResult:
        """Run code in the box; blocks of code find the functions without an import."""
        if language == "bash":
            return await self.box.bash(code, timeout=timeout)
        imported, was_lost = ExecutionResult(status=Status.OK), False
        if self._offered and self.code_actions:  # each time, since only the session knows whether it is a new one
            imported = await self.box.python(_IMPORT, timeout=timeout)
            was_lost = imported.state_lost
            if was_lost:  # the session had ended since the last block, perhaps by a command
                imported = await self.box.python(_IMPORT, timeout=timeout)
        result = await self.box.python(code, timeout=timeout) if imported.ok else imported
        return dataclasses.replace(result, state_lost=result.state_lost or was_lost)

    async def _answer(self, action: Message) -> StepResult:
        language: Language = "bash" if self.tools_in == "bash" else "python"
        found = code_of(text_of(action), language) if self.code_actions else None
        if found is None:
            return await super()._answer(action)
        language, code = found
        call: ToolCall = {"type": "function", "function": {"name": language, "arguments": {_CODE[language]: code}}}
        result = await super()._answer({**action, "tool_calls": [call]})
        return result._replace(messages=[_observation(message) for message in result.messages])


def _declared(tools: Mapping[str, Tool]) -> str:
    return "\n".join(declaration(tool) for tool in tools.values())


def _observation(message: Message) -> Message:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"Observation:\n{text_of(message)}"}
