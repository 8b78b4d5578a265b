"""Environments and comparisons for the tests of `gymnast.cluster`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from gymnast.envs import (
    BrokenEnvironmentError,
    Calculator,
    Environment,
    Episode,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
)
from gymnast.envs import tool_call as call

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes cannot import the tests

ADD = call("add", a=1, b=2)
ANSWER = call("final_answer", answer=3)
ROW = {"question": "What is 1 plus 2?", "answer": 3, "prompt": "go"}
WAIT = 60.0  # seconds to wait for others before a test fails


def play(environment: Any, script: Any, *, count: int = 1, rows: Any = None, **options: Any) -> list[Episode]:
    """Episodes of these rows, or of `count` rows that differ in their `index` only."""
    rows = [{**ROW, "index": index} for index in range(count)] if rows is None else rows
    return RolloutEngine(environment, ScriptedPolicy(script), max_concurrency=1024, **options).play(rows)


def without_times(episodes: list[Episode]) -> list[Episode]:
    """The same episodes with every duration set to 0."""
    for episode in episodes:
        episode.seconds = 0.0
        for turn in episode.turns:
            turn.generation_seconds = turn.environment_seconds = 0.0
            for record in turn.tool_calls:
                record.seconds = 0.0
    return episodes


class TwoArgumentsError(Exception):
    """Cannot be pickled and read again, as its constructor takes other arguments than its message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("no such value"),
    lambda: KeyError("key"),
    lambda: OSError(2, "no such file"),
    lambda: TwoArgumentsError(7, "odd"),
    lambda: BrokenEnvironmentError("the database is down"),
    lambda: ExceptionGroup("several", [ValueError("one")]),
    lambda: SystemExit(3),
    lambda: asyncio.CancelledError("by itself"),
]
STAGES = ("reset", "step", "grade", "close")


class Breaking(Environment):
    """Raises the error that its row names, at the stage that its row names."""

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options["seed"])
        self.row = options["options"]["task"]
        return self._at("reset", ([{"role": "user", "content": "go"}], {}))

    def step(self, action: Any) -> StepResult:
        return self._at("step", StepResult([], 1.0, True, False, {"metrics": {"steps": 1.0}}))

    def grade(self, stop: Any) -> float | None:
        return self._at("grade", 0.5)

    def close(self) -> None:
        self._at("close", None)

    def _at(self, stage: str, result: Any) -> Any:
        if self.row["stage"] == stage:
            raise ERRORS[self.row["error"]]()
        return result


class Meeting:
    """Threads wait here until so many have come; each process that gets a copy has its own meeting."""

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._come = 0
        self._lock = threading.Lock()
        self._complete = threading.Event()

    def __reduce__(self) -> Any:
        return Meeting, (self.parties,)

    def wait(self) -> None:
        with self._lock:
            self._come += 1
            if self._come >= self.parties:
                self._complete.set()
        if not self._complete.wait(WAIT):
            raise TimeoutError(f"{self._come} of {self.parties} have come")


class Meets(Environment):
    """Each step blocks its thread until all episodes of this process are there. Then the row says what happens."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self.meeting = meeting

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options["seed"])
        self.row = options["options"]["task"]
        return [{"role": "user", "content": "go"}], {}

    def step(self, action: Any) -> StepResult:
        self.meeting.wait()
        match self.row.get("then"):
            case "die":
                os._exit(1)
            case "hang":
                threading.Event().wait(WAIT)
        return StepResult([], 1.0, True, False, {})


class Noted(Environment):
    """Waits in its step for ever, and notes what happens to it; `noted_class` makes a class for one test."""

    stepping: asyncio.Event
    closed: asyncio.Event

    async def areset(self, **options: Any) -> Any:
        await super().areset(**options)
        return [{"role": "user", "content": "go"}], {}

    async def astep(self, action: Any) -> StepResult:
        self.stepping.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        if self.stepping.is_set():
            self.closed.set()


def noted_class() -> type[Noted]:
    return type("Noted", (Noted,), {"stepping": asyncio.Event(), "closed": asyncio.Event()})


class Drawn(Calculator):
    """Shows its state as HTML."""

    def render_html(self) -> str:
        return f"<b>{self.expected}</b>"


class Process(Environment):
    """Tells about the process that it is in."""

    async def areset(self, **options: Any) -> Any:
        await super().areset(**options)
        return [{"role": "user", "content": "go"}], {}

    async def astep(self, action: Any) -> StepResult:
        told = {"pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        return StepResult([{"role": "user", "content": repr(told)}], 1.0, True, False, {})


def told(episode: Episode) -> dict[str, Any]:
    """What `Process` has told."""
    return eval(str(episode.turns[-1].observation[0].get("content")), {})


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not a zombie."""
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    """The process id of this process's parent."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name: state, parent, process group, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
