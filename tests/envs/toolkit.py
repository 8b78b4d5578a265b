"""Types, calls and programs for the tests of environments and tools."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict

from gymnast.envs import StepResult, Tool, ToolCallRecord, ToolEnv, tool_calls

WAIT = 30.0  # seconds to wait for an event before the test fails


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Person(BaseModel):
    name: str
    age: int


class Options(TypedDict, total=False):
    deep: bool


def environment_of(*functions: Callable[..., Any] | Tool, **options: Any) -> ToolEnv:
    environment = ToolEnv(functions, **options)
    environment.reset(seed=0, options={"task": {"prompt": "go"}})
    return environment


async def step(environment: ToolEnv, *calls: tuple[str, Any]) -> tuple[StepResult, list[ToolCallRecord]]:
    result = await environment.astep(tool_calls(*calls))
    return result, result.info["tool_calls"]


async def call(function: Callable[..., Any] | Tool, arguments: Any, **options: Any) -> tuple[Any, ToolCallRecord]:
    """The content of the result message, and the record."""
    environment = environment_of(function, **options)
    [name] = environment.tools
    result, [record] = await step(environment, (name, arguments))
    return result.messages[0].get("content"), record


def paint(colour: Colour, point: Point, person: Person, options: Options, title: str = "x") -> str:
    """Paint.

    Args:
        colour: With what.
        point: Where.
        person: For whom.
        options: How.
        title: A parameter of this name is no title of a schema.
    """
    return f"{colour!r} {point!r} {person!r} {options!r} {title}"


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, in which warnings are errors."""
    command = [sys.executable, "-I", "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
