"""If nothing makes progress, one line says what the run waits for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import tool
from gymnast.envs.runtime.whereabouts import Whereabouts
from gymnast.trainer.loop.watchdog import Watchdog

from .buttons import Buttons, ScriptedGenerator, call_ids, make_trainer

LOGGER = logging.getLogger("gymnast.trainer.loop.watchdog")


class Ends(logging.Handler):
    """Ends a hang when the watchdog has logged the expected line; on a busy machine it may log others before."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = ""
        self.event = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if record.getMessage().endswith(self.expected):
            self.event.set()


@pytest.fixture
def hang() -> Iterator[Ends]:
    handler = Ends()
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


def watchdogs() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gymnast-watchdog"]


def test_a_round_that_hangs(tmp_path: Path, hang: Ends) -> None:
    """Three episodes hang in a tool, the others in the generator, until the expected line is logged."""
    hang.expected = "s: 5 episodes wait in the generator, 3 in tool look"

    class Hangs(Buttons):
        @tool
        async def look(self) -> str:  # type: ignore[override]
            """Look at the buttons."""
            await asyncio.to_thread(hang.event.wait)
            return "one is lit"

    class Slow(ScriptedGenerator):
        asked = 0

        async def generate(self, request: Any) -> Any:
            Slow.asked += 1
            if Slow.asked > 3:
                await asyncio.to_thread(hang.event.wait)
            return await super().generate(request)

    generator = Slow(lambda request: call_ids("look" if len(generator.requests) <= 3 else "left"))
    trainer = make_trainer(tmp_path, environment=Hangs, generator=generator, stall_warning=0.3)
    trainer.train()
    assert any(line.startswith("nothing has moved for ") for line in hang.lines)
    assert watchdogs() == []


def test_an_update_that_hangs(tmp_path: Path, hang: Ends) -> None:
    hang.expected = ": training waits for an update, which needs the gradients of all processes, or a callback"
    trainer: Any = make_trainer(tmp_path, stall_warning=0.3)
    backward = trainer.accelerator.backward

    def slow(*args: Any, **kwargs: Any) -> None:
        hang.event.wait()
        backward(*args, **kwargs)

    trainer.accelerator.backward = slow
    trainer.train()
    assert hang.event.is_set()


def test_it_watches_while_it_is_open_and_again_after_each_stall(hang: Ends) -> None:
    whereabouts = Whereabouts()
    with Watchdog(0.05, whereabouts) as watchdog, watchdog, watchdog.during("the other processes"):
        for _ in range(2):
            hang.event.wait()
            hang.event.clear()
            watchdog.moved()
        assert watchdogs() == ["gymnast-watchdog"]
    assert [line.partition(": ")[2] for line in hang.lines] == ["training waits for the other processes"] * 2
    assert watchdogs() == []


def test_it_can_be_switched_off() -> None:
    with Watchdog(None, Whereabouts()):
        assert watchdogs() == []
