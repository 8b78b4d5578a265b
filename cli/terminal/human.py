"""You as the model: `HumanPolicy` reads answers from the keyboard, `ShownPolicy` shows a conversation as it goes on."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...envs.core import ConfigurationError, Message, ToolSchema
from ...envs.episode import Episode, EpisodeSpec, Failure
from ...envs.policy import Act, Conversation, Policy, ScriptedPolicy, tool_calls
from ...envs.runtime.message_text import named_text, written_arguments
from ...envs.runtime.places import user_place
from ...envs.runtime.threads import run_in_thread
from ...envs.tokens import TokenTrace

if TYPE_CHECKING:
    from rich.console import Console


class HumanPolicy(ScriptedPolicy):
    """Asks a person for each answer: text, or tool calls as in Python, `add(a=1, b=2); stop()`."""

    def __init__(self, out: Console) -> None:
        super().__init__(self._ask)
        self._out = out

    async def _ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Message | str:
        while True:
            try:
                line = await run_in_thread(self._out.input, "[bold]you>[/] ")
            except EOFError:
                raise ConfigurationError(
                    "the input ended before the episode did; --policy lets a script play"
                ) from None
            try:
                return read_answer(line, tools)
            except ValueError as error:
                self._out.print(f"{error}; please repeat", style="red", markup=False)


def read_answer(line: str, tools: Sequence[ToolSchema]) -> Message | str:
    """Return the message that a line stands for: calls if it begins with a tool's name and a parenthesis, else text.

    A ValueError tells the person that the line begins like a call, and cannot be read as calls.
    """
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    name, parenthesis, _ = line.partition("(")
    if not parenthesis or name.strip() not in parameters:
        return line
    try:
        statements = ast.parse(line.strip()).body
    except SyntaxError as error:
        raise ValueError(f"this is not a call as in Python: {error.msg}") from None
    return tool_calls(*[_call(statement, parameters) for statement in statements])


def _call(statement: ast.stmt, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=values, keywords=keywords)) if name in parameters:
            names = list(parameters[name].get("properties", {}))
        case _:
            raise ValueError(f"{ast.unparse(statement)} does not call a tool; the tools: {', '.join(parameters)}")
    if len(values) > len(names):
        raise ValueError(f"{name} takes {len(names)} arguments, got {len(values)}")
    try:
        given = dict(zip(names, map(ast.literal_eval, values), strict=False))
        return name, given | {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in keywords}
    except ValueError:
        raise ValueError(f"the arguments of {name} must be numbers, texts in quotes, lists or dicts") from None


class ShownPolicy:
    """Another policy's conversations, printed message by message; answers that a person typed are there already."""

    def __init__(self, policy: Policy, out: Console) -> None:
        self._policy = policy
        self._out = out
        self._typed = isinstance(policy, HumanPolicy)

    def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Conversation:
        for tool in tools:
            self._out.print(f"tool  {signature(tool)}", style="dim", markup=False)
        if self._typed:
            calls = f", or with calls such as {call_of(tools[0])}" if tools else ""
            self._out.print(f"answer with text{calls}; Ctrl-C ends the game", style="dim", markup=False)
        begun = not self._typed and messages[-1:] and messages[-1]["role"] == "assistant"  # it is shown as a whole
        for message in messages[:-1] if begun else messages:
            show_message(message, self._out)
        return _ShownConversation(self._policy.begin(spec, messages, tools), self._out, self._typed)


class _ShownConversation:
    def __init__(self, conversation: Conversation, out: Console, typed: bool) -> None:
        self._conversation = conversation
        self._out = out
        self._typed = typed

    @property
    def trace(self) -> TokenTrace | None:
        return self._conversation.trace

    async def act(self, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> Act:
        act = await self._conversation.act(max_tokens=max_tokens, stop=stop)
        if not self._typed:
            show_message(act.message, self._out)
        return act

    async def observe(self, messages: Sequence[Message], *, last: bool, whole: bool = False) -> None:
        for message in messages:
            show_message(message, self._out)
        await self._conversation.observe(messages, last=last, whole=whole)

    def fitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        return self._conversation.fitted(messages)

    def further(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Conversation:
        return _ShownConversation(self._conversation.further(messages, tools), self._out, self._typed)


def signature(tool: ToolSchema) -> str:
    """Return a tool in one line: `add(a: integer, b: integer)  Add two integers.`"""
    function = tool["function"]
    parameters = function["parameters"].get("properties", {}).items()
    types = ", ".join(f"{name}: {schema.get('type', 'any')}" for name, schema in parameters)
    summary = function.get("description", "").partition("\n")[0]
    return f"{function['name']}({types})  {summary}"


def call_of(tool: ToolSchema) -> str:
    """Return a call as a person writes it: `add(a=..., b=...)`."""
    function = tool["function"]
    return f"{function['name']}({', '.join(f'{name}=...' for name in function['parameters'].get('properties', {}))})"


def show_message(message: Message, out: Console) -> None:
    """Print a message: its role, its text and its tool calls."""
    from rich.text import Text

    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [f"{function['name']}({written_arguments(function['arguments'])})" for function in functions]
    lines = "\n".join(filter(None, [named_text(message), *calls])).splitlines()
    role = message["role"]
    style = {"assistant": "cyan", "tool": "green", "system": "dim"}.get(role, "bold")
    out.print(Text(f"{role:>9}  ", style) + Text("\n           ".join(lines)))


def show_episode(episode: Episode, out: Console) -> None:
    """Print how an episode ended: its reward and the parts of it, its metrics, or its failure."""
    reward = "none" if episode.reward is None else f"{episode.reward:g}"
    turns = "1 turn" if len(episode.turns) == 1 else f"{len(episode.turns)} turns"
    out.print(f"\nreward {reward}, stop reason {episode.stop}, {turns}", style="bold", markup=False)
    for name, value in episode.metrics.items():
        out.print(f"  {name} {value:g}", markup=False)
    if episode.failure is not None:
        traceback = episode.failure.traceback if _is_worth_reading(episode.failure) else ""
        out.print(f"{traceback}the episode failed at {episode.failure}", style="red", markup=False)


def _is_worth_reading(failure: Failure) -> bool:
    """Return whether the traceback says more than the message: gymnast's own lines do not explain a user's mistake."""
    return user_place(failure.traceback) is not None or failure.type not in ("ValueError", "TypeError")
